"""Residual addition followed by a norm, as in a pre-norm transformer block."""

from collections.abc import Sequence
from typing import Any

from normkit import _checks
from normkit._arithmetic import Arithmetic, Array, arithmetic_of
from normkit._convention import Convention
from normkit._kernel import choose
from normkit._layer_norm import LAYER_NORM
from normkit._norm import KERNELS, Norm, check_call
from normkit._rms_norm import RMS_NORM


def residual_sum(ar: Arithmetic, x: Array, residual: Array) -> Array:
    """x + residual, rounded once to their dtype: the wide type holds the sum with bits to spare."""
    return ar.narrow(ar.widen(x) + ar.widen(residual), x.dtype)


def _add_norm(
    norm: Norm,
    x: Array,
    residual: Array,
    scale: Array | None,
    bias: Array | None,
    **options: Any,
) -> tuple[Array, Array]:
    call = check_call(norm, x, scale, bias, residual=residual, **options)
    _checks.same_dtype("residual", residual, x)
    ar = arithmetic_of(x).on_device_of(x)
    with ar.scope():
        total = residual_sum(ar, x, residual)
    return choose(KERNELS, x, call).forward(norm, total, scale, bias, call), total


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
    """`rms_norm` of ``x + residual``, and that sum, which is the next block's residual.

    s = x + residual, rounded to their dtype; y = rms_norm(s, scale, bias).

    Args:
        x: As in `rms_norm`.
        residual: Array of the shape and dtype of ``x``.
        scale, bias, eps, axis, convention, kernel: As in `rms_norm`.

    Returns:
        ``(y, s)``, s with the shape, dtype and device of ``x``, y as `rms_norm` gives it. y is the
        norm of the s that is returned, bit for bit.

    Raises:
        TypeError, ValueError: as `rms_norm`, and where residual differs from x in dtype or shape.

    Example:
        >>> import numpy as np
        >>> y, s = add_rms_norm(np.array([[1.0, 1.0]]), np.array([[2.0, 3.0]]), eps=0.0)
        >>> y.round(4), s
        (array([[0.8485, 1.1314]]), array([[3., 4.]]))

    Source: the pre-norm residual block of Xiong et al. 2020, arXiv:2002.04745.
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
    """`layer_norm` of ``x + residual``, and that sum, which is the next block's residual.

    s = x + residual, rounded to their dtype; y = layer_norm(s, scale, bias).

    Args:
        x: As in `layer_norm`.
        residual: Array of the shape and dtype of ``x``.
        scale, bias, eps, axis, convention, kernel: As in `layer_norm`.

    Returns:
        ``(y, s)``, s with the shape, dtype and device of ``x``, y as `layer_norm` gives it. y is the
        norm of the s that is returned, bit for bit.

    Raises:
        TypeError, ValueError: as `layer_norm`, and where residual differs from x in dtype or shape.

    Example:
        >>> import numpy as np
        >>> y, s = add_layer_norm(np.array([[1.0, 1.0]]), np.array([[2.0, 3.0]]), eps=0.0)
        >>> y, s
        (array([[-1.,  1.]]), array([[3., 4.]]))

    Source: the pre-norm residual block of Xiong et al. 2020, arXiv:2002.04745.
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
