"""The parameters of norms, to and from a torch state dict: for NNX, and what Linen shares."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from normkit import _checks
from normkit._norm import saved_options
from normkit._scale import rename_state

from ._nnx import LayerNorm, RMSNorm

# By path of a norm, the arrays of its scale and bias.
Norms = Mapping[str, Mapping[str, Any]]


def load_torch_norms(
    model: nnx.Module, state: Mapping[str, Any], *, names: Mapping[str, str] | None = None
) -> None:
    """Set the parameters of a model's norms to those of a torch state dict.

    Only the norms of normkit.flax are set; what else lies in ``state`` is left alone. The arrays
    come in as they are, with their dtype. Nothing is set if one of them does not fit.

    Args:
        model: An NNX module, or a single norm.
        state: Arrays by their names in torch, from ``state_dict()`` or, without pickle, from
            ``safetensors.flax.load_file``.
        names: Path in torch by path in ``model`` of each norm to set, such as
            ``{"blocks.0.norm": "h.0.ln_1"}``; None for all norms under the same paths.

    Raises:
        TypeError: an array is not real floating.
        ValueError: a path is none of a norm; the state has other parameters for it than the norm
            has, or of another shape.

    Warns:
        UserWarning: The state dict comes from normkit.torch's layers, which have another eps or
            convention. A file does not keep these.

    Example:
        >>> layer = RMSNorm(4, rngs=nnx.Rngs(0))
        >>> state = {"h.0.ln_1.weight": jnp.arange(4.0), "h.0.mlp.weight": jnp.ones((4, 4))}
        >>> load_torch_norms(layer, state, names={"": "h.0.ln_1"})
        >>> layer.scale[...]
        Array([0., 1., 2., 3.], dtype=float32)

    Source: docs/porting.md.
    """
    layers = dict(_layers(model))
    names = {path: path for path in layers} if names is None else names
    loaded = from_torch({path: _parameters(layers, path) for path in names}, state, names, "nnx")
    for path, torch_path in names.items():
        _warn_of_other_options(layers[path], torch_path, state)
        for role, array in loaded[path].items():
            setattr(layers[path], role, nnx.Param(array))


def torch_norms(
    model: nnx.Module, *, names: Mapping[str, str] | None = None
) -> dict[str, jax.Array]:
    """The parameters of a model's norms, under their names in torch.

    Args:
        model: An NNX module, or a single norm.
        names: As in `load_torch_norms`.

    Returns:
        A new dict of the same arrays, for ``safetensors.flax.save_file``, or, each through
        ``torch.from_dlpack``, for ``load_state_dict(..., strict=False)``.

    Raises:
        ValueError: a path is none of a norm.

    Example:
        >>> layer = LayerNorm(4, rngs=nnx.Rngs(0))
        >>> list(torch_norms(layer, names={"": "h.0.ln_1"}))
        ['h.0.ln_1.weight', 'h.0.ln_1.bias']

    Source: docs/porting.md.
    """
    layers = dict(_layers(model))
    names = {path: path for path in layers} if names is None else names
    return to_torch({path: _parameters(layers, path) for path in names}, names, "nnx")


def from_torch(
    norms: Norms, state: Mapping[str, Any], names: Mapping[str, str], library: str
) -> dict[str, dict[str, jax.Array]]:
    """The arrays of ``state`` that take the place of those of ``norms``."""
    inside = {key: array for key, array in state.items() if _parent(key) in names.values()}
    renamed = rename_state(
        {tuple(key.split(".")): array for key, array in inside.items()},
        "torch",
        library,
        norms=[_steps(path) for path in names.values()],
    )
    loaded: dict[str, dict[str, jax.Array]] = {}
    for path, parameters in norms.items():
        steps = _steps(names[path])
        given = {key[-1]: array for key, array in renamed.items() if key[:-1] == steps}
        _checks.parameters_of_norm(path, list(given), list(parameters))
        for role, array in given.items():
            _checks.real_floating(**{role: array})
            _checks.shape_of_parameter(f"{path}.{role}", array.shape, parameters[role].shape)
        loaded[path] = {role: _as_jax(array) for role, array in given.items()}
    return loaded


def to_torch(norms: Norms, names: Mapping[str, str], library: str) -> dict[str, jax.Array]:
    """The arrays of ``norms`` under their names in torch."""
    state = {
        (*_steps(names[path]), role): array
        for path, parameters in norms.items()
        for role, array in parameters.items()
    }
    renamed = rename_state(state, library, "torch", norms=[_steps(names[path]) for path in norms])
    return {".".join(steps): array for steps, array in renamed.items()}


def _layers(model: nnx.Module) -> Iterator[tuple[str, RMSNorm | LayerNorm]]:
    for steps, module in nnx.iter_modules(model):
        if isinstance(module, RMSNorm | LayerNorm):
            yield ".".join(map(str, steps)), module


def _parameters(layers: Mapping[str, Any], path: str) -> dict[str, jax.Array]:
    _checks.path_of_norm(path, list(layers))
    both = {"scale": layers[path].scale, "bias": layers[path].bias}
    return {role: param[...] for role, param in both.items() if param is not None}


def _warn_of_other_options(layer: Any, path: str, state: Mapping[str, Any]) -> None:
    own = saved_options(layer._norm, layer.epsilon, layer.convention)
    saved = getattr(state, "_metadata", {}).get(path, {}).get("normkit", own)
    if saved != own:
        text = _checks.other_options(f"the norm for {path!r}", saved, own)
        warnings.warn(text, stacklevel=3)


def _as_jax(array: Any) -> jax.Array:
    """A copy, as a torch tensor may change in place."""
    if hasattr(array, "detach"):  # torch's, whose bfloat16 NumPy does not take
        array = jnp.from_dlpack(array.detach())
    copy = jnp.array(array, copy=True)
    _checks.kept_dtype(array.dtype, copy.dtype)
    return copy


def _parent(key: str) -> str:
    return key.rpartition(".")[0]


def _steps(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()
