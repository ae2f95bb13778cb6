"""LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) * scale + bias."""

from collections.abc import Sequence
from typing import Any

from normkit._arithmetic import Arithmetic, Array
from normkit._checks import Axes
from normkit._convention import Convention
from normkit._norm import Norm, call_norm, call_norm_vjp
from normkit._statistics import (
    centre,
    inverse_root_mean_square,
    parameter_gradient,
    scaled,
    unscaled,
    wide_rows,
)


def layer_norm_forward(
    ar: Arithmetic, x: Array, scale: Array | None, bias: Array | None, eps: float, axes: Axes
) -> Array:
    """d = x - mean(x);  h = d r,  r = 1 / sqrt(mean(d^2) + eps);  y = h scale + bias."""
    wide, wide_eps, _ = wide_rows(ar, x, eps, axes)
    d = centre(ar, wide, axes)
    r = inverse_root_mean_square(ar, d, wide_eps, axes)
    return scaled(ar, d, r, scale, bias, x.dtype)


def layer_norm_pullback(
    ar: Arithmetic,
    dy: Array,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    eps: float,
    axes: Axes,
) -> tuple[Array, Array | None, Array | None]:
    """g = dy scale;  dx = r (g - mean(g) - h mean(g h));  dscale = sum(dy h), dbias = sum(dy)."""
    wide, wide_eps, q = wide_rows(ar, x, eps, axes)
    d = centre(ar, wide, axes)
    r = inverse_root_mean_square(ar, d, wide_eps, axes)
    h = d * r
    rows, _, dy_q = wide_rows(ar, dy, 0.0, axes)
    g = rows if scale is None else rows * ar.widen(scale)
    c = ar.sum(g * h, axes) / ar.count(x, axes)
    dx = unscaled(ar, (centre(ar, g, axes) - h * c) * r, q, dy_q)
    dy = ar.widen(dy)
    return (
        ar.narrow(dx, x.dtype),
        parameter_gradient(ar, dy * h, scale),
        parameter_gradient(ar, dy, bias),
    )


LAYER_NORM = Norm("layer_norm", layer_norm_forward, layer_norm_pullback)


def layer_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> Array:
    """Subtract each row's mean, divide by its standard deviation, then scale and add ``bias``.

    y = (x - mean(x)) / sqrt(var(x) + eps) * scale + bias, mean and variance over ``axis``; the
    variance is the mean of (x - mean(x))^2, not corrected for the lost degree of freedom.

    Args:
        x: Array of any array API framework, at least one axis; float16, bfloat16, float32 or
            float64. A row is a slice along ``axis``.
        scale: Array with the sizes of the normalised axes in ascending axis order; any of the
            dtypes above. None stands for ones.
        bias: Like ``scale``. None stands for zeros.
        eps: Added to the variance, so in units of x squared. Finite, at least 0; None is the
            convention's, for "standard" 1e-5.
        axis: One axis or several, in any order, counted from the end where negative.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`. "standard" has exact statistics and rounds once.
        kernel: Name of the kernel that shall run, such as "pairs"; ValueError where it cannot. None
            takes the first that can (docs/kernels.md).

    Returns:
        Array with the shape and device of ``x``, and its dtype where the convention names no
        other. For "standard", the mean is subtracted in float64, twice. A row that holds NaN or an
        infinity gives NaN; a constant row gives exactly ``bias``, also at eps 0.

    Raises:
        TypeError: x, scale or bias is no array, not real floating, or of another framework.
        ValueError: a shape, axis, eps, convention or kernel does not fit. An empty batch is fine.

    Example:
        >>> import numpy as np
        >>> layer_norm(np.array([[1.0, 2.0, 3.0, 4.0]]), eps=0.0).round(4)
        array([[-1.3416, -0.4472,  0.4472,  1.3416]])

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016, arXiv:1607.06450.
    """
    return call_norm(
        LAYER_NORM, x, scale, bias, eps=eps, axis=axis, convention=convention, kernel=kernel
    )


def layer_norm_vjp(
    dy: Array,
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[Any, Any, Any]:
    """Gradients of `layer_norm`: what ``dy``, the gradient of a loss in y, becomes in its inputs.

    With h = (x - mean(x)) r, r = 1 / sqrt(var(x) + eps) and g = dy scale:
    dx = r (g - mean(g) - h mean(g h)), dscale = sum(dy h) and dbias = sum(dy) over all rows.

    Args:
        dy: Array of the shape of ``x``; any real floating dtype.
        x, scale, bias, eps, axis, convention, kernel: As in `layer_norm`. Only the shape and dtype of
            ``bias`` matter.

    Returns:
        ``(dx, dscale, dbias)`` with the shapes and dtypes of x, scale and bias; None stands
        where there was no parameter. Computed in float64, rounded once to float32 and from
        there, for a half dtype, to it.

    Raises:
        TypeError, ValueError: as `layer_norm`; ValueError where dy has not the shape of x.

    Example:
        >>> import numpy as np
        >>> x, dy = np.array([[1.0, 2.0, 4.0]]), np.array([[1.0, 0.0, 0.0]])
        >>> dx, dscale, dbias = layer_norm_vjp(dy, x, np.ones(3), eps=0.0)
        >>> dx.round(4), dscale.round(4), dbias
        (array([[ 0.2291, -0.3436,  0.1145]]), array([-1.069,  0.   ,  0.   ]), None)

    Source: docs/mathematics.md derives it.
    """
    return call_norm_vjp(
        LAYER_NORM, dy, x, scale, bias, eps=eps, axis=axis, convention=convention, kernel=kernel
    )
