"""A norm under a convention: every rounding where the original has it, and one gradient.

Names are those of docs/mathematics.md: d is x (LayerNorm: x - mean), r the factor
1 / sqrt(mean(d^2) + eps), s is scale + offset. None of the functions reads a convention's name.
"""

import math
from typing import Any

from normkit._arithmetic import Arithmetic, Array
from normkit._checks import Axes, dtype_name
from normkit._convention import Convention
from normkit._parts import over_parts
from normkit._statistics import centre, inverse_root_mean_square, parameter_gradient, unscaled
from normkit._values import (
    Dtypes,
    Value,
    by_constant,
    dtypes_of,
    mean,
    norm,
    root,
    safe_root,
    work_dtype,
)


def rounded_forward(
    ar: Arithmetic,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    eps: float,
    axes: Axes,
    c: Convention,
) -> Array:
    """d r s + bias, in the order and with the casts of ``c``."""
    dtypes = dtypes_of(x, scale, bias)
    s = _scale(_value(ar, scale), c, dtypes)
    b = _cast(_value(ar, bias), dtypes.of(c.bias))
    y = _norm(over_parts(ar, c), Value(ar, ar.widen(x), dtypes.x), s, b, eps, axes, c, dtypes)
    y = y.to(dtypes.of(c.output))
    named = {dtype_name(a.dtype): a.dtype for a in (x, scale, bias) if a is not None}
    return ar.narrow(y.held, named.get(y.dtype) or ar.dtype_called(y.dtype))


def _norm(
    ar: Any,
    x: Value,
    s: Value | None,
    b: Value | None,
    eps: float,
    axes: Axes,
    c: Convention,
    dtypes: Dtypes,
) -> Value:
    between = dtypes.of(c.between)
    x = x.to(dtypes.of(c.input))
    if c.order == "scale_input":
        x, s = _times(x, s).to(between), None
    x = Value(ar, x.held, x.dtype)  # from here on, sums run over the parts of a row
    if c.statistics == "exact":
        d, m, r = _exact_statistics(x, eps, axes, c)
        x = d if m is None else d + m
    else:
        z = x.to(dtypes.of_statistics(c))
        m = None if c.kind == "rms_norm" else mean(z, axes)
        d = x if m is None else x - m
        if c.root == "divide":
            return _plus(_times(_over_root(d, z, m, eps, axes, c).to(between), s), b)
        r = _factor(z, m, eps, axes, c)
    if c.order == "affine" and m is not None:
        a = _times(r, s).to(between)
        return x * a + _plus(-m * a, b)
    if c.order == "scale_statistic":
        return _plus(d * _times(r, s).to(between), b)
    if c.order == "scale_first":
        return _plus(_times(d, s).to(between) * r, b)
    h = d * r
    if c.statistics == "exact" and dtypes.x == "float32":  # as in normkit._statistics.scaled
        h = Value(ar, ar.trimmed(h.held), h.dtype)
    return _plus(_times(h.to(between), s), b)


# ---- s -----------------------------------------------------------------------------------------


def _value(ar: Arithmetic, array: Array | None) -> Value | None:
    return None if array is None else Value(ar, ar.widen(array), dtype_name(array.dtype))


def _scale(scale: Value | None, c: Convention, dtypes: Dtypes) -> Value | None:
    """s: scale, cast, and offset, added before or after the cast."""
    if scale is None or c.offset == 0:
        return _cast(scale, dtypes.of(c.scale))
    if c.offset_added == "before_cast":
        return (scale + c.offset).to(dtypes.of(c.scale))
    return scale.to(dtypes.of(c.scale)) + c.offset


def _cast(value: Value | None, dtype: str | None) -> Value | None:
    return None if value is None else value.to(dtype)


def _times(a: Value, b: Value | None) -> Value:
    """a b, where None stands for 1."""
    return a if b is None else a * b


def _plus(a: Value, b: Value | None) -> Value:
    """a + b, where None stands for 0."""
    return a if b is None else a + b


