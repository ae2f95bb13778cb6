"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * scale + bias."""

from collections.abc import Sequence
from typing import Any

from normkit._arithmetic import Arithmetic, Array
from normkit._checks import Axes
from normkit._convention import Convention
from normkit._norm import Norm, call_norm, call_norm_vjp
from normkit._statistics import (
    inverse_root_mean_square,
    parameter_gradient,
    scaled,
    unscaled,
    wide_rows,
)


def rms_norm_forward(
    ar: Arithmetic, x: Array, scale: Array | None, bias: Array | None, eps: float, axes: Axes
) -> Array:
    """h = x r,  r = 1 / sqrt(mean(x^2) + eps);  y = h scale + bias."""
    wide, wide_eps, _ = wide_rows(ar, x, eps, axes)
    r = inverse_root_mean_square(ar, wide, wide_eps, axes)
    return scaled(ar, wide, r, scale, bias, x.dtype)


def rms_norm_pullback(
    ar: Arithmetic,
    dy: Array,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    eps: float,
    axes: Axes,
) -> tuple[Array, Array | None, Array | None]:
    """g = dy scale;  dx = r (g - h mean(g h));  dscale = sum(dy h), dbias = sum(dy) over rows."""
    wide, wide_eps, q = wide_rows(ar, x, eps, axes)
    r = inverse_root_mean_square(ar, wide, wide_eps, axes)
    h = wide * r
    rows, _, dy_q = wide_rows(ar, dy, 0.0, axes)
    g = rows if scale is None else rows * ar.widen(scale)
    c = ar.sum(g * h, axes) / ar.count(x, axes)
    dx = unscaled(ar, (g - h * c) * r, q, dy_q)
    dy = ar.widen(dy)
    return (
        ar.narrow(dx, x.dtype),
        parameter_gradient(ar, dy * h, scale),
        parameter_gradient(ar, dy, bias),
    )


RMS_NORM = Norm("rms_norm", rms_norm_forward, rms_norm_pullback)


def rms_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> Array:
    """Divide each row by its root mean square, then multiply by ``scale`` and add ``bias``.

    y = x / sqrt(mean(x^2) + eps) * scale + bias, the mean over ``axis``.

    Args:
        x: Array of any array API framework, at least one axis; float16, bfloat16, float32 or
            float64. A row is a slice along ``axis``.
        scale: Array with the sizes of the normalised axes in ascending axis order; any of the
            dtypes above. None stands for ones.
        bias: Like ``scale``. None stands for zeros.
        eps: Added to the mean square, so in units of x squared. Finite, at least 0; None is the
            convention's, for "standard" 1e-6.
        axis: One axis or several, in any order, counted from the end where negative.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`. "standard" has exact statistics and rounds once.
        kernel: Name of the kernel that shall run, such as "pairs"; ValueError where it cannot. None
            takes the first that can (docs/kernels.md).

    Returns:
        Array with the shape and device of ``x``, and its dtype where the convention names no
        other. For "standard", statistics are computed in float64. A row that holds NaN gives NaN;
        a zero row gives ``bias``, also at eps 0.

    Raises:
        TypeError: x, scale or bias is no array, not real floating, or of another framework.
        ValueError: a shape, axis, eps, convention or kernel does not fit. An empty batch is fine.

    Example:
        >>> import numpy as np
        >>> rms_norm(np.array([[1.0, 2.0, 3.0, 4.0]]), eps=0.0).round(4)
        array([[0.3651, 0.7303, 1.0954, 1.4606]])

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, arXiv:1910.07467.
    """
    return call_norm(
        RMS_NORM, x, scale, bias, eps=eps, axis=axis, convention=convention, kernel=kernel
    )


def rms_norm_vjp(
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
    """Gradients of `rms_norm`: what ``dy``, the gradient of a loss in y, becomes in its inputs.

    With r = 1 / sqrt(mean(x^2) + eps), h = x r and g = dy scale:
    dx = r (g - h mean(g h)), dscale = sum(dy h) and dbias = sum(dy) over all rows.

    Args:
        dy: Array of the shape of ``x``; any real floating dtype.
        x, scale, bias, eps, axis, convention, kernel: As in `rms_norm`. Only the shape and dtype of
            ``bias`` matter.

    Returns:
        ``(dx, dscale, dbias)`` with the shapes and dtypes of x, scale and bias; None stands
        where there was no parameter. Computed in float64, rounded once to float32 and from
        there, for a half dtype, to it.

    Raises:
        TypeError, ValueError: as `rms_norm`; ValueError where dy has not the shape of x.

    Example:
        >>> import numpy as np
        >>> x = np.array([[3.0, 4.0]])
        >>> dx, dscale, dbias = rms_norm_vjp(np.ones((1, 2)), x, np.ones(2), eps=0.0)
        >>> dx.round(4), dscale.round(4), dbias
        (array([[ 0.0453, -0.0339]]), array([0.8485, 1.1314]), None)

    Source: docs/mathematics.md derives it.
    """
    return call_norm_vjp(
        RMS_NORM, dy, x, scale, bias, eps=eps, axis=axis, convention=convention, kernel=kernel
    )
