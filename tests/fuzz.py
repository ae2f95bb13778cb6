"""Random inputs on every framework against the exact oracle: `make fuzz`, for a bounded time.

A seed makes one case: op, dtype, shape, kinds of rows, eps, scale and bias. NumPy, torch and JAX
(the latter at few shapes, as it compiles each) must meet the contract, and have NumPy's bits. A
seed that fails is printed and added to data/fuzz_seeds.json, which the suite replays; whoever
changes what a seed makes has to find the recorded cases anew.

Two kinds of departure are known (docs/numerics.md, "What is not promised"), and counted apart:

- h scale overflows the format of the last steps, where bias would bring the result back;
- bits differ where the exact result is the middle between two neighbours, or as good as that.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import normkit.numpy
import numpy as np
from backends import DTYPES, FORWARD, Subject, subjects
from oracles import EXACT

from normkit.testing import (
    FORMATS,
    MAX_ULP,
    Case,
    Exact,
    assert_same_bits,
    assert_ulp,
    bits_differ,
    contract_floor,
    dtype_of,
    ulp_distance,
    worst_ulp,
)

PATH = Path(__file__).parent / "data" / "fuzz_seeds.json"
LABELS = ("numpy:cpu", "numpy:array_api", "core-torch:cpu", "jax:cpu")

_EPS = (0.0, 1e-30, 1e-12, 1e-6, 1e-5, 2.0**-20, 1.0)
# JAX compiles each shape, eps and kind of parameters, 0.3 s a time
_JAX_EPS = (0.0, 1e-6)
_JAX_SHAPES = ((3, 2), (3, 13), (2, 33))


def case_of(seed: int) -> Case:
    """The case of ``seed``; NaN and infinities are in x alone, as the oracle takes no others."""
    random = np.random.default_rng(seed)
    op, dtype = str(random.choice(FORWARD)), str(random.choice(DTYPES))
    if random.random() < 0.5:
        shape = _JAX_SHAPES[random.integers(len(_JAX_SHAPES))]
        eps = float(random.choice(_JAX_EPS))
        kinds = [dtype, dtype] if random.random() < 0.7 else [None, None]
    else:
        shape = int(random.integers(1, 5)), int(random.integers(1, 70))
        eps = float(random.choice(_EPS))
        kinds = [(None, dtype, dtype, "float32")[i] for i in random.integers(0, 4, 2)]
    x = np.stack([_row(random, dtype, shape[1]) for _ in range(shape[0])])
    scale, bias = (_parameter(random, kind, shape[1]) for kind in kinds)
    return Case(f"seed {seed}", op, x, scale, bias, eps)


def _row(random: np.random.Generator, dtype: str, width: int) -> Any:
    kind = _KINDS[random.integers(len(_KINDS))]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(kind(random, dtype, width)).astype(dtype_of(dtype))


def _parameter(random: np.random.Generator, dtype: str | None, width: int) -> Any:
    """Random bits or numbers near 1."""
    if dtype is None:
        return None
    return (_bits if random.random() < 0.5 else _plain)(random, dtype, width).astype(
        dtype_of(dtype)
    )


def _bits(random: np.random.Generator, dtype: str, width: int) -> Any:
    """Any finite pattern, subnormals included."""
    kind = dtype_of(dtype)
    x = np.frombuffer(random.bytes(width * kind.itemsize), kind)
    with np.errstate(invalid="ignore"):  # which ml_dtypes says of a signalling NaN
        return np.where(np.isfinite(x), x, np.ones_like(x))


def _plain(random: np.random.Generator, dtype: str, width: int) -> Any:
    return random.standard_normal(width)


def _off_centre(random: np.random.Generator, dtype: str, width: int) -> Any:
    """A mean up to the last digit of the dtype away from the noise."""
    return random.standard_normal(width) + 2.0 ** random.integers(0, FORMATS[dtype].precision)


def _mixed(random: np.random.Generator, dtype: str, width: int) -> Any:
    """Exponents spread over a part of the range that lies anywhere in it."""
    form = FORMATS[dtype]
    middle = random.integers(form.min_exponent, form.max_exponent)
    spread = random.integers(1, 40)
    exponents = middle + random.integers(-spread, spread + 1, width)
    exponents = np.clip(exponents, form.min_exponent - form.precision, form.max_exponent - 2)
    return np.ldexp(random.standard_normal(width).clip(-3.9, 3.9), exponents)


def _constant(random: np.random.Generator, dtype: str, width: int) -> Any:
    """One pattern all along, or all but one element, its neighbour by a step."""
    x = np.repeat(_bits(random, dtype, 1), width)
    if random.random() < 0.5:
        x[random.integers(width)] = np.nextafter(x[0], x.dtype.type(0))
    return x


def _near_top(random: np.random.Generator, dtype: str, width: int) -> Any:
    return random.uniform(-1.99, 1.99, width) * 2.0 ** FORMATS[dtype].max_exponent


def _small_integers(random: np.random.Generator, dtype: str, width: int) -> Any:
    """Numbers of few digits, whose results are often the middle between two neighbours."""
    return random.integers(-4, 5, width) * 2.0 ** random.integers(-6, 7)


def _special(random: np.random.Generator, dtype: str, width: int) -> Any:
    x = random.standard_normal(width)
    x[random.integers(width)] = random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])
    return x


_Rows = Callable[[np.random.Generator, str, int], Any]
_KINDS: tuple[_Rows, ...] = (
    *(_bits, _bits, _plain, _off_centre, _mixed, _mixed),
    *(_constant, _near_top, _small_integers, _special),
)


class Failure(NamedTuple):
    """What is wrong with a case on one backend; ``known`` names the cause where it is known."""

    message: str
    known: str


def failures(case: Case, here: dict[str, Subject]) -> Iterator[Failure]:
    """What is wrong with the case on the backends of ``here``; nothing where all is well."""
    arguments = (case.x, case.scale, case.bias)
    exact = EXACT[case.op](*arguments, eps=case.eps)
    floor = contract_floor(case.x, exact, case.scale, case.bias)
    reference = getattr(normkit.numpy, case.op)(*arguments, eps=case.eps)
    where = f"{case.op} {case.x.dtype} {case.x.shape} eps {case.eps}"
    for label, subject in here.items():
        if label.startswith("jax") and not _fits_jax(case):
            continue
        y = subject.run(case.op, *arguments, eps=case.eps)
        try:
            assert_ulp(y, exact, floor=floor)
        except AssertionError as error:
            known = _cause(case, exact, y, floor)
            yield Failure(f"{case.name}, {label}, {where}: {error}", known)
        try:
            if subject.exact_bits and case.x.dtype != np.float64:
                assert_same_bits(y, reference)
        except AssertionError as error:
            known = "tie" if _differ_at_ties_alone(case, exact, y, reference) else ""
            yield Failure(f"{case.name}, {label}, {where}: {error}", known)


def _cause(case: Case, exact: Exact, y: Any, floor: Any) -> str:
    """Of an error beyond the floor: "overflow", or "" where it is not known."""
    right = exact.rounded(y.dtype)
    y = np.where(_overflows_on_the_way(case), right, y)
    return "overflow" if worst_ulp(y, exact, floor) <= MAX_ULP else ""


def _overflows_on_the_way(case: Case) -> Any:
    """Where h scale is beyond the format of the last steps: float32, or float64 of float64."""
    if case.x.dtype == np.float32 or case.scale is None:
        return np.zeros(case.x.shape, bool)
    largest = np.finfo(np.float64 if case.x.dtype == np.float64 else np.float32).max
    h = np.abs(EXACT[case.op](case.x, eps=case.eps).values)
    scale = np.abs(case.scale.astype(np.float64))
    with np.errstate(divide="ignore", over="ignore"):
        return h > float(largest) / scale


def _differ_at_ties_alone(case: Case, exact: Exact, y: Any, reference: Any) -> bool:
    """Whether both are correct roundings of numbers within the floor of the exact result.

    A half type is rounded to float32 before, which moves it by 2^-24 at most. Zeros of two signs
    are no tie.
    """
    share = 2.0**-48 if case.x.dtype == np.float32 else 2.0**-22
    allowed = contract_floor(case.x, exact, case.scale, case.bias)
    allowed = allowed + share * np.abs(reference.astype(np.float64))
    half = 0.5 + 2.0**-20  # ulp_error is itself rounded
    rounded = all(worst_ulp(a, exact, allowed) <= half for a in (y, reference))
    return rounded and bits_differ(y, reference) == np.sum(ulp_distance(y, reference) > 0)


def _fits_jax(case: Case) -> bool:
    """What is compiled already; in float64 far from XLA's subnormals, which count as 0.

    2^-500 keeps its distance from 2^-1022 through a square root and a product with scale.
    """
    arrays = [a.astype(np.float64) for a in (case.x, case.scale, case.bias) if a is not None]
    tiny = any(((a != 0) & (np.abs(a) < 2.0**-500)).any() for a in arrays)
    dtypes = {None if a is None else a.dtype for a in (case.scale, case.bias)}
    compiled = case.x.shape in _JAX_SHAPES and case.eps in _JAX_EPS
    both = dtypes in ({None}, {case.x.dtype})
    return compiled and both and not (case.x.dtype == np.float64 and tiny)


def backends_here() -> dict[str, Subject]:
    """The backends that are fuzzed, by label."""
    return {s.label: s for s in subjects()[0] if s.label in LABELS}


def main(seconds: float) -> int:
    """Fuzz new seeds for this long; 1 where one failed for a reason that is not known."""
    here, start = backends_here(), time.monotonic()
    tried, failed, known = 0, [], Counter[str]()
    first = int.from_bytes(np.random.default_rng().bytes(4), "big")
    print(f"seeds from {first}, on {', '.join(here)}, {seconds:.0f} s", flush=True)
    while time.monotonic() - start < seconds:
        seed = first + tried
        tried += 1
        found = list(failures(case_of(seed), here))
        for failure in found:
            print(f"known {failure.known}:" if failure.known else "FAILED:", failure.message)
        if all(failure.known for failure in found):
            known.update({failure.known for failure in found})
        else:
            failed.append(seed)
    if failed:
        recorded = json.loads(PATH.read_text(encoding="utf-8"))
        PATH.write_text(json.dumps(sorted({*recorded, *failed})) + "\n", encoding="utf-8")
    print(f"{tried} cases: {len(failed)} failed, known causes {dict(known)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