# ---- statistics --------------------------------------------------------------------------------


def _exact_statistics(
    x: Value, eps: float, axes: Axes, c: Convention
) -> tuple[Value, Value | None, Value]:
    """d, the mean (RMSNorm: None) and r, the latter two in float64.

    x and eps are those of rows scaled by a power of two, as in normkit._statistics: the norm of
    x q^2 with eps q^4 is that of x.
    """
    ar = x.ar
    rows, wide_eps, _q = _scaled_rows(ar, x.held, x.dtype, eps, axes, c)
    if c.kind == "rms_norm":
        d, m = Value(ar, rows, x.dtype), None
    else:
        d = Value(ar, centre(ar, rows, axes), "float64")
        m = Value(ar, rows - d.held, "float64")
    if c.eps_place == "inside":
        r = inverse_root_mean_square(ar, d.held, wide_eps, axes)
    else:
        square = ar.sum(d.held * d.held, axes) / ar.count(d.held, axes)
        r, _ = _smooth_factor(ar, square, ar.count(d.held, axes), wide_eps, c)
    return d, m, Value(ar, r, "float64")


def _scaled_rows(
    ar: Any, rows: Any, dtype: str, eps: float, axes: Axes, c: Convention
) -> tuple[Any, Any, Any]:
    """Wide rows of exact statistics under a power of two, eps with them, and its root q."""
    if c.statistics != "exact" or dtype != "float64":
        return rows, eps, 1.0
    q = ar.row_root(rows, eps, axes)
    rows = ar.times_power(ar.times_power(rows, q), q)
    return rows, eps * q * q if c.eps_place == "outside" else ar.scaled_eps(eps, q), q


def _mean_square(z: Value, m: Value | None, axes: Axes, c: Convention) -> Value:
    """mean(d^2): of z itself without a mean ``m``, else the variance in the form of ``c``."""
    ar = z.ar
    if m is None:
        return mean(z * z, axes)
    if c.variance == "fused":
        n = ar.count(z.held, axes)
        d = z.held - ar.sum(z.held, axes) / n
        return z.like(ar.sum(d * d, axes) / n)
    if c.variance == "two_pass":
        d = z - m
        return mean(d * d, axes)
    v = mean(z * z, axes) - m * m
    if c.variance == "fast":
        return v
    return Value(ar, ar.xp.where(v.held < 0, ar.xp.zeros_like(v.held), v.held), v.dtype)


def _factor(z: Value, m: Value | None, eps: float, axes: Axes, c: Convention) -> Value:
    """r."""
    ar = z.ar
    if c.eps_place == "inside":
        v = _mean_square(z, m, axes, c) + eps
        under, work = safe_root(ar, v.held), work_dtype(v.dtype)
        if c.root == "reciprocal":
            under = ar.round_to(under, work)
        return v.like(ar.round_to(1.0 / under, work))
    if c.eps_place == "outside":
        outside = _root_and_eps(z, m, eps, axes)
        return outside.like(1.0 / outside.held)
    length = _floored_length(z, m, eps, axes)
    return length.like(ar.number_in(math.sqrt(ar.count(z.held, axes)), z.dtype) / length.held)


def _over_root(d: Value, z: Value, m: Value | None, eps: float, axes: Axes, c: Convention) -> Value:
    """d over the rounded root: d r, without a rounded r."""
    if c.eps_place == "inside":
        return d / root(_mean_square(z, m, axes, c) + eps)
    if c.eps_place == "outside":
        return d / _root_and_eps(z, m, eps, axes)
    length = _floored_length(z, m, eps, axes)
    return by_constant(d / length, math.sqrt(z.ar.count(z.held, axes)))


def _floored_length(z: Value, m: Value | None, eps: float, axes: Axes) -> Value:
    """max(|d|, eps)."""
    length = norm(z if m is None else z - m, axes)
    held, least = length.held, z.ar.number_in(eps, length.dtype)
    xp = z.ar.xp  # written so that NaN stays
    return Value(z.ar, xp.where(held < least, xp.zeros_like(held) + least, held), length.dtype)


