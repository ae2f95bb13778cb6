"""The public functions on JAX arrays."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from normkit import Convention, _checks
from normkit._kernel import Kernel, choose
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Call, Norm, apply, apply_vjp, check_call, only_rounded_once
from normkit._residual import residual_sum
from normkit._rms_norm import RMS_NORM

from . import _cpu
from ._arithmetic import (
    ARITHMETIC,
    JaxArithmetic,
    SingleArithmetic,
    SmoothArithmetic,
    platforms,
)
from ._primitives import norm_of, vjp_of

HOST = _checks.Host("jax", jax.Array)


def _apply(arithmetic: Any, norm: Norm, call: Call, x: Any, scale: Any, bias: Any) -> Any:
    ar = arithmetic(x)
    with ar.scope():
        return apply(ar, norm, x, scale, bias, call)


def differentiable(rounded: Any, smooth: Any) -> Any:
    """``rounded``, with the derivatives of ``smooth``, keeping nothing but its inputs."""
    function = jax.custom_jvp(rounded)

    @function.defjvp
    def _derivative(primals: Any, tangents: Any) -> Any:
        return function(*primals), jax.jvp(smooth, primals, tangents)[1]

    # Without checkpoint, JAX would keep the wide rows for the backward pass.
    return jax.checkpoint(function)


def _on_mesh(x: Any, axis_name: Any) -> bool:
    """Whether x is part of an array, or its type says how it is split."""
    return axis_name is not None or not jax.typeof(x).sharding.mesh.empty


def _row(name: str, arithmetic: Any, smooth: Any, primitives: bool, unsupported: Any) -> Kernel:
    """The formulas in ``arithmetic(axis_name)(x)``, with derivatives in ``smooth``'s.

    With ``primitives``, an array that is not on a mesh is left to these.
    """
    static = partial(jax.jit, static_argnames=("norm", "call", "axis_name"))

    @static
    def forward(
        norm: Norm, x: Any, scale: Any, bias: Any, call: Call, axis_name: Any = None
    ) -> Any:
        if primitives and not _on_mesh(x, axis_name):
            return norm_of(norm, x, scale, bias, call._replace(kernel=name))
        rounded = partial(_apply, arithmetic(axis_name), norm, call)
        followed = partial(_apply, smooth(axis_name), norm, call)
        return differentiable(rounded, followed)(x, scale, bias)

    @static
    def vjp(
        norm: Norm, dy: Any, x: Any, scale: Any, bias: Any, call: Call, axis_name: Any = None
    ) -> Any:
        if primitives and not _on_mesh(x, axis_name):
            return vjp_of(norm, dy, x, scale, bias, call._replace(kernel=name))
        ar = arithmetic(axis_name)(x)
        with ar.scope():
            return apply_vjp(ar, norm, dy, x, scale, bias, call)

    return Kernel(name, "cpu" if name == "numba" else "any", forward, vjp, unsupported)


def _wide(axis_name: Any) -> Any:
    return lambda x: JaxArithmetic(axis_name)


def _wide_smooth(axis_name: Any) -> Any:
    return lambda x: SmoothArithmetic(axis_name)


def _pairs(axis_name: Any) -> Any:
    return lambda x: JaxArithmetic(axis_name).pairs(x)


def _pairs_smooth(axis_name: Any) -> Any:
    wide = SmoothArithmetic(axis_name)
    return lambda x: wide if x.dtype == jnp.float64 else SingleArithmetic(axis_name)


def _no_float64(x: Any, call: Call) -> str | None:
    return None if ARITHMETIC.has_float64(x) else "XLA has no float64 of full range on TPU"


def _no_kernel(x: Any, call: Call) -> str | None:
    if not call.convention.rounds_once:
        return "only rounds as convention 'standard' does"
    if platforms(x) != {"cpu"}:
        return "only for the CPU"
    if call.axes != tuple(range(x.ndim - len(call.axes), x.ndim)):
        return "a row must lie along the last axes"
    return _cpu.unavailable()


@jax.jit
def _residual_sum(x: Any, residual: Any) -> Any:
    ar = ARITHMETIC.on_device_of(x)
    with ar.scope():
        return residual_sum(ar, x, residual)


KERNELS = (
    _row("numba", _wide, _wide_smooth, True, _no_kernel),
    _row("array_api", _wide, _wide_smooth, True, _no_float64),
    _row("pairs", _pairs, _pairs_smooth, False, only_rounded_once),
)


def rms_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> jax.Array:
    """RMSNorm of a JAX array: y = x / sqrt(mean(x^2) + eps) * scale + bias.

    Args:
        x: Real floating array with at least one axis. A row is a slice along ``axis``.
        scale: Array with the sizes of the normalised axes in ascending order, or None for ones.
        bias: Like ``scale``, or None for zeros.
        eps: Added to the mean square, in units of x squared; a Python float. None is
            the convention's, for "standard" 1e-6.
        axis: The normalised axis or axes.
        axis_name: Name of a mapped axis (shard_map, pmap, vmap) over which each row is split;
            its statistics are summed across it. scale and bias are then the local parts.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`.
        kernel: Name of the kernel that shall run, or None for the first that can.

    Returns:
        Array of the shape of ``x``, and of its dtype where the convention names no other.

    Raises:
        TypeError, ValueError: as `normkit.rms_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> rms_norm(jnp.array([[1.0, 2.0, 3.0, 4.0]]), eps=0.0).round(4)
        Array([[0.3651, 0.7303, 1.0954, 1.4606]], dtype=float32)

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    return _norm(
        RMS_NORM,
        x,
        scale,
        bias,
        axis_name,
        eps=eps,
        axis=axis,
        convention=convention,
        kernel=kernel,
    )


