"""The accurate row statistics and the one rounding, shared by both norms.

Everything is wide: float64 arrays, or pairs where the `Arithmetic` is one of pairs. Squares of
float32 values are exact in float64 and cannot overflow or vanish, so only float64 input and pairs
need a row scale (docs/numerics.md has the error bounds).
"""

from typing import Any

from normkit._arithmetic import Arithmetic, Array
from normkit._checks import HALF_DTYPES, Axes, dtype_name


def wide_rows(ar: Arithmetic, x: Array, eps: float, axes: Axes) -> tuple[Any, Any, Any]:
    """``(x q^2, eps q^4, q)``, wide, where q is a power of two for each row.

    Both norms of x with eps are the norms of x s with eps s^2, for any s > 0: with s = q^2 squares
    neither overflow nor vanish. Where the wide type holds them anyway, q is 1.
    """
    q = ar.row_root(x, eps, axes)
    rows = ar.times_power(ar.times_power(ar.widen(x), q), q)
    return rows, ar.scaled_eps(eps, q), q


def unscaled(ar: Arithmetic, dx: Any, x_root: Any, dy_root: Any) -> Any:
    """dx of rows that `wide_rows` scaled, from the gradient in scaled rows and scaled dy.

    dx is homogeneous of degree -1 in x and 1 in dy; one power of two for both, applied in two
    equal steps, overflows only where dx does.
    """
    q = x_root / dy_root
    return ar.times_power(ar.times_power(dx, q), q)


def centre(ar: Arithmetic, x: Any, axes: Axes) -> Any:
    """x - mean(x), with the rounding of the mean itself removed by a second subtraction.

    On a constant row d is a multiple of one ulp with few digits, and its mean m = d. sum(d) / n is
    not always that number: XLA divides by multiplying with 1 / n. But its leading digits are, and
    what they leave of the sum is exact: so the result is exactly 0.
    """
    n = ar.count(x, axes)
    d = x - ar.sum(x, axes) / n
    total = ar.sum(d, axes)
    leading = ar.leading(total / n)
    return d - (leading + (total - n * leading) / n)


def inverse_root_mean_square(ar: Arithmetic, d: Any, eps: Any, axes: Axes) -> Any:
    """r = 1 / sqrt(mean(d^2) + eps), and 0 where that is 1 / 0.

    There d is 0 all along the row: with r = 0 the row gives 0, and its gradients stay finite.
    """
    return ar.inverse_root(ar.sum(d * d, axes) / ar.count(d, axes) + eps)


def scaled(
    ar: Arithmetic, d: Any, r: Any, scale: Array | None, bias: Array | None, dtype: Any
) -> Array:
    """((d * r) * scale) + bias, rounded once to ``dtype``.

    float64 is computed in float64. So is float32, after h = d * r is trimmed to 50 bits. A half
    dtype takes h rounded once to float32, which trims it too, and goes on in float32 in the written
    order: each step is rounded by itself, the last one by ``narrow``, so that no compiler may
    contract them.
    """
    name = dtype_name(dtype)
    work = ar.to_float32 if name in HALF_DTYPES else ar.widen
    h = d * r
    y = work(ar.trimmed(h) if name == "float32" else h)
    if scale is not None:
        y = y * work(scale)
    if bias is not None:
        y = work(y) + work(bias)
    return ar.narrow(y, dtype)


def parameter_gradient(ar: Arithmetic, terms: Any, parameter: Array | None) -> Array | None:
    """``terms`` summed over the axes along which ``parameter``, shaped as x with ones, repeats."""
    if parameter is None:
        return None
    repeated = tuple(a for a in range(terms.ndim) if parameter.shape[a] == 1)
    # Without axes, NumPy sums over none and PyTorch over all. There a product makes a new array,
    # for ``terms`` may be the caller's own dy.
    total = ar.total(terms, repeated) if repeated else terms * 1.0
    return ar.narrow(total, parameter.dtype)
