"""Measures the accuracy contract and writes it down: `make contract`.

For each op, direction, dtype and backend: the worst error beyond the stated floor, the share of
elements that are not correctly rounded, and the elements whose bits differ from NumPy's, over the
hard inputs and the recorded activations. data/contract.json is under version control; a test
measures again and fails where a number has grown. So is data/peers.json, the errors of the
frameworks' own layers. docs/contract.md shows both and says what is proved.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contract_page
import normkit.numpy
import numpy as np
import peers
from backends import DTYPES, FORWARD, Mapped, Subject, subjects
from oracles import EXACT, EXACT_VJP, gradient_floors, hard_cases, real_cases

from normkit.testing import Exact, bits_differ, contract_floor, worst_ulp

PATH = Path(__file__).parent / "data" / "contract.json"

# Each with the arithmetic of its row sums: the proof in docs/numerics.md is for float64.
BACKENDS = {
    "numpy:cpu": "float64",
    "numpy:array_api": "float64",
    "torch:cpu": "float64",
    "torch:compile": "float64",
    "jax:cpu": "float64",
    "jax:jit-cpu": "float64",
    "flax:nnx-cpu": "float64",
    "numpy:pairs": "pairs",
    "torch:pairs": "pairs",
}
PARTS = ("forward", "dx", "dscale", "dbias")


LENGTHS_PATH = PATH.with_name("pairs_lengths.json")
# XLA takes up to 20 s a length to compile LayerNorm in pairs, and 2 s on its first level of
# optimisation, which serves the lengths that are not of `_WHOLLY_OPTIMISED`.
LENGTHS = range(1, 258)
_WHOLLY_OPTIMISED = {"rms_norm": {*LENGTHS}, "layer_norm": {*range(1, 115), 129, 257}}


def measured() -> dict[str, Subject]:
    """The backends by label, and those that run the kernel "pairs" all through."""
    here = {subject.label: subject for subject in subjects()[0]}
    pairs = [_in_pairs(here[f"{name}:cpu"]) for name in ("numpy", "torch") if f"{name}:cpu" in here]
    return here | {subject.label: subject for subject in pairs}


def _in_pairs(subject: Subject) -> Subject:
    """With the gradients of the public vjp: those of autograd are not of pairs all through."""

    def named(function: Any) -> Any:
        return functools.partial(function, kernel="pairs")

    backend = subject.backend._replace(functions=Mapped(subject.backend.functions, named))
    label = f"{subject.backend.framework}:pairs"
    return dataclasses.replace(subject, label=label, backend=backend, vjp=None)


def measure(subject: Subject, op: str, dtype: str) -> dict[str, dict[str, float]]:
    """Part: worst ULP beyond the floor, misrounded and differing elements, and their number."""
    found = {part: {"worst": 0.0, "misrounded": 0, "differing": 0, "of": 0} for part in PARTS}
    for part, actual, exact, floor, reference in _results(subject, op, dtype):
        row = found[part]
        row["worst"] = max(row["worst"], worst_ulp(actual, exact, floor))
        rounded = exact.rounded(dtype)
        wrong = (actual != rounded) & ~(np.isnan(actual) & np.isnan(rounded))
        row["misrounded"] += int(np.count_nonzero(wrong))
        row["differing"] += bits_differ(actual, reference)
        row["of"] += actual.size
    return found


_Result = tuple[str, Any, Exact, Any, Any]


def _results(subject: Subject, op: str, dtype: str) -> Iterator[_Result]:
    cases = [*hard_cases(op, dtype), *(c for c in real_cases(dtype) if c[0].op == op)]
    for case, exact, floor in cases:
        arguments = (case.x, case.scale, case.bias)
        if subject.label.endswith(":pairs"):
            floor = contract_floor(case.x, exact, case.scale, case.bias, pairs=True)
        actual = subject.run(op, *arguments, eps=case.eps)
        reference = getattr(normkit.numpy, op)(*arguments, eps=case.eps)
        yield "forward", actual, exact, floor, reference
        if np.isfinite(case.x).all():
            yield from _gradient_results(subject, op, dtype, case)


def _gradient_results(subject: Subject, op: str, dtype: str, case: Any) -> Iterator[_Result]:
    arguments = (case.x[:8], case.scale, case.bias)
    case = case._replace(x=arguments[0])
    dy = np.random.default_rng(1).standard_normal(case.x.shape).astype(case.x.dtype)
    actual = subject.gradients(op, dy, *arguments, eps=case.eps)
    reference = getattr(normkit.numpy, f"{op}_vjp")(dy, *arguments, eps=case.eps)
    exact = EXACT_VJP[op](dy, *arguments, eps=case.eps)
    floors = gradient_floors(case, dy)
    if subject.label.endswith(":pairs") and dtype != "float64":
        floors = tuple(floor + 2.0**-149 for floor in floors)
    for i, part in enumerate(PARTS[1:]):
        wanted = exact[i]
        if wanted is not None:
            yield part, actual[i], wanted, floors[i], reference[i]


def rows() -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """(key, measurements) for every backend that is here."""
    here = measured()
    for label in BACKENDS:
        for op in FORWARD:
            for dtype in DTYPES:
                if label in here:
                    yield f"{label} {op} {dtype}", measure(here[label], op, dtype)


def lengths_in_pairs(op: str) -> dict[str, float]:
    """Rows of float32 numbers in pairs under jax.jit, with scale and bias."""
    import jax
    import normkit.jax

    found = {"lengths": len(LENGTHS), "wholly optimised": len(_WHOLLY_OPTIMISED[op])}
    found |= {"worst": 0.0, "misrounded": 0, "differing": 0, "of": 0}
    function = jax.jit(functools.partial(getattr(normkit.jax, op), kernel="pairs"))
    for width in LENGTHS:
        random = np.random.default_rng(width)
        x = random.standard_normal((3, width)).astype(np.float32)
        scale, bias = random.standard_normal((2, width)).astype(np.float32)
        wholly = width in _WHOLLY_OPTIMISED[op]
        options = None if wholly else {"xla_backend_optimization_level": 1}
        compiled = function.lower(x, scale, bias).compile(compiler_options=options)
        y = np.asarray(compiled(x, scale, bias))
        exact = EXACT[op](x, scale, bias)
        floor = contract_floor(x, exact, scale, bias, pairs=True)
        found["worst"] = max(found["worst"], worst_ulp(y, exact, floor))
        found["misrounded"] += int(np.count_nonzero(y != exact.rounded("float32")))
        reference = getattr(normkit.numpy, op)(x, scale, bias, kernel="pairs")
        found["differing"] += bits_differ(y, reference)
        found["of"] += y.size
    return found


def _measure_contract() -> dict[str, Any]:
    found = {}
    for key, parts in rows():
        found[key] = parts
        print(key, {part: f"{row['worst']:.5f}" for part, row in parts.items()}, flush=True)
    return found


_FILES = {
    "contract": (PATH, _measure_contract),
    "peers": (peers.PATH, peers.measure_peers),
    "lengths": (LENGTHS_PATH, lambda: {op: lengths_in_pairs(op) for op in FORWARD}),
}


def main(names: list[str]) -> int:
    """Measure and write all files, or those that are named, and then the page of all."""
    for name in names or _FILES:
        path, measured_now = _FILES[name]
        path.write_text(json.dumps(measured_now(), indent=1) + "\n", encoding="utf-8")
    contract_page.write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