def _root_and_eps(z: Value, m: Value | None, eps: float, axes: Axes) -> Value:
    """|d| / sqrt(n) + eps."""
    length = norm(z if m is None else z - m, axes)
    return by_constant(length, z.ar.count(z.held, axes) ** -0.5) + eps


# ---- gradients ---------------------------------------------------------------------------------


def smooth_vjp(
    ar: Arithmetic,
    dy: Array,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    eps: float,
    axes: Axes,
    c: Convention,
) -> tuple[Array, Array | None, Array | None]:
    """``(dx, dscale, dbias)`` of d r s + bias without its roundings, rounded once.

    With h = d r and g = dy s: dx is the pullback of g through h, dscale = sum(dy h) and
    dbias = sum(dy). Where x is scaled first, z = x s: dx = dz s and dscale = sum(dz x).
    """
    parts = over_parts(ar, c)
    rows, wide_eps, q = _scaled_rows(parts, ar.widen(x), dtype_name(x.dtype), eps, axes, c)
    dy_root = ar.row_root(dy, 0.0, axes) if c.statistics == "exact" else 1.0
    g = ar.times_power(ar.times_power(ar.widen(dy), dy_root), dy_root)
    s = None if scale is None else ar.widen(scale) + c.offset
    if c.order == "scale_input":
        dz, _ = _pullback(ar, parts, g, rows if s is None else rows * s, wide_eps, axes, c)
        dx = dz if s is None else dz * s
        dscale = unscaled(ar, dz * rows, 1.0, dy_root)
    else:
        dx, h = _pullback(ar, parts, g if s is None else g * s, rows, wide_eps, axes, c)
        dscale = ar.widen(dy) * h
    return (
        ar.narrow(unscaled(ar, dx, q, dy_root), x.dtype),
        parameter_gradient(ar, dscale, scale),
        parameter_gradient(ar, ar.widen(dy), bias),
    )


def _pullback(
    ar: Arithmetic, parts: Any, g: Any, x: Any, eps: Any, axes: Axes, c: Convention
) -> tuple[Any, Any]:
    """``(dx, h)`` for the gradient g in h = d f(q), q = mean(d^2) over the k features seen.

    dd = g f(q) + 2 f'(q) sum(g d) d / k, the second term on those features only; LayerNorm takes
    its mean off.
    """
    d = x if c.kind == "rms_norm" else centre(parts, x, axes)
    k = parts.count(x, axes)
    r, slope = _smooth_factor(parts, parts.sum(d * d, axes) / k, k, eps, c)
    if c.partial == 1:
        total, seen = parts.sum(g * d, axes), d
    else:  # r scales all features, and depends on some
        total, seen = ar.sum(g * d, axes), parts.seen(d, axes)
    dd = g * r + 2.0 * slope * total * seen / k
    return (dd if c.kind == "rms_norm" else centre(parts, dd, axes)), d * r


def _smooth_factor(ar: Any, q: Any, k: Any, eps: Any, c: Convention) -> tuple[Any, Any]:
    """r = f(q) and f'(q); both 0 where r would be 1 / 0."""
    xp = ar.xp
    if c.eps_place == "inside":
        r = ar.inverse_root(q + eps)
        return r, -0.5 * r * r * r
    inverse = ar.inverse_root(q)  # 1 / sqrt(q), or 0
    if c.eps_place == "outside":
        below = safe_root(ar, q) + eps
        empty = below == 0
        r = xp.where(empty, below, 1.0 / xp.where(empty, xp.ones_like(below), below))
        return r, -0.5 * r * r * inverse
    above = k * q > eps * eps
    least = math.sqrt(k) / eps if eps else 0.0
    r = xp.where(above, inverse, xp.zeros_like(inverse) + least)
    return r, xp.where(above, -0.5 * r * r * r, xp.zeros_like(r))
