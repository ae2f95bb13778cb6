"""Linen modules, twins of the NNX ones: parameters ``scale`` and ``bias`` under ``params``."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from normkit import Convention
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Norm
from normkit._rms_norm import RMS_NORM

from ._call import Axes, as_jax, feature_sizes, normalise

__all__ = ["LayerNorm", "RMSNorm"]


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
