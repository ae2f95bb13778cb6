"""Gated RMSNorm on JAX arrays."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from normkit import Convention
from normkit._gated import GATED_RMS_NORM, gated_forward, gated_pullback
from normkit._kernel import choose
from normkit._norm import Call, check_call

from ._arithmetic import JaxArithmetic, SmoothArithmetic
from ._functional import HOST, KERNELS, differentiable

_static = partial(jax.jit, static_argnames=("call", "axis_name"))


def gated_rms_norm(
    x: jax.Array,
    gate: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str | Convention = "standard",
) -> jax.Array:
    """RMSNorm with a gate: y = rms_norm(x, scale, bias) a, or y = rms_norm(x a, scale, bias).

    Args:
        x: As in `rms_norm`.
        gate: Array of the shape of ``x``, whose activation is a.
        scale, bias, eps, axis, axis_name: As in `rms_norm`.
        convention: Whose roundings to follow, and where the gate goes: a name of
            `normkit.conventions.GATED_RMS_NORM`, or a `normkit.Convention` of that kind.

    Returns:
        Array of the shape of ``x``, and of its dtype where the convention names no other.

    Raises:
        TypeError, ValueError: as `normkit.gated_rms_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> gated_rms_norm(jnp.array([[3.0, 4.0]]), jnp.array([[1.0, -1.0]]), eps=0.0).round(4)
        Array([[ 0.6203    , -0.30429998]], dtype=float32)

    Source: see `normkit.gated_rms_norm`.
    """
    call = _check(x, gate, scale, bias, axis_name, eps=eps, axis=axis, convention=convention)
    return _forward(x, gate, scale, bias, call, axis_name)


def gated_rms_norm_vjp(
    dy: jax.Array,
    x: jax.Array,
    gate: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str | Convention = "standard",
) -> tuple[Any, Any, Any, Any]:
    """``(dx, dgate, dscale, dbias)`` of `gated_rms_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.gated_rms_norm_vjp`, with the same arguments, errors and source;
    ``axis_name`` as in `rms_norm`. `jax.grad` of `gated_rms_norm` gives the same gradients.

    Example:
        >>> import jax.numpy as jnp
        >>> x, gate = jnp.array([3.0, 4.0]), jnp.zeros(2)
        >>> gated_rms_norm_vjp(jnp.ones(2), x, gate, eps=0.0)[1].round(4)
        Array([0.4243, 0.5657], dtype=float32)
    """
    call = _check(x, gate, scale, bias, axis_name, dy=dy, eps=eps, axis=axis, convention=convention)
    return _vjp(dy, x, gate, scale, bias, call, axis_name)


def _check(x: Any, gate: Any, scale: Any, bias: Any, axis_name: Any, **options: Any) -> Call:
    call = check_call(
        GATED_RMS_NORM, x, scale, bias, host=HOST, axis_name=axis_name, gate=gate, **options
    )
    choose(KERNELS, x, call)  # refuses a device without float64
    return call


def _apply(ar: JaxArithmetic, call: Call, x: Any, gate: Any, scale: Any, bias: Any) -> Any:
    with ar.scope():
        return gated_forward(ar, x, gate, scale, bias, call)


@_static
def _forward(x: Any, gate: Any, scale: Any, bias: Any, call: Call, axis_name: Any) -> Any:
    rounded = partial(_apply, JaxArithmetic(axis_name), call)
    smooth = partial(_apply, SmoothArithmetic(axis_name), call)
    return differentiable(rounded, smooth)(x, gate, scale, bias)


@_static
def _vjp(dy: Any, x: Any, gate: Any, scale: Any, bias: Any, call: Call, axis_name: Any) -> Any:
    ar = JaxArithmetic(axis_name)
    with ar.scope():
        return gated_pullback(ar, dy, x, gate, scale, bias, call)
