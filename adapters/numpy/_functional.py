"""The public functions on NumPy arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from normkit import Convention, _checks
from normkit._kernel import choose
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Call, Norm, check_call, formulas
from normkit._residual import residual_sum
from normkit._rms_norm import RMS_NORM

from . import _cpu
from ._arithmetic import ARITHMETIC

Array = np.ndarray[Any, Any]

HOST = _checks.Host("numpy", (np.ndarray, np.generic))


KERNELS = (_cpu.KERNEL, *formulas(lambda x: ARITHMETIC))


def rms_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
    out: Array | None = None,
) -> Array:
    """RMSNorm of a NumPy array: y = x / sqrt(mean(x^2) + eps) * scale + bias.

    Args:
        x: Real floating array (ml_dtypes' bfloat16 too) of any strides, with at least one axis;
            it is not written to, and may be read-only.
        scale: Array with the sizes of the normalised axes in ascending order, or None for ones.
        bias: Like ``scale``, or None for zeros.
        eps: Added to the mean square, in units of x squared; None is the
            convention's, for "standard" 1e-6.
        axis: The normalised axis or axes.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`.
        kernel: Name of the kernel that shall run, or None for the first that can.
        out: Array of the shape and dtype of the result to write it to and return; may be x.

    Returns:
        Array of the shape of ``x``, and of its dtype where the convention names no other.

    Raises:
        TypeError, ValueError: as `normkit.rms_norm`, with the same text; also where ``out``
            differs from the result in shape or dtype.

    Example:
        >>> import numpy as np
        >>> rms_norm(np.array([[1.0, 2.0, 3.0, 4.0]], np.float32), eps=0.0).round(4)
        array([[0.3651, 0.7303, 1.0954, 1.4606]], dtype=float32)

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    return _norm(
        RMS_NORM, x, scale, bias, out, eps=eps, axis=axis, convention=convention, kernel=kernel
    )


def layer_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
    out: Array | None = None,
) -> Array:
    """LayerNorm of a NumPy array: y = (x - mean(x)) / sqrt(var(x) + eps) * scale + bias.

    Args:
        x, scale, bias, axis, convention, kernel, out: As in `rms_norm`.
        eps: Added to the variance, in units of x squared; None is the convention's, for
            "standard" 1e-5.

    Returns:
        Array of the shape of ``x``, and of its dtype where the convention names no other.

    Raises:
        TypeError, ValueError: as `normkit.layer_norm`, with the same text; also where ``out``
            differs from the result in shape or dtype.

    Example:
        >>> import numpy as np
        >>> layer_norm(np.array([[1.0, 2.0, 3.0, 4.0]], np.float32), eps=0.0).round(4)
        array([[-1.3416, -0.4472,  0.4472,  1.3416]], dtype=float32)

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    return _norm(
        LAYER_NORM, x, scale, bias, out, eps=eps, axis=axis, convention=convention, kernel=kernel
    )


def add_rms_norm(
    x: Array,
    residual: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[Array, Array]:
    """``(rms_norm(s, scale, bias), s)`` with s = x + residual, rounded to their dtype.

    Args:
        residual: Array of the shape and dtype of ``x``.
        x, scale, bias, eps, axis, convention, kernel: As in `rms_norm`.

    Returns:
        Two new arrays of the shape of ``x``; s has its dtype.

    Raises:
        TypeError, ValueError: as `normkit.add_rms_norm`, with the same text.

    Example:
        >>> import numpy as np
        >>> y, s = add_rms_norm(np.array([1.0, 1.0]), np.array([2.0, 3.0]), eps=0.0)
        >>> y.round(4), s
        (array([0.8485, 1.1314]), array([3., 4.]))

    Source: see `normkit.add_rms_norm`.
    """
    return _add_norm(
        RMS_NORM, x, residual, scale, bias, eps=eps, axis=axis, convention=convention, kernel=kernel
    )


def add_layer_norm(
    x: Array,
    residual: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[Array, Array]:
    """``(layer_norm(s, scale, bias), s)`` with s = x + residual, rounded to their dtype.

    Args:
        residual: Array of the shape and dtype of ``x``.
        x, scale, bias, eps, axis, convention, kernel: As in `layer_norm`.

    Returns:
        Two new arrays of the shape of ``x``; s has its dtype.

    Raises:
        TypeError, ValueError: as `normkit.add_layer_norm`, with the same text.

    Example:
        >>> import numpy as np
        >>> add_layer_norm(np.array([1.0, 1.0]), np.array([2.0, 3.0]), eps=0.0)
        (array([-1.,  1.]), array([3., 4.]))

    Source: see `normkit.add_layer_norm`.
    """
    return _add_norm(
        LAYER_NORM,
        x,
        residual,
        scale,
        bias,
        eps=eps,
        axis=axis,
        convention=convention,
        kernel=kernel,
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
    """``(dx, dscale, dbias)`` of `rms_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.rms_norm_vjp`, with the same arguments, errors and source.

    Example:
        >>> import numpy as np
        >>> dx, dscale, dbias = rms_norm_vjp(np.ones(2), np.array([3.0, 4.0]), eps=0.0)
        >>> dx.round(4), dscale, dbias
        (array([ 0.0453, -0.0339]), None, None)
    """
    return _norm_vjp(
        RMS_NORM, dy, x, scale, bias, eps=eps, axis=axis, convention=convention, kernel=kernel
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
    """``(dx, dscale, dbias)`` of `layer_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.layer_norm_vjp`, with the same arguments, errors and source.

    Example:
        >>> import numpy as np
        >>> dy, x = np.array([1.0, 0.0, 0.0]), np.array([1.0, 2.0, 4.0])
        >>> layer_norm_vjp(dy, x, eps=0.0)[0].round(4)
        array([ 0.2291, -0.3436,  0.1145])
    """
    return _norm_vjp(
        LAYER_NORM, dy, x, scale, bias, eps=eps, axis=axis, convention=convention, kernel=kernel
    )


def _check(norm: Norm, x: Array, scale: Any, bias: Any, **options: Any) -> Call:
    _checks.no_mask(x=x, scale=scale, bias=bias)
    return check_call(norm, x, scale, bias, host=HOST, **options)


def _norm(
    norm: Norm,
    x: Array,
    scale: Any,
    bias: Any,
    out: Array | None,
    **options: Any,
) -> Any:
    call = _check(norm, x, scale, bias, **options)
    if out is not None:
        _checks.same_framework(HOST, out=out)
        _checks.same_shape("out", out, x.shape)
    kernel = choose(KERNELS, x, call)
    if (
        out is not None
        and kernel is _cpu.KERNEL
        and out.flags.writeable
        and isinstance(out, np.ndarray)
    ):
        _checks.dtype_of_result("out", out, x)
        return _cpu.forward_to(out, norm, x, scale, bias, call)
    y = kernel.forward(norm, x, scale, bias, call)
    if out is None:
        return y
    _checks.dtype_of_result("out", out, y)
    np.copyto(out, y)
    return out


def _norm_vjp(norm: Norm, dy: Array, x: Array, scale: Any, bias: Any, **options: Any) -> Any:
    call = _check(norm, x, scale, bias, dy=dy, **options)
    return choose(KERNELS, x, call).vjp(norm, dy, x, scale, bias, call)


def _add_norm(
    norm: Norm, x: Array, residual: Array, scale: Any, bias: Any, **options: Any
) -> tuple[Array, Array]:
    call = _check(norm, x, scale, bias, residual=residual, **options)
    _checks.same_dtype("residual", residual, x)
    kernel = choose(KERNELS, x, call)
    if kernel is _cpu.KERNEL:
        return _cpu.add_forward(norm, x, residual, scale, bias, call)
    with ARITHMETIC.scope():
        total = residual_sum(ARITHMETIC, x, residual)
    return kernel.forward(norm, total, scale, bias, call), total