def layer_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> jax.Array:
    """LayerNorm of a JAX array: y = (x - mean(x)) / sqrt(var(x) + eps) * scale + bias.

    Args:
        x, scale, bias, axis, axis_name, convention, kernel: As in `rms_norm`.
        eps: Added to the variance, in units of x squared; a Python float. None is the
            convention's, for "standard" 1e-5.

    Returns:
        Array of the shape of ``x``, and of its dtype where the convention names no other.

    Raises:
        TypeError, ValueError: as `normkit.layer_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> layer_norm(jnp.array([[1.0, 2.0, 3.0, 4.0]]), eps=0.0).round(4)
        Array([[-1.3416, -0.4472,  0.4472,  1.3416]], dtype=float32)

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    return _norm(
        LAYER_NORM,
        x,
        scale,
        bias,
        axis_name,
        eps=eps,
        axis=axis,
        convention=convention,
        kernel=kernel,
    )


def add_rms_norm(
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    axis_name: Any = None,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """``(rms_norm(s, scale, bias), s)`` with s = x + residual, rounded to their dtype.

    Args:
        residual: Array of the shape and dtype of ``x``.
        x, scale, bias, eps, axis, axis_name, convention, kernel: As in `rms_norm`.

    Returns:
        Two arrays of the shape of ``x``; s has its dtype.

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
        RMS_NORM,
        x,
        residual,
        scale,
        bias,
        axis_name,
        eps=eps,
        axis=axis,
        convention=convention,
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
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """``(layer_norm(s, scale, bias), s)`` with s = x + residual, rounded to their dtype.

    Args:
        residual: Array of the shape and dtype of ``x``.
        x, scale, bias, eps, axis, axis_name, convention, kernel: As in `layer_norm`.

    Returns:
        Two arrays of the shape of ``x``; s has its dtype.

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
        LAYER_NORM,
        x,
        residual,
        scale,
        bias,
        axis_name,
        eps=eps,
        axis=axis,
        convention=convention,
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
    convention: str | Convention = "standard",
    kernel: str | None = None,
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
        RMS_NORM,
        dy,
        x,
        scale,
        bias,
        axis_name,
        eps=eps,
        axis=axis,
        convention=convention,
        kernel=kernel,
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
    convention: str | Convention = "standard",
    kernel: str | None = None,
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
        LAYER_NORM,
        dy,
        x,
        scale,
        bias,
        axis_name,
        eps=eps,
        axis=axis,
        convention=convention,
        kernel=kernel,
    )


def run_forward(
    norm: Norm,
    x: Any,
    scale: Any,
    bias: Any,
    call: Call,
    axis_name: Any = None,
) -> Any:
    """``norm`` on checked arguments, by the named kernel or the first that supports them."""
    return choose(KERNELS, x, call).forward(norm, x, scale, bias, call, axis_name)


def _norm(norm: Norm, x: Any, scale: Any, bias: Any, axis_name: Any, **options: Any) -> Any:
    call = check_call(norm, x, scale, bias, host=HOST, axis_name=axis_name, **options)
    return run_forward(norm, x, scale, bias, call, axis_name)


def _norm_vjp(
    norm: Norm,
    dy: Any,
    x: Any,
    scale: Any,
    bias: Any,
    axis_name: Any,
    **options: Any,
) -> Any:
    call = check_call(norm, x, scale, bias, host=HOST, axis_name=axis_name, dy=dy, **options)
    return choose(KERNELS, x, call).vjp(norm, dy, x, scale, bias, call, axis_name)


def _add_norm(
    norm: Norm,
    x: Any,
    residual: Any,
    scale: Any,
    bias: Any,
    axis_name: Any,
    **options: Any,
) -> Any:
    call = check_call(
        norm, x, scale, bias, host=HOST, axis_name=axis_name, residual=residual, **options
    )
    _checks.same_dtype("residual", residual, x)
    total = _residual_sum(x, residual)
    return run_forward(norm, total, scale, bias, call, axis_name), total
