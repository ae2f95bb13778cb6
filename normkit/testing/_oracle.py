"""Both norms and their gradients in integer arithmetic, sharing nothing with the core.

A floating-point number is an integer times a power of two, so sums and products of a row are exact.
The one irrational step, sqrt(n / A) for integers n and A, is an integer square root to 256 bits.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from normkit.testing._exact import Exact
from normkit.testing._formats import Array, format_of

_DIGITS = 256  # bits of the square root: float64 has 53, and no sum here cancels 100 of them

Finite = tuple[int, int]  # m * 2**e
Number = Finite | float  # or NaN or an infinity
Axis = int | Sequence[int]


def exact_rms_norm(
    x: Array,
    scale: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-6,
    axis: Axis = -1,
    at: Sequence[int] | None = None,
) -> Exact:
    """x / sqrt(mean(x^2) + eps) * scale + bias in real arithmetic on the given bits.

    Args:
        x: NumPy array of float16, bfloat16, float32 or float64.
        scale, bias: NumPy arrays with the sizes of the normalised axes in ascending order, or None.
        eps: Taken as the float64 that is passed.
        axis: The normalised axis or axes.
        at: Indices along the last axis, which must be the normalised one: only these elements of
            each row are returned. The statistics are those of the whole row all the same.

    Returns:
        `Exact` numbers of the shape of x, or of ``x[..., at]``. Rows with NaN or an infinity give
        what IEEE 754 makes of the formula; a zero row gives ``bias``, also at eps 0.

    Example:
        >>> exact_rms_norm(np.float32([1, 2, 3, 4]), eps=0.0).rounded("float16")
        array([0.3652, 0.7305, 1.096 , 1.461 ], dtype=float16)
    """
    return _norm(False, x, scale, bias, eps, axis, at)


def exact_layer_norm(
    x: Array,
    scale: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    axis: Axis = -1,
    at: Sequence[int] | None = None,
) -> Exact:
    """(x - mean(x)) / sqrt(var(x) + eps) * scale + bias in real arithmetic on the given bits.

    ``x``, ``scale``, ``bias``, ``eps``, ``axis``, ``at`` and the result as in `exact_rms_norm`; a
    constant row gives ``bias``, also at eps 0.

    Example:
        >>> exact_layer_norm(np.float32([1, 2, 3, 4]), eps=0.0).rounded("float16")
        array([-1.342 , -0.4473,  0.4473,  1.342 ], dtype=float16)
    """
    return _norm(True, x, scale, bias, eps, axis, at)


def exact_rms_norm_vjp(
    dy: Array,
    x: Array,
    scale: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-6,
    axis: Axis = -1,
) -> tuple[Exact, Exact | None, Exact | None]:
    """``(dx, dscale, dbias)`` of `exact_rms_norm` for the gradient ``dy`` of its result.

    Args:
        dy: NumPy array of the shape of x.
        x, scale, bias, eps, axis: As in `exact_rms_norm`, all finite.

    Returns:
        `Exact` numbers, and None where there was no parameter. A zero row at eps 0 has dx = 0.

    Example:
        >>> dx, _, _ = exact_rms_norm_vjp(np.ones(2), np.array([3.0, 4.0]), eps=0.0)
        >>> dx.values.round(4)
        array([ 0.0453, -0.0339])
    """
    return _vjp(False, dy, x, scale, bias, eps, axis)


def exact_layer_norm_vjp(
    dy: Array,
    x: Array,
    scale: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    axis: Axis = -1,
) -> tuple[Exact, Exact | None, Exact | None]:
    """``(dx, dscale, dbias)`` of `exact_layer_norm` for the gradient ``dy`` of its result.

    ``x``, ``scale``, ``bias``, ``eps``, ``axis`` and the result as in `exact_rms_norm_vjp`; a
    constant row at eps 0 has dx = 0.

    Example:
        >>> dy, x = np.array([1.0, 0.0, 0.0]), np.array([1.0, 2.0, 4.0])
        >>> exact_layer_norm_vjp(dy, x, eps=0.0)[0].values.round(4)
        array([ 0.2291, -0.3436,  0.1145])
    """
    return _vjp(True, dy, x, scale, bias, eps, axis)


class _Rows(NamedTuple):
    """An array as rows, and the way back."""

    rows: Array
    moved_shape: tuple[int, ...]
    axes: tuple[int, ...]

    def restore(self, numbers: list[Number], shape: tuple[int, ...]) -> Exact:
        order = np.arange(self.rows.size).reshape(self.moved_shape)
        last = range(-len(self.axes), 0)
        order = np.moveaxis(order, tuple(last), self.axes).reshape(-1)
        return Exact([numbers[i] for i in order], shape)


def _as_rows(x: Array, axis: Axis) -> _Rows:
    x = np.asarray(x)
    format_of(x.dtype)
    given = axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple(sorted(a % x.ndim for a in given))
    with np.errstate(invalid="ignore"):  # which ml_dtypes says of a signalling NaN
        wide = x.astype(np.float64)
    moved = np.moveaxis(wide, axes, tuple(range(-len(axes), 0)))
    width = math.prod(x.shape[a] for a in axes)
    return _Rows(moved.reshape(-1, width), moved.shape, axes)


def _number(value: float) -> Finite:
    """A finite ``value`` as m * 2**e."""
    fraction, exponent = math.frexp(value)
    return int(fraction * 2**53), exponent - 53


def _integers(values: Any) -> tuple[list[int], int]:
    """Integers and one exponent: value i is integer i times 2**exponent."""
    pairs = [_number(float(v)) for v in values]
    exponent = min((e for m, e in pairs if m), default=0)
    return [m << (e - exponent) if m else 0 for m, e in pairs], exponent


def _add(a: Finite, b: Finite) -> Finite:
    (m, e), (k, f) = a, b
    exponent = min(e, f) if m and k else (e if m else f)
    return (m << (e - exponent) if m else 0) + (k << (f - exponent) if k else 0), exponent


class _Statistics(NamedTuple):
    """One row: d_i = deviation_i 2^exponent / divisor, r = root 2^root_exponent divisor."""

    deviations: list[int]
    exponent: int
    divisor: int
    root: int
    root_exponent: int


def _statistics(row: Array, eps: float, centred: bool) -> _Statistics:
    """Deviations and 1 / (divisor sqrt(mean(d^2) + eps)), where the divisor is n for LayerNorm.

    With D = n x - sum(x) (or x, divisor 1): mean(d^2) + eps = (sum(D^2) + n divisor^2 eps) /
    (n divisor^2), so r / divisor = sqrt(n / A) for the bracket A.
    """
    n = len(row)
    integers, exponent = _integers(row)
    total = sum(integers)
    deviations = [n * m - total for m in integers] if centred else integers
    divisor = n if centred else 1
    square = (sum(m * m for m in deviations), 2 * exponent)
    m, e = _number(eps)
    bracket, bracket_exponent = _add(square, (n * divisor**2 * m, e))
    if bracket == 0:
        return _Statistics(deviations, exponent, divisor, 0, 0)
    if bracket_exponent % 2:
        bracket, bracket_exponent = bracket << 1, bracket_exponent - 1
    shift = 2 * _DIGITS + bracket.bit_length()
    shift += shift % 2
    root = math.isqrt((n << shift) // bracket)
    return _Statistics(deviations, exponent, divisor, root, -shift // 2 - bracket_exponent // 2)


def _norm(
    centred: bool,
    x: Array,
    scale: Any,
    bias: Any,
    eps: float,
    axis: Axis,
    at: Sequence[int] | None,
) -> Exact:
    view = _as_rows(x, axis)
    if at is not None and view.axes != (np.ndim(x) - 1,):
        raise ValueError(f"at needs the last axis alone to be normalised; got axis {axis}")
    width = view.rows.shape[1]
    scales = _parameter(scale, width, 1.0)
    biases = _parameter(bias, width, 0.0)
    wanted = range(width) if at is None else [int(i) for i in at]
    numbers: list[Number] = []
    largest: list[Number] = []
    for row in view.rows:
        if np.isfinite(row).all():
            found = _statistics(row, eps, centred)
            m = max(max(found.deviations), -min(found.deviations)) * found.root
            largest += [(m, found.exponent + found.root_exponent)] * len(wanted)
            for i in wanted:
                (w, we), (b, be) = scales[i], biases[i]
                m = found.deviations[i] * found.root * w
                numbers.append(_add((m, found.exponent + found.root_exponent + we), (b, be)))
        else:
            special = _special_row(row, biases, centred)
            numbers += [special[i] for i in wanted]
            largest += [0.0] * len(wanted)
    if at is not None:
        shape = (*np.shape(x)[:-1], len(wanted))
        return Exact(numbers, shape, Exact(largest, shape).values)
    exact = view.restore(numbers, np.shape(x))
    exact.largest = view.restore(largest, np.shape(x)).values
    return exact


def _special_row(row: Array, biases: list[Finite], centred: bool) -> list[Number]:
    """NaN all over, but for the finite elements of an RMSNorm row with an infinity: h = 0."""
    if centred or np.isnan(row).any():
        return [math.nan] * len(row)
    return [b if math.isfinite(v) else math.nan for v, b in zip(row, biases, strict=True)]


def _parameter(parameter: Any, width: int, default: float) -> list[Finite]:
    values = [default] * width if parameter is None else np.asarray(parameter).reshape(-1)
    return [_number(float(v)) for v in values]


def _vjp(
    centred: bool, dy: Array, x: Array, scale: Any, bias: Any, eps: float, axis: Axis
) -> tuple[Exact, Exact | None, Exact | None]:
    view, dys = _as_rows(x, axis), _as_rows(dy, axis).rows
    width = view.rows.shape[1]
    weights, weight_exponent = _integers([1.0] * width if scale is None else np.ravel(scale))
    dx: list[Number] = []
    dscale = [(0, 0)] * width
    dbias = [(0, 0)] * width
    for row, dy_row in zip(view.rows, dys, strict=True):
        found = _statistics(row, eps, centred)
        upstream, upstream_exponent = _integers(dy_row)
        h = [d * found.root for d in found.deviations]
        h_exponent = found.exponent + found.root_exponent
        g = [u * w for u, w in zip(upstream, weights, strict=True)]
        inner = sum(u * v for u, v in zip(g, h, strict=True))
        mean_g = sum(g) if centred else 0
        for gi, hi in zip(g, h, strict=True):
            # n (g - mean(g) - h mean(g h)), then times r / n
            bracket = _add((width * gi - mean_g, 0), (-hi * inner, 2 * h_exponent))
            m = bracket[0] * found.root * found.divisor
            e = bracket[1] + upstream_exponent + weight_exponent + found.root_exponent
            dx.append(((m << _DIGITS) // width, e - _DIGITS))
        for i in range(width):
            dscale[i] = _add(dscale[i], (upstream[i] * h[i], upstream_exponent + h_exponent))
            dbias[i] = _add(dbias[i], (upstream[i], upstream_exponent))
    return (
        view.restore(dx, np.shape(x)),
        None if scale is None else Exact(dscale, np.shape(scale)),
        None if bias is None else Exact(dbias, np.shape(bias)),
    )
