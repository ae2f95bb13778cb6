"""Shapes of real models and inputs that are hard to normalise."""

from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from normkit.testing._formats import FORMATS, Array, dtype_of, ulp

SHAPES: dict[str, tuple[int, int]] = {
    "one token": (1, 4096),
    "decode": (16, 4096),
    "gpt2": (1024, 768),
    "gpt2-xl": (1024, 1600),
    "gemma2-2b": (1024, 2304),
    "gemma2-9b": (1024, 3584),
    "llama3-8b": (1024, 4096),
    "llama3-70b": (512, 8192),
    "odd width": (33, 1023),
    "one column": (64, 1),
}
"""Tokens and width by name; the benchmarks use the same list."""


class Case(NamedTuple):
    """One named input of a norm: NumPy arrays, and the eps that goes with them."""

    name: str
    op: str
    x: Array
    scale: Array | None
    bias: Array | None
    eps: float


def worked_example(dtype: str = "float32") -> dict[str, Case]:
    """The three tokens that every document starts from: d = 4, scale 1, eps 0.

    Args:
        dtype: "float16", "bfloat16", "float32" or "float64".

    Returns:
        One `Case` of three rows for each op, "rms_norm" and "layer_norm".
    """
    x = np.array([[1, 2, 3, 4], [2, 0, -2, 4], [-1, 1, -1, 1]]).astype(dtype_of(dtype))
    ones = np.ones(4, dtype_of(dtype))
    return {op: Case("worked example", op, x, ones, None, 0.0) for op in ("rms_norm", "layer_norm")}


def real_activations(dtype: str = "float32") -> list[Case]:
    """Inputs, weights and eps of five norm layers of two trained models.

    Three RMSNorms of SmolLM2-135M (18 tokens of width 576) and two LayerNorms of all-MiniLM-L6-v2
    (20 tokens of width 384), rounded to ``dtype``. normkit/data/README.md tells their origin.
    """
    found = []
    with files("normkit.data").joinpath("real_activations.npz").open("rb") as file:
        arrays = dict(np.load(file))
    for name in sorted({key.rsplit("/", 1)[0] for key in arrays}):
        x, scale, bias = (
            None if array is None else array.astype(dtype_of(dtype))
            for array in (arrays.get(f"{name}/{part}") for part in ("x", "weight", "bias"))
        )
        op = "rms_norm" if bias is None else "layer_norm"
        assert x is not None
        found.append(Case(name, op, x, scale, bias, float(arrays[f"{name}/eps"])))
    return found


def hard_inputs(op: str, dtype: str = "float32", *, seed: int = 0) -> list[Case]:
    """Families of inputs on which implementations fail: huge, tiny, off-centre, lopsided, special.

    The set: normal data; means and sizes from one end of the dtype's range to the other, with eps
    large, alike, tiny and 0; subnormals; outliers by size and by place; rows of 1, 2, 3 and some
    16 000 elements; constant, zero, alternating and cancelling rows; mixed exponents; random bit
    patterns; NaN and infinities; scale and bias. In float16 a family stands at the end of the range
    where its size in float32 would not fit. `long_rows` has the rows of up to 10^6 elements.

    Args:
        op: "rms_norm" or "layer_norm".
        dtype: "float16", "bfloat16", "float32" or "float64"; magnitudes follow its range.
        seed: Of the random numbers.

    Returns:
        A list of `Case`, each of a few rows; all but the last two without scale and bias. NaN and
        infinities are in families of their own, whose names say so.

    Example:
        >>> [case.name for case in hard_inputs("rms_norm")][:3]
        ['normal', 'mean 1000', 'mean 100000']
    """
    random = np.random.default_rng(seed)
    with np.errstate(over="ignore"):  # a magnitude near the top of the range may round to infinity
        rows = [(name, x.astype(dtype_of(dtype)), eps) for name, x, eps in _families(dtype, random)]
    cases = [Case(name, op, x, None, None, eps) for name, x, eps in rows]
    x = random.standard_normal((8, 129)).astype(dtype_of(dtype))
    scale, bias = random.standard_normal((2, 129)).astype(dtype_of(dtype))
    cases.append(Case("scale", op, x, scale, None, 1e-6))
    cases.append(Case("scale and bias", op, x, scale, bias, 1e-6))
    return cases


def long_rows(op: str, dtype: str = "float32", *, seed: int = 0) -> list[Case]:
    """One row each of 10^5 or 10^6 elements, on which errors of long sums would show.

    Apart from `hard_inputs` because of their cost: for the exact oracle, pick elements by ``at``.

    Args:
        op, dtype, seed: As in `hard_inputs`.

    Returns:
        A list of `Case` without scale and bias. The three with an outlier hold the same numbers in
        another order, so that the exact result is the same too.

    Example:
        >>> [case.name for case in long_rows("rms_norm")][:2]
        ['length 10^5', 'length 10^6']
    """
    top = 2.0 ** FORMATS[dtype].max_exponent
    random = np.random.default_rng(seed)
    x = random.standard_normal(10**6)
    mean = min(1e7, top)
    rows = {
        "length 10^5": random.standard_normal(10**5),
        "length 10^6": x,
        "length 10^6, positive": np.abs(x),
        f"length 10^6, mean {mean:.0f}": mean + x * _spread(mean, dtype),
    }
    for place, at in (("first", 0), ("in the middle", 500_000), ("last", 999_999)):
        rows[f"length 10^6, outlier {place}"] = np.insert(x[1:], at, min(1e6, 1.8 * top))
    cast = {name: row[None].astype(dtype_of(dtype)) for name, row in rows.items()}
    return [Case(name, op, row, None, None, 1e-6) for name, row in cast.items()]


