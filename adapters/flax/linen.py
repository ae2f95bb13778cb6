"""Linen modules, twins of the NNX ones: parameters ``scale`` and ``bias`` under ``params``."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from normkit import Convention, _checks
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Norm
from normkit._rms_norm import RMS_NORM

from ._call import Axes, as_jax, feature_sizes, normalise
from ._port import from_torch, to_torch

__all__ = ["LayerNorm", "RMSNorm", "load_torch_norms", "torch_norms"]


class RMSNorm(nn.Module):
    """RMSNorm: y = x / sqrt(mean(x^2) + epsilon) * scale, in place of `flax.linen.RMSNorm`.

    Attributes:
        epsilon: Added to the mean square, in units of x squared; None for the convention's.
        dtype: Of the result; None for the convention's: with "standard" that of the input (flax
            promotes with the parameters'). Where a convention promotes, it takes that place.
        param_dtype: Of the parameters.
        use_scale: Whether there is a ``scale``.
        scale_init: Initialiser of the scale: ones.
        reduction_axes: Axes over which the statistics run.
        feature_axes: Axes along which scale and bias lie.
        axis_name: Name of a mapped axis over which rows are split, whose parts are combined.
        use_bias: Whether there is a ``bias``, as linen.RMSNorm has none.
        bias_init: Initialiser of the bias: zeros.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`.

    Raises:
        TypeError, ValueError: as `normkit.rms_norm`, with the same text.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.array([[1.0, 2.0, 3.0, 4.0]])
        >>> layer = RMSNorm(epsilon=0.0)
        >>> layer.apply(layer.init(jax.random.key(0), x), x).round(4)
        Array([[0.3651, 0.7303, 1.0954, 1.4606]], dtype=float32)

    Source: Zhang and Sennrich 2019, arXiv:1910.07467; flax.linen.RMSNorm.
    """

    epsilon: float | None = 1e-6
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_scale: bool = True
    scale_init: Any = nn.initializers.ones
    reduction_axes: Axes = -1
    feature_axes: Axes = -1
    axis_name: str | None = None
    use_bias: bool = False
    bias_init: Any = nn.initializers.zeros
    convention: str | Convention = "standard"

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Normalise ``x``."""
        return _normalise(self, RMS_NORM, x)


class LayerNorm(nn.Module):
    """LayerNorm: y = (x - mean) / sqrt(var + epsilon) * scale + bias, for `flax.linen.LayerNorm`.

    Attributes:
        epsilon: Added to the variance, in units of x squared (in flax, 1e-6); None for the
            convention's.
        use_bias: Whether there is a ``bias``.
        dtype, param_dtype, use_scale, bias_init, scale_init, reduction_axes, feature_axes,
            axis_name, convention: As in `RMSNorm`.

    Raises:
        TypeError, ValueError: as `normkit.layer_norm`, with the same text.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.array([[1.0, 2.0, 3.0, 4.0]])
        >>> layer = LayerNorm(epsilon=0.0)
        >>> layer.apply(layer.init(jax.random.key(0), x), x).round(4)
        Array([[-1.3416, -0.4472,  0.4472,  1.3416]], dtype=float32)

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450; flax.linen.LayerNorm.
    """

    epsilon: float | None = 1e-5
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Any = nn.initializers.zeros
    scale_init: Any = nn.initializers.ones
    reduction_axes: Axes = -1
    feature_axes: Axes = -1
    axis_name: str | None = None
    convention: str | Convention = "standard"

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Normalise ``x``."""
        return _normalise(self, LAYER_NORM, x)


def _normalise(layer: RMSNorm | LayerNorm, norm: Norm, x: Any) -> Any:
    x = as_jax(x)
    sizes = feature_sizes(x, layer.feature_axes)
    scale = bias = None
    if layer.use_scale:
        scale = layer.param("scale", layer.scale_init, sizes, layer.param_dtype)
    if layer.use_bias:
        bias = layer.param("bias", layer.bias_init, sizes, layer.param_dtype)
    return normalise(
        norm,
        x,
        scale,
        bias,
        epsilon=layer.epsilon,
        dtype=layer.dtype,
        reduction_axes=layer.reduction_axes,
        feature_axes=layer.feature_axes,
        axis_name=layer.axis_name,
        convention=layer.convention,
    )


def load_torch_norms(
    params: Mapping[str, Any], state: Mapping[str, Any], *, names: Mapping[str, str]
) -> dict[str, Any]:
    """Linen ``params`` with the parameters of norms from a torch state dict.

    Args:
        params: Nested dicts, those of ``variables["params"]``. They stay as they are.
        state: As in `normkit.flax.load_torch_norms`.
        names: Path in torch by path in ``params`` of each norm, such as
            ``{"block_0/norm": "h.0.ln_1"}``; "" is the top.

    Returns:
        New nested dicts.

    Raises:
        TypeError, ValueError: as `normkit.flax.load_torch_norms`.

    Example:
        >>> params = {"norm": {"scale": jnp.ones(4)}, "dense": {"kernel": jnp.ones((4, 1))}}
        >>> state = {"ln_f.weight": jnp.arange(4.0)}
        >>> load_torch_norms(params, state, names={"norm": "ln_f"})["norm"]
        {'scale': Array([0., 1., 2., 3.], dtype=float32)}

    Source: docs/porting.md.
    """
    flat = traverse_util.flatten_dict(dict(params))
    for path, parameters in from_torch(_norms(flat, names), state, names, "linen").items():
        for role, array in parameters.items():
            flat[(*_steps(path), role)] = array
    nested: dict[str, Any] = traverse_util.unflatten_dict(flat)
    return nested


def torch_norms(params: Mapping[str, Any], *, names: Mapping[str, str]) -> dict[str, jax.Array]:
    """The parameters of norms in Linen ``params``, under their names in torch.

    Args:
        params, names: As in `load_torch_norms`.

    Returns:
        As `normkit.flax.torch_norms`.

    Raises:
        ValueError: a path is none of a norm.

    Example:
        >>> params = {"norm": {"scale": jnp.arange(4.0)}}
        >>> torch_norms(params, names={"norm": "ln_f"})
        {'ln_f.weight': Array([0., 1., 2., 3.], dtype=float32)}

    Source: docs/porting.md.
    """
    return to_torch(_norms(traverse_util.flatten_dict(dict(params)), names), names, "linen")


def _norms(flat: Mapping[tuple[str, ...], Any], names: Mapping[str, str]) -> dict[str, Any]:
    """By path of a norm, its arrays: all at that path, so that what is no norm is found out."""
    norms = {
        path: {key[-1]: array for key, array in flat.items() if key[:-1] == _steps(path)}
        for path in names
    }
    for path, parameters in norms.items():
        if not parameters or not parameters.keys() <= {"scale", "bias"}:
            known = {"/".join(key[:-1]) for key in flat if key[-1] == "scale"}
            _checks.path_of_norm(path, sorted(known - {path}))
    return norms


def _steps(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")) if path else ()
