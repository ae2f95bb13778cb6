"""The public functions on JAX arrays."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from normkit import _checks
from normkit._kernel import Kernel, choose
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Call, Norm, apply, apply_vjp, check_call
from normkit._residual import residual_sum
from normkit._rms_norm import RMS_NORM

from ._arithmetic import JaxArithmetic, SmoothArithmetic

HOST = _checks.Host("jax", jax.Array)


@partial(jax.jit, static_argnames=("norm", "call", "axis_name"))
def _core_forward(
    norm: Norm, x: Any, scale: Any, bias: Any, call: Call, axis_name: Any = None
) -> Any:
    def run(ar: JaxArithmetic, x: Any, scale: Any, bias: Any) -> Any:
        with ar.scope():
            return apply(ar, norm, x, scale, bias, call)

    rounded = jax.custom_jvp(partial(run, JaxArithmetic(axis_name)))
    smooth = partial(run, SmoothArithmetic(axis_name))

    @rounded.defjvp
    def _derivative(primals: Any, tangents: Any) -> Any:
        return rounded(*primals), jax.jvp(smooth, primals, tangents)[1]

    # Without checkpoint, JAX would keep the float64 rows for the backward pass.
    return jax.checkpoint(rounded)(x, scale, bias)


@partial(jax.jit, static_argnames=("norm", "call", "axis_name"))
def _core_vjp(
    norm: Norm, dy: Any, x: Any, scale: Any, bias: Any, call: Call, axis_name: Any = None
) -> Any:
    ar = JaxArithmetic(axis_name)
    with ar.scope():
        return apply_vjp(ar, norm, dy, x, scale, bias, call)


@jax.jit
def _residual_sum(x: Any, residual: Any) -> Any:
    ar = JaxArithmetic()
    with ar.scope():
        return residual_sum(ar, x, residual)


KERNELS = (Kernel("array_api", "any", _core_forward, _core_vjp, lambda x: None),)


def rms_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str = "standard",
) -> jax.Array:
    """RMSNorm of a JAX array: y = x / sqrt(mean(x^2) + eps) * scale + bias.

    Args:
        x: Real floating array with at least one axis. A row is a slice along ``axis``.
        scale: Array with the sizes of the normalised axes in ascending order, or None for ones.
        bias: Like ``scale``, or None for zeros.
        eps: Added to the mean square, in units of x squared; a Python float, None is 1e-6.
        axis: The normalised axis or axes.
        axis_name: Name of a mapped axis (shard_map, pmap, vmap) over which each row is split;
            its statistics are summed across it. scale and bias are then the local parts.
        convention: "standard".

    Returns:
        Array of the shape and dtype of ``x``.

    Raises:
        TypeError, ValueError: as `normkit.rms_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> rms_norm(jnp.array([[1.0, 2.0, 3.0, 4.0]]), eps=0.0).round(4)
        Array([[0.3651, 0.7303, 1.0954, 1.4606]], dtype=float32)

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    return _norm(RMS_NORM, x, scale, bias, axis_name, eps=eps, axis=axis, convention=convention)


def layer_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str = "standard",
) -> jax.Array:
    """LayerNorm of a JAX array: y = (x - mean(x)) / sqrt(var(x) + eps) * scale + bias.

    Args:
        x, scale, bias, axis, axis_name, convention: As in `rms_norm`.
        eps: Added to the variance, in units of x squared; a Python float, None is 1e-5.

    Returns:
        Array of the shape and dtype of ``x``.

    Raises:
        TypeError, ValueError: as `normkit.layer_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> layer_norm(jnp.array([[1.0, 2.0, 3.0, 4.0]]), eps=0.0).round(4)
        Array([[-1.3416, -0.4472,  0.4472,  1.3416]], dtype=float32)

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    return _norm(LAYER_NORM, x, scale, bias, axis_name, eps=eps, axis=axis, convention=convention)


def add_rms_norm(
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str = "standard",
) -> tuple[jax.Array, jax.Array]:
    """``(rms_norm(s, scale, bias), s)`` with s = x + residual, rounded to their dtype.

    Args:
        residual: Array of the shape and dtype of ``x``.
        x, scale, bias, eps, axis, axis_name, convention: As in `rms_norm`.

    Returns:
        Two arrays of the shape and dtype of ``x``.

    Raises:
        TypeError, ValueError: as `normkit.add_rms_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> y, s = add_rms_norm(jnp.array([1.0, 1.0]), jnp.array([2.0, 3.0]), eps=0.0)
        >>> s
        Array([3., 4.], dtype=float32)
        >>> bool((y == rms_norm(s, eps=0.0)).all())
        True

    Source: see `normkit.add_rms_norm`.
    """
    return _add_norm(
        RMS_NORM, x, residual, scale, bias, axis_name, eps=eps, axis=axis, convention=convention
    )