def _families(dtype: str, random: np.random.Generator) -> Iterator[tuple[str, Array, float]]:
    """Name, rows and eps of each family, in float64; magnitudes fit the dtype's range."""
    form = FORMATS[dtype]
    top, bottom = 2.0**form.max_exponent, 2.0**form.min_exponent
    normal = partial(_normal, random)
    yield "normal", normal(), 1e-6
    for mean in (1e3, 1e5, 1e7):
        if mean < top / 4:
            yield f"mean {mean:.0f}", mean + normal() * _spread(mean, dtype), 1e-6
    yield "mean near the top", top * (1 + normal() / 64), 1e-6
    for size in (1e-4, 1e-20, 1e-30, 1e-300):
        if size > bottom:
            yield f"size {size:.0e}, eps 0", normal() * size, 0.0
            yield f"size {size:.0e}", normal() * size, 1e-6
    yield "size and eps alike", normal() * 1e-3, 1e-6
    yield "size and tiny eps alike", normal() * bottom**0.4, bottom**0.8
    if dtype != "float64":  # whose subnormal numbers count as 0 on XLA: docs/numerics.md
        subnormal = bottom * 2.0 ** (1 - form.precision)
        yield "subnormal", np.round(normal() * 16) * subnormal, 1e-6
        yield "subnormal, eps 0", np.round(normal() * 16) * subnormal, 0.0
    for size in (1e3, 1e15, 1e19, 1e25, 1e300):
        if size < top / 8:
            yield f"size {size:.0e}", normal() * size, 1e-6
    yield "near the top", random.uniform(-1.9, 1.9, (8, 129)) * top, 1e-6
    yield from _outliers(top, random)
    yield from _lengths(random)
    yield from _patterns(random)
    yield from _random_bits(dtype, random)
    yield "NaN and infinities", _with_special(normal()), 1e-6


def _normal(random: np.random.Generator, rows: int = 8, width: int = 129) -> Array:
    return random.standard_normal((rows, width))


def _spread(mean: float, dtype: str) -> float:
    """1, or the spacing of ``dtype`` at ``mean``, so that a half type's row is not constant."""
    return max(1.0, float(ulp(mean, dtype_of(dtype))))


def _outliers(top: float, random: np.random.Generator) -> Iterator[tuple[str, Array, float]]:
    """One element of each row far larger than the others, whose squares then vanish beside it."""
    big = min(1e6, 1.8 * top)
    places = [("first", 0, big), ("in the middle", 64, big), ("last", -1, big)]
    if top > 1e20:
        places.append(("1e+20", 64, 1e20))
    places.append(("near the top", 64, top))
    for name, at, size in places:
        x = _normal(random)
        x[:, at] = size
        yield f"outlier {name}", x, 1e-6


def _lengths(random: np.random.Generator) -> Iterator[tuple[str, Array, float]]:
    yield "wide", _normal(random, 1, 2**14 + 1), 1e-6
    yield "wide and positive", np.abs(_normal(random, 1, 2**14 - 1)), 1e-6
    for width in (1, 2, 3):
        yield f"width {width}", _normal(random, 64, width), 1e-6


def _patterns(random: np.random.Generator) -> Iterator[tuple[str, Array, float]]:
    """Rows with a variance or a sum that is 0 or nearly so, and exponents far apart."""
    yield "constant", np.repeat(_normal(random, 8, 1) * 100, 129, axis=1), 1e-6
    yield "constant, eps 0", np.repeat(_normal(random, 8, 1) * 100, 129, axis=1), 0.0
    yield "zeros", np.zeros((2, 129)), 1e-6
    yield "zeros, eps 0", np.zeros((2, 129)), 0.0
    yield "alternating", np.tile([1000.0, -1000.0], (2, 65)), 1e-6
    half = _normal(random, 8, 64) * 100
    yield "cancelling mean", np.concatenate([half, -half], axis=1), 1e-6
    yield "mixed exponents", _normal(random) * 2.0 ** random.integers(-12, 12, (8, 129)), 1e-6


def _random_bits(dtype: str, random: np.random.Generator) -> Iterator[tuple[str, Array, float]]:
    """Every bit pattern alike: all exponents, and subnormals among them."""
    for eps in (1e-6, 0.0):
        x = random.bytes(8 * 129 * dtype_of(dtype).itemsize)
        finite = _finite(np.frombuffer(x, dtype_of(dtype))).reshape(8, 129)
        yield "random bits" if eps else "random bits, eps 0", finite, eps
    yield "random bits, NaN and infinities", _with_special(finite.copy()), 1e-6


def _finite(x: Array) -> Array:
    """``x`` in float64, with 1 in place of NaN and infinities."""
    with np.errstate(invalid="ignore"):  # which ml_dtypes says of a signalling NaN
        wide = x.astype(np.float64)
    return np.where(np.isfinite(wide), wide, 1.0)


def _with_special(x: Array) -> Array:
    """Rows with NaN, an infinity, both infinities, and plain rows between them."""
    x[1, 5], x[3, 7], x[5, 2], x[5, 9] = np.nan, np.inf, np.inf, -np.inf
    return x
