"""NNX modules."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from normkit import Convention, _checks
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Norm, check_options
from normkit._rms_norm import RMS_NORM

from ._call import Axes, as_jax, feature_sizes, normalise


class _Layer(nnx.Module):
    """Parameters and call of both norms; the constructors differ."""

    _norm: Norm

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float | None,
        dtype: Any,
        param_dtype: Any,
        use_bias: bool,
        use_scale: bool,
        bias_init: Any,
        scale_init: Any,
        reduction_axes: Axes,
        feature_axes: Axes,
        axis_name: str | None,
        convention: str | Convention,
        rngs: nnx.Rngs,
    ) -> None:
        check_options(self._norm, epsilon, convention)
        shape = (num_features,)
        self.scale: Any = nnx.data(None)
        if use_scale:
            self.scale = nnx.Param(scale_init(rngs.params(), shape, param_dtype))
        self.bias: Any = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), shape, param_dtype))
        self.num_features = num_features
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.reduction_axes = reduction_axes
        self.feature_axes = feature_axes
        self.axis_name = axis_name
        self.convention = convention

    def __call__(self, x: Any) -> Any:
        """Normalise ``x``."""
        x = as_jax(x)
        sizes = feature_sizes(x, self.feature_axes)
        _checks.feature_count(x.shape, sizes, self.num_features)
        scale, bias = (None if p is None else p[...] for p in (self.scale, self.bias))
        if len(sizes) > 1:  # NNX keeps the features of several axes in one
            scale, bias = (None if p is None else p.reshape(sizes) for p in (scale, bias))
        return normalise(
            self._norm,
            x,
            scale,
            bias,
            epsilon=self.epsilon,
            dtype=self.dtype,
            reduction_axes=self.reduction_axes,
            feature_axes=self.feature_axes,
            axis_name=self.axis_name,
            convention=self.convention,
        )


class RMSNorm(_Layer):
    """RMSNorm: y = x / sqrt(mean(x^2) + epsilon) * scale, in place of `flax.nnx.RMSNorm`.

    Args:
        num_features: Number of features: the size of the feature axis.
        epsilon: Added to the mean square, in units of x squared; None for the convention's.
        dtype: Of the result; None for the convention's: with "standard" that of the input (flax
            promotes with the parameters'). Where a convention promotes, it takes that place.
        param_dtype: Of the parameters.
        use_bias: Whether there is a ``bias``, as nnx.RMSNorm has none.
        use_scale: Whether there is a ``scale``.
        bias_init, scale_init: Initialisers of the parameters: zeros and ones.
        reduction_axes: Axes over which the statistics run.
        feature_axes: Axes along which scale and bias lie.
        axis_name: Name of a mapped axis over which rows are split, whose parts are combined.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`.
        rngs: Random number generators of the initialisers.

    Shape:
        Input and output are alike.

    Raises:
        TypeError, ValueError: as `normkit.rms_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = RMSNorm(4, epsilon=0.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.array([[1.0, 2.0, 3.0, 4.0]])).round(4)
        Array([[0.3651, 0.7303, 1.0954, 1.4606]], dtype=float32)

    Source: Zhang and Sennrich 2019, arXiv:1910.07467; flax.nnx.RMSNorm.
    """

    _norm = RMS_NORM

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float | None = 1e-6,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_bias: bool = False,
        use_scale: bool = True,
        bias_init: Any = initializers.zeros,
        scale_init: Any = initializers.ones,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        convention: str | Convention = "standard",
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            num_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_bias=use_bias,
            use_scale=use_scale,
            bias_init=bias_init,
            scale_init=scale_init,
            reduction_axes=reduction_axes,
            feature_axes=feature_axes,
            axis_name=axis_name,
            convention=convention,
            rngs=rngs,
        )


class LayerNorm(_Layer):
    """LayerNorm: y = (x - mean) / sqrt(var + epsilon) * scale + bias, for `flax.nnx.LayerNorm`.

    Args:
        epsilon: Added to the variance, in units of x squared (in flax, 1e-6); None for the
            convention's.
        use_bias: Whether there is a ``bias``.
        num_features, dtype, param_dtype, use_scale, bias_init, scale_init, reduction_axes,
            feature_axes, axis_name, convention, rngs: As in `RMSNorm`.

    Shape:
        Input and output are alike.

    Raises:
        TypeError, ValueError: as `normkit.layer_norm`, with the same text.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = LayerNorm(4, epsilon=0.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.array([[1.0, 2.0, 3.0, 4.0]])).round(4)
        Array([[-1.3416, -0.4472,  0.4472,  1.3416]], dtype=float32)

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450; flax.nnx.LayerNorm.
    """

    _norm = LAYER_NORM

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float | None = 1e-5,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Any = initializers.zeros,
        scale_init: Any = initializers.ones,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        convention: str | Convention = "standard",
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            num_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_bias=use_bias,
            use_scale=use_scale,
            bias_init=bias_init,
            scale_init=scale_init,
            reduction_axes=reduction_axes,
            feature_axes=feature_axes,
            axis_name=axis_name,
            convention=convention,
            rngs=rngs,
        )
