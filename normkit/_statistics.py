"""The accurate row statistics and the one rounding, shared by both norms.

Everything is float64. Squares of float32 values are exact in it and cannot overflow or vanish,
so only float64 input needs a row scale (docs/numerics.md has the error bounds).
"""

from typing import Any

from normkit._arithmetic import Arithmetic, Array
from normkit._checks import HALF_DTYPES, Axes, dtype_name


def wide_rows(ar: Arithmetic, x: Array, eps: float, axes: Axes) -> tuple[Array, Any, Any]:
    """``(x * s, eps * s^2, s)`` in float64, where s is a power of two for each row.

    Both norms of x with eps are the norms of x s with eps s^2, for any s > 0. For float64 input
    s keeps squares from overflowing or vanishing; for narrower input s is 1.
    """
    wide = ar.widen(x)
    if dtype_name(x.dtype) != "float64":
        return wide, eps, 1.0
    s = _row_scale(ar, wide, eps, axes)
    return wide * s, eps * s * s, s


def _row_scale(ar: Arithmetic, x: Array, eps: float, axes: Axes) -> Array:
    """s = 2^-600, 1 or 2^600, which keeps max|x| s in 2^-474 .. 2^424 unless eps outweighs it.

    n squares then stay below 2^1023 for n up to 2^170, the largest is a normal number, and one
    that vanishes is less than 2^-74 of it. A tiny row is left alone where eps is at least 2^-800,
    for eps s^2 would overflow. Being constant to every derivative, s leaves them alone.
    """
    xp = ar.xp
    largest = ar.max(xp.abs(ar.constant(x)), axes)
    huge = largest >= 2.0**400
    tiny = (largest < 2.0**-400) & (eps < 2.0**-800)
    one = xp.ones_like(largest)
    return xp.where(huge, one * 2.0**-600, xp.where(tiny, one * 2.0**600, one))


def centre(ar: Arithmetic, x: Array, axes: Axes) -> Array:
    """x - mean(x), with the rounding of the mean itself removed by a second subtraction.

    The second one is written (n d - sum(d)) / n: on a constant row d is a small multiple of one
    ulp, so that n d and sum(d) are exact and the result is exactly 0, even where a compiler
    divides by multiplying with 1 / n.
    """
    n = ar.count(x, axes)
    d = x - ar.sum(x, axes) / n
    return (n * d - ar.sum(d, axes)) / n


def inverse_root_mean_square(ar: Arithmetic, d: Array, eps: Any, axes: Axes) -> Array:
    """r = 1 / sqrt(mean(d^2) + eps), and 0 where that is 1 / 0.

    There d is 0 all along the row: with r = 0 the row gives 0, and its gradients stay finite.
    """
    xp = ar.xp
    v = ar.sum(d * d, axes) / ar.count(d, axes) + eps
    vanishes = v == 0
    r = 1.0 / xp.sqrt(xp.where(vanishes, xp.ones_like(v), v))
    return xp.where(vanishes, xp.zeros_like(v), r)


def scaled(
    ar: Arithmetic, d: Array, r: Array, scale: Array | None, bias: Array | None, dtype: Any
) -> Array:
    """((d * r) * scale) + bias, rounded once to ``dtype``.

    float32 and float64 are computed in float64. A half dtype takes d * r in float64, rounded once
    to float32, and goes on in float32 in the written order: each step is rounded by itself, so
    that no compiler may contract them.
    """
    work = ar.to_float32 if dtype_name(dtype) in HALF_DTYPES else ar.widen
    y = work(d * r)
    if scale is not None:
        y = work(y * work(scale))
    if bias is not None:
        y = work(y + work(bias))
    return ar.narrow(y, dtype)


def parameter_gradient(ar: Arithmetic, terms: Array, parameter: Array | None) -> Array | None:
    """``terms`` summed over the axes along which ``parameter``, shaped as x with ones, repeats."""
    if parameter is None:
        return None
    repeated = tuple(a for a in range(terms.ndim) if parameter.shape[a] == 1)
    if repeated:  # an empty tuple means "no axis" to NumPy and "every axis" to PyTorch
        total = ar.xp.sum(terms, axis=repeated, keepdims=True)
    else:  # a copy: ``terms`` may be the caller's own dy
        total = ar.xp.astype(terms, terms.dtype)
    return ar.narrow(total, parameter.dtype)
