"""Shapes of real models and inputs that are hard to normalise."""

from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from normkit.testing._formats import FORMATS, Array, Format, dtype_of

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

    Args:
        op: "rms_norm" or "layer_norm".
        dtype: "float16", "bfloat16", "float32" or "float64"; magnitudes follow its range.
        seed: Of the random numbers.

    Returns:
        A list of `Case`, each of a few rows; all but the last two without scale and bias.

    Example:
        >>> [case.name for case in hard_inputs("rms_norm")][:3]
        ['normal', 'mean 1000', 'mean 100000']
    """
    random = np.random.default_rng(seed)
    with np.errstate(over="ignore"):  # a magnitude near the top of the range may round to infinity
        rows = [
            (name, x.astype(dtype_of(dtype)), eps)
            for name, x, eps in _families(FORMATS[dtype], random)
        ]
    cases = [Case(name, op, x, None, None, eps) for name, x, eps in rows]
    x = random.standard_normal((8, 129)).astype(dtype_of(dtype))
    scale, bias = random.standard_normal((2, 129)).astype(dtype_of(dtype))
    cases.append(Case("scale", op, x, scale, None, 1e-6))
    cases.append(Case("scale and bias", op, x, scale, bias, 1e-6))
    return cases


def _families(form: Format, random: np.random.Generator) -> Iterator[tuple[str, Array, float]]:
    """Name, rows and eps of each family, in float64; magnitudes fit the format's range."""
    top, bottom = 2.0**form.max_exponent, 2.0**form.min_exponent
    subnormal = bottom * 2.0 ** (1 - form.precision)

    def normal(rows: int = 8, width: int = 129) -> Array:
        return random.standard_normal((rows, width))

    def with_outlier(size: float, at: int) -> Array:
        x = normal()
        x[:, at] = size
        return x

    yield "normal", normal(), 1e-6
    for mean in (1e3, 1e5, 1e7):
        if mean < top / 4:
            yield f"mean {mean:.0f}", normal() + mean, 1e-6
    yield "mean near the top", top * (1 + normal() / 64), 1e-6
    for size in (1e-4, 1e-20, 1e-30):
        if size > bottom:
            yield f"size {size:.0e}, eps 0", normal() * size, 0.0
    yield "size and eps alike", normal() * 1e-3, 1e-6
    yield "size and tiny eps alike", normal() * bottom**0.4, bottom**0.8
    if form != FORMATS["float64"]:  # whose subnormal numbers count as 0 on XLA: docs/numerics.md
        yield "subnormal", np.round(normal() * 16) * subnormal, 1e-6
        yield "subnormal, eps 0", np.round(normal() * 16) * subnormal, 0.0
    for size in (1e3, 1e15, 1e19, 1e25, 1e300):
        if size < top / 8:
            yield f"size {size:.0e}", normal() * size, 1e-6
    yield "near the top", random.uniform(-1.9, 1.9, (8, 129)) * top, 1e-6
    big = min(1e6, top / 2)
    yield "outlier first", with_outlier(big, 0), 1e-6
    yield "outlier last", with_outlier(big, -1), 1e-6
    yield "outlier near the top", with_outlier(top, 64), 1e-6
    yield "wide", normal(1, 2**14 + 1), 1e-6
    yield "wide and positive", np.abs(normal(1, 2**14 - 1)), 1e-6
    for width in (1, 2, 3):
        yield f"width {width}", normal(64, width), 1e-6
    yield "constant", np.repeat(normal(8, 1) * 100, 129, axis=1), 1e-6
    yield "constant, eps 0", np.repeat(normal(8, 1) * 100, 129, axis=1), 0.0
    yield "zeros", np.zeros((2, 129)), 1e-6
    yield "zeros, eps 0", np.zeros((2, 129)), 0.0
    yield "alternating", np.tile([1000.0, -1000.0], (2, 65)), 1e-6
    half = normal(8, 64) * 100
    yield "cancelling mean", np.concatenate([half, -half], axis=1), 1e-6
    yield "mixed exponents", normal() * 2.0 ** random.integers(-12, 12, (8, 129)), 1e-6
    yield "special values", _with_special(normal()), 1e-6


def _with_special(x: Array) -> Array:
    """Rows with NaN, an infinity, both infinities, and plain rows between them."""
    x[1, 5], x[3, 7], x[5, 2], x[5, 9] = np.nan, np.inf, np.inf, -np.inf
    return x
