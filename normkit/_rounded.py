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
from normkit._statistics import centre, parameter_gradient, unscaled
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
    gate: Array | None = None,
) -> Array:
    """d r s + bias, in the order and with the casts of ``c``; times the activation of ``gate``."""
    dtypes = dtypes_of(x, scale, bias)
    s = _scale(_value(ar, scale), c, dtypes)
    b = _cast(_value(ar, bias), dtypes.of(c.bias))
    z = Value(ar, ar.widen(x), dtypes.x).to(dtypes.of(c.input))
    factor = _cast(_value(ar, gate), dtypes.of_statistics(c))
    if factor is not None:
        factor = factor.like(activated(ar, factor.held, c)[0])
    if c.gate == "before":
        z = _times(z, factor)
    y = _norm(over_parts(ar, c), z, s, b, eps, axes, c, dtypes)
    if c.gate == "after":
        y = _times(y, factor)
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
    if c.order == "scale_input":
        x, s = _times(x, s).to(between), None
    x = Value(ar, x.held, x.dtype)  # from here on, sums run over the parts of a row
    if c.statistics == "exact":
        d, m, r = _exact_statistics(x, eps, axes, c)
        x = d if m is None else d + m
    else:
        z = x.to(dtypes.of_statistics(c))
        m = mean(z, axes) if c.kind == "layer_norm" else None
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


def activated(ar: Arithmetic, g: Any, c: Convention) -> tuple[Any, Any]:
    """The activation of a wide gate g, and its slope. Not rounded.

    exp sees no positive number: an infinite one would make NaN of the derivatives.
    """
    xp, negative = ar.xp, g < 0
    e = xp.exp(xp.where(negative, g, -g))
    one = xp.ones_like(e)
    sigmoid, rest = xp.where(negative, e, one) / (1.0 + e), xp.where(negative, one, e) / (1.0 + e)
    if c.activation == "sigmoid":
        return sigmoid, sigmoid * rest
    return g * sigmoid, sigmoid * (1.0 + g * rest)


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
    if c.kind == "layer_norm":
        d = Value(ar, centre(ar, rows, axes), "float64")
        m = Value(ar, rows - d.held, "float64")
    else:
        d, m = Value(ar, rows, x.dtype), None
    n = _divisor(ar, d.held, axes, c)
    r, _ = _smooth_factor(ar, ar.sum(d.held * d.held, axes) / n, n, wide_eps, c)
    return d, m, Value(ar, r, "float64")


def _divisor(ar: Any, x: Any, axes: Axes, c: Convention) -> Any:
    """What the sum of squares is divided by."""
    return ar.count(x, axes) if c.reduction == "mean" else 1


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
    """mean(d^2), or the sum: of z itself without a mean ``m``, else the variance in the form of ``c``."""
    ar = z.ar
    if m is None:
        return mean(z * z, axes, _divisor(ar, z.held, axes, c))
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
        outside = _root_and_eps(z, m, eps, axes, c)
        return outside.like(1.0 / outside.held)
    length, n = _floored_length(z, m, eps, axes), _divisor(ar, z.held, axes, c)
    return by_constant(length.like(1.0 / length.held), math.sqrt(n))  # as PyTorch divides a number


def _over_root(d: Value, z: Value, m: Value | None, eps: float, axes: Axes, c: Convention) -> Value:
    """d over the rounded root: d r, without a rounded r."""
    if c.eps_place == "inside":
        return d / root(_mean_square(z, m, axes, c) + eps)
    if c.eps_place == "outside":
        return d / _root_and_eps(z, m, eps, axes, c)
    length = _floored_length(z, m, eps, axes)
    return by_constant(d / length, math.sqrt(_divisor(z.ar, z.held, axes, c)))


