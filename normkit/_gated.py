"""Gated RMSNorm: an RMSNorm, before or after whose statistics a gate is multiplied."""

from collections.abc import Sequence
from typing import Any

from normkit._arithmetic import Arithmetic, Array, arithmetic_of
from normkit._convention import Convention
from normkit._kernel import choose
from normkit._norm import KERNELS, Call, Norm, along, check_call
from normkit._rounded import rounded_forward, smooth_gated_vjp

Gradients = tuple[Array, Array, Array | None, Array | None]


def gated_forward(
    ar: Arithmetic, x: Array, gate: Array, scale: Array | None, bias: Array | None, call: Call
) -> Array:
    """The gated norm on checked public arguments."""
    scale, bias = (along(p, x, call.axes, ar.xp.reshape) for p in (scale, bias))
    return rounded_forward(ar, x, scale, bias, call.eps, call.axes, call.convention, gate)


def gated_pullback(
    ar: Arithmetic,
    dy: Array,
    x: Array,
    gate: Array,
    scale: Array | None,
    bias: Array | None,
    call: Call,
) -> Gradients:
    """``(dx, dgate, dscale, dbias)`` on checked public arguments."""
    wide_scale, wide_bias = (along(p, x, call.axes, ar.xp.reshape) for p in (scale, bias))
    dx, dgate, dscale, dbias = smooth_gated_vjp(
        ar, dy, x, gate, wide_scale, wide_bias, call.eps, call.axes, call.convention
    )
    if scale is not None:
        dscale = ar.xp.reshape(dscale, tuple(scale.shape))
    if bias is not None:
        dbias = ar.xp.reshape(dbias, tuple(bias.shape))
    return dx, dgate, dscale, dbias


# Its formulas take a gate more than those of the other norms, and so have no kernel table.
GATED_RMS_NORM = Norm("gated_rms_norm", gated_forward, gated_pullback)


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
    """RMSNorm with a gate, whose activation multiplies x before the norm, or the norm.

    With a = gate / (1 + exp(-gate)), or the sigmoid where the convention has it:
    y = rms_norm(x, scale, bias) a, or with ``gate="before"`` y = rms_norm(x a, scale, bias).

    Args:
        x: As in `rms_norm`.
        gate: Array of the shape of ``x``; any of its dtypes.
        scale, bias, eps, axis: As in `rms_norm`.
        convention: Whose roundings to follow, and where the gate goes: a name of
            `normkit.conventions.GATED_RMS_NORM`, or a `normkit.Convention` of that kind.
            "standard" has the gate after the norm, exact statistics, and rounds as `rms_norm` does.

    Returns:
        Array with the shape and device of ``x``, and its dtype where the convention names no other.
        Frameworks differ in the last bit of exp in float64, and so in one of some 10^8 results.

    Raises:
        TypeError, ValueError: as `rms_norm`, and where gate is no floating array of the shape of x.

    Example:
        >>> import numpy as np
        >>> x, gate = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.0, 1.0, 2.0, -1.0]])
        >>> gated_rms_norm(x, gate, eps=0.0).round(4)
        array([[ 0.    ,  0.5339,  1.9297, -0.3928]])

    Source: Dao and Gu 2024, arXiv:2405.21060, section 7; transformers MambaRMSNormGated (before),
    Qwen3NextRMSNormGated (after).
    """
    call = _check(x, gate, scale, bias, eps=eps, axis=axis, convention=convention)
    ar = arithmetic_of(x)
    with ar.scope():
        return gated_forward(ar, x, gate, scale, bias, call)


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
    """Gradients of `gated_rms_norm`: what ``dy``, the gradient of a loss in y, becomes.

    After the norm n, with a the activation and a' its slope: dgate = dy n a', and the rest is
    `rms_norm_vjp` of dy a. Before it: with dz the gradient of the norm of z = x a, dx = dz a and
    dgate = dz x a'. With s the sigmoid of g, silu has a' = s (1 + g (1 - s)), sigmoid s (1 - s).

    Args:
        dy: Array of the shape of ``x``; any real floating dtype.
        x, gate, scale, bias, eps, axis, convention: As in `gated_rms_norm`.

    Returns:
        ``(dx, dgate, dscale, dbias)`` with the shapes and dtypes of x, gate, scale and bias; None
        stands where there was no parameter. Computed in float64 and rounded as in `rms_norm_vjp`.

    Raises:
        TypeError, ValueError: as `gated_rms_norm`; ValueError where dy has not the shape of x.

    Example:
        >>> import numpy as np
        >>> x, gate = np.array([[3.0, 4.0]]), np.array([[0.0, 0.0]])
        >>> dx, dgate, dscale, dbias = gated_rms_norm_vjp(np.ones((1, 2)), x, gate, eps=0.0)
        >>> dx, dgate.round(4), dscale, dbias  # silu is 0 at 0, with slope 1/2
        (array([[0., 0.]]), array([[0.4243, 0.5657]]), None, None)

    Source: docs/mathematics.md derives it.
    """
    call = _check(x, gate, scale, bias, dy=dy, eps=eps, axis=axis, convention=convention)
    ar = arithmetic_of(x)
    with ar.scope():
        return gated_pullback(ar, dy, x, gate, scale, bias, call)


def _check(x: Array, gate: Array, scale: Any, bias: Any, **options: Any) -> Call:
    call = check_call(GATED_RMS_NORM, x, scale, bias, gate=gate, **options)
    choose(KERNELS, x, call)  # refuses a device without float64
    return call
