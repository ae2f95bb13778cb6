"""The contenders in JAX: Flax NNX, Equinox and Keras layers under jit."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import normkit.jax

from ._plan import Group

Make = Callable[[], Callable[[], object]]

_EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5}


class _Layer(NamedTuple):
    """``call(parameters, x)`` is pure, as jit and the derivatives want it."""

    call: Callable[[Any, Any], Any]
    parameters: Any


def _nnx(module: Any, op: str, width: int, dtype: Any) -> _Layer:
    from flax import nnx

    layer_type = module.RMSNorm if op == "rms_norm" else module.LayerNorm
    layer = layer_type(width, epsilon=_EPS[op], dtype=dtype, param_dtype=dtype, rngs=nnx.Rngs(0))
    graph, state = nnx.split(layer)
    return _Layer(lambda state, x: nnx.merge(graph, state)(x), state)


def _flax(op: str, width: int, dtype: Any) -> _Layer:
    from flax import nnx

    return _nnx(nnx, op, width, dtype)


def _ours(op: str, width: int, dtype: Any) -> _Layer:
    import normkit.flax

    return _nnx(normkit.flax, op, width, dtype)


def _equinox(op: str, width: int, dtype: Any) -> _Layer:
    import equinox

    layer: Any
    if op == "rms_norm":
        layer = equinox.nn.RMSNorm(width, _EPS[op], use_bias=False, dtype=dtype)
    else:
        layer = equinox.nn.LayerNorm(width, _EPS[op], dtype=dtype)
    parameters, rest = equinox.partition(layer, equinox.is_array)
    return _Layer(lambda p, x: jax.vmap(equinox.combine(p, rest))(x), parameters)


def _keras(op: str, width: int, dtype: Any) -> _Layer:
    import keras

    if keras.backend.backend() != "jax":
        raise ImportError("keras runs on another backend than jax")
    layer_type = (
        keras.layers.RMSNormalization if op == "rms_norm" else keras.layers.LayerNormalization
    )
    layer = layer_type(epsilon=_EPS[op], dtype=jnp.dtype(dtype).name)
    layer.build((None, width))
    weights = [variable.value for variable in layer.trainable_variables]
    return _Layer(lambda w, x: layer.stateless_call(w, [], x)[0], weights)


_LAYERS = {"normkit": _ours, "flax": _flax, "equinox": _equinox, "keras": _keras}


def _make(build: Any, op: str, group: Group, x: Any, other: Any) -> Callable[[], object]:
    call, parameters = build(op, group.shape[-1], x.dtype)

    def forward_and_backward(p: Any, x: Any, dy: Any) -> Any:
        y, pull = jax.vjp(call, p, x)
        return y, pull(dy)

    def residual(p: Any, x: Any, r: Any) -> Any:
        return call(p, x + r), x + r

    if group.passes == "forward":
        return partial(_wait, jax.jit(call), parameters, x)
    if group.passes == "residual":
        return partial(_wait, jax.jit(residual), parameters, x, other)
    return partial(_wait, jax.jit(forward_and_backward), parameters, x, other)


def _wait(function: Any, *arguments: Any) -> object:
    return jax.block_until_ready(function(*arguments))


def _arrays(group: Group) -> tuple[Any, ...]:
    dtype = getattr(jnp, group.dtype)
    keys = jax.random.split(jax.random.key(0), 2)
    return tuple(jax.random.normal(key, group.shape, jnp.float32).astype(dtype) for key in keys)


def set_threads(count: int) -> None:
    """XLA has counted the processors of the process when it started."""


def contenders(group: Group) -> dict[str, Make]:
    """Functions that make what is timed, by name."""
    x, other = _arrays(group)
    found: dict[str, Make] = {
        f"{name} {op}": partial(_make, build, op, group, x, other)
        for op in _EPS
        for name, build in _LAYERS.items()
    }
    found["copy"] = lambda: partial(_wait, jax.jit(jnp.copy), x)
    return found


def kernel_runs(name: str, group: Group) -> None:
    """Run the forward pass with a named kernel; ValueError where it cannot serve."""
    x, _ = _arrays(group)
    jax.block_until_ready(normkit.jax.rms_norm(x, jnp.ones(x.shape[-1], x.dtype), kernel=name))