def _floored_length(z: Value, m: Value | None, eps: float, axes: Axes) -> Value:
    """max(|d|, eps)."""
    length = norm(z if m is None else z - m, axes)
    held, least = length.held, z.ar.number_in(eps, length.dtype)
    xp = z.ar.xp  # written so that NaN stays
    return Value(z.ar, xp.where(held < least, xp.zeros_like(held) + least, held), length.dtype)


def _root_and_eps(z: Value, m: Value | None, eps: float, axes: Axes, c: Convention) -> Value:
    """|d| / sqrt(n) + eps."""
    length = norm(z if m is None else z - m, axes)
    return by_constant(length, _divisor(z.ar, z.held, axes, c) ** -0.5) + eps


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


def smooth_gated_vjp(
    ar: Arithmetic,
    dy: Array,
    x: Array,
    gate: Array,
    scale: Array | None,
    bias: Array | None,
    eps: float,
    axes: Axes,
    c: Convention,
) -> tuple[Array, Array, Array | None, Array | None]:
    """``(dx, dgate, dscale, dbias)`` of a gated norm without its roundings, rounded once.

    Before the norm, z = x a: dx = dz a and dgate = dz x a'. After it: the gradients of the norm n
    for dy a, and dgate = dy n a'.
    """
    wide_x, wide_dy = ar.widen(x), ar.widen(dy)
    a, slope = activated(ar, ar.widen(gate), c)
    if c.gate == "before":
        dz, dscale, dbias = smooth_vjp(ar, dy, wide_x * a, scale, bias, eps, axes, c)
        dx, dgate = dz * a, dz * wide_x * slope
    else:
        dx, dscale, dbias = smooth_vjp(ar, wide_dy * a, wide_x, scale, bias, eps, axes, c)
        dgate = wide_dy * _smooth_norm(ar, wide_x, scale, bias, eps, axes, c) * slope
    return ar.narrow(dx, x.dtype), ar.narrow(dgate, gate.dtype), dscale, dbias


def _smooth_norm(
    ar: Arithmetic,
    x: Any,
    scale: Array | None,
    bias: Array | None,
    eps: float,
    axes: Axes,
    c: Convention,
) -> Any:
    """d r s + bias of wide x, not rounded."""
    parts = over_parts(ar, c)
    s = None if scale is None else ar.widen(scale) + c.offset
    first = c.order == "scale_input" and s is not None
    rows, wide_eps, _ = _scaled_rows(parts, x * s if first else x, "float64", eps, axes, c)
    d, r, _ = _smooth_statistics(parts, rows, wide_eps, axes, c)
    h = d * r
    y = h if s is None or first else h * s
    return y if bias is None else y + ar.widen(bias)


def _pullback(
    ar: Arithmetic, parts: Any, g: Any, x: Any, eps: Any, axes: Axes, c: Convention
) -> tuple[Any, Any]:
    """``(dx, h)`` for the gradient g in h = d f(q), q = mean(d^2) over the k features seen (or 1).

    dd = g f(q) + 2 f'(q) sum(g d) d / k, the second term on those features only; LayerNorm takes
    its mean off.
    """
    d, r, slope = _smooth_statistics(parts, x, eps, axes, c)
    k = _divisor(parts, x, axes, c)
    if c.partial == 1:
        total, seen = parts.sum(g * d, axes), d
    else:  # r scales all features, and depends on some
        total, seen = ar.sum(g * d, axes), parts.seen(d, axes)
    dd = g * r + 2.0 * slope * total * seen / k
    return (centre(parts, dd, axes) if c.kind == "layer_norm" else dd), d * r


def _smooth_statistics(
    parts: Any, x: Any, eps: Any, axes: Axes, c: Convention
) -> tuple[Any, Any, Any]:
    """d, r = f(q) and f'(q)."""
    d = centre(parts, x, axes) if c.kind == "layer_norm" else x
    k = _divisor(parts, x, axes, c)
    r, slope = _smooth_factor(parts, parts.sum(d * d, axes) / k, k, eps, c)
    return d, r, slope


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