def add_layer_norm(
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str = "standard",
) -> tuple[jax.Array, jax.Array]:
    """``(layer_norm(s, scale, bias), s)`` with s = x + residual, rounded to their dtype.

    Args:
        residual: Array of the shape and dtype of ``x``.
        x, scale, bias, eps, axis, axis_name, convention: As in `layer_norm`.

    Returns:
        Two arrays of the shape and dtype of ``x``.

    Raises:
        TypeError, ValueError: as `normkit.add_layer_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> y, s = add_layer_norm(jnp.array([1.0, 1.0]), jnp.array([2.0, 3.0]), eps=0.0)
        >>> y, s
        (Array([-1.,  1.], dtype=float32), Array([3., 4.], dtype=float32))

    Source: see `normkit.add_layer_norm`.
    """
    return _add_norm(
        LAYER_NORM, x, residual, scale, bias, axis_name, eps=eps, axis=axis, convention=convention
    )


def rms_norm_vjp(
    dy: jax.Array,
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str = "standard",
) -> tuple[Any, Any, Any]:
    """``(dx, dscale, dbias)`` of `rms_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.rms_norm_vjp`, with the same arguments, errors and source;
    ``axis_name`` as in `rms_norm`. `jax.grad` of `rms_norm` gives the same gradients.

    Example:
        >>> import jax.numpy as jnp
        >>> dx, dscale, dbias = rms_norm_vjp(jnp.ones(2), jnp.array([3.0, 4.0]), eps=0.0)
        >>> dx.round(4), dscale, dbias
        (Array([ 0.0453, -0.0339], dtype=float32), None, None)
    """
    return _norm_vjp(
        RMS_NORM, dy, x, scale, bias, axis_name, eps=eps, axis=axis, convention=convention
    )


def layer_norm_vjp(
    dy: jax.Array,
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str = "standard",
) -> tuple[Any, Any, Any]:
    """``(dx, dscale, dbias)`` of `layer_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.layer_norm_vjp`, with the same arguments, errors and source;
    ``axis_name`` as in `rms_norm`. `jax.grad` of `layer_norm` gives the same gradients.

    Example:
        >>> import jax.numpy as jnp
        >>> dy, x = jnp.array([1.0, 0.0, 0.0]), jnp.array([1.0, 2.0, 4.0])
        >>> layer_norm_vjp(dy, x, eps=0.0)[0]
        Array([ 0.22908106, -0.3436216 ,  0.11454053], dtype=float32)
    """
    return _norm_vjp(
        LAYER_NORM, dy, x, scale, bias, axis_name, eps=eps, axis=axis, convention=convention
    )


def run_forward(
    norm: Norm, x: Any, scale: Any, bias: Any, call: Call, axis_name: Any = None
) -> Any:
    """``norm`` on checked arguments, by the first kernel that supports them."""
    return choose(KERNELS, x).forward(norm, x, scale, bias, call, axis_name)


def _norm(norm: Norm, x: Any, scale: Any, bias: Any, axis_name: Any, **options: Any) -> Any:
    call = check_call(norm, x, scale, bias, host=HOST, **options)
    return run_forward(norm, x, scale, bias, call, axis_name)


def _norm_vjp(
    norm: Norm, dy: Any, x: Any, scale: Any, bias: Any, axis_name: Any, **options: Any
) -> Any:
    call = check_call(norm, x, scale, bias, host=HOST, dy=dy, **options)
    return choose(KERNELS, x).vjp(norm, dy, x, scale, bias, call, axis_name)


def _add_norm(
    norm: Norm, x: Any, residual: Any, scale: Any, bias: Any, axis_name: Any, **options: Any
) -> Any:
    call = check_call(norm, x, scale, bias, host=HOST, residual=residual, **options)
    _checks.same_dtype("residual", residual, x)
    total = _residual_sum(x, residual)
    return run_forward(norm, total, scale, bias, call, axis_name), total
