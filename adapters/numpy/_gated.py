"""Gated RMSNorm on NumPy arrays."""

from collections.abc import Sequence
from typing import Any

from normkit import Convention, _checks
from normkit._gated import GATED_RMS_NORM, gated_forward, gated_pullback
from normkit._norm import Call, check_call

from ._arithmetic import ARITHMETIC
from ._functional import HOST, Array


def gated_rms_norm(
    x: Array,
    gate: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
) -> Array:
    """RMSNorm with a gate: y = rms_norm(x, scale, bias) a, or y = rms_norm(x a, scale, bias).

    Args:
        x: As in `rms_norm`.
        gate: Array of the shape of ``x``, whose activation is a.
        scale, bias, eps, axis: As in `rms_norm`.
        convention: Whose roundings to follow, and where the gate goes: a name of
            `normkit.conventions.GATED_RMS_NORM`, or a `normkit.Convention` of that kind.

    Returns:
        Array of the shape of ``x``, and of its dtype where the convention names no other.

    Raises:
        TypeError, ValueError: as `normkit.gated_rms_norm`, with the same text.

    Example:
        >>> import numpy as np
        >>> gated_rms_norm(np.array([[3.0, 4.0]]), np.array([[1.0, -1.0]]), eps=0.0).round(4)
        array([[ 0.6203, -0.3043]])

    Source: see `normkit.gated_rms_norm`.
    """
    call = _check(x, gate, scale, bias, eps=eps, axis=axis, convention=convention)
    with ARITHMETIC.scope():
        return gated_forward(ARITHMETIC, x, gate, scale, bias, call)


def gated_rms_norm_vjp(
    dy: Array,
    x: Array,
    gate: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
) -> tuple[Any, Any, Any, Any]:
    """``(dx, dgate, dscale, dbias)`` of `gated_rms_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.gated_rms_norm_vjp`, with the same arguments, errors and source.

    Example:
        >>> import numpy as np
        >>> x, gate = np.array([3.0, 4.0]), np.zeros(2)
        >>> gated_rms_norm_vjp(np.ones(2), x, gate, eps=0.0)[1].round(4)
        array([0.4243, 0.5657])
    """
    call = _check(x, gate, scale, bias, dy=dy, eps=eps, axis=axis, convention=convention)
    with ARITHMETIC.scope():
        return gated_pullback(ARITHMETIC, dy, x, gate, scale, bias, call)


def _check(x: Array, gate: Array, scale: Any, bias: Any, **options: Any) -> Call:
    _checks.no_mask(x=x, gate=gate, scale=scale, bias=bias)
    return check_call(GATED_RMS_NORM, x, scale, bias, host=HOST, gate=gate, **options)
