"""What the NNX and the Linen layers share: one call with Flax's options."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from normkit.jax._functional import HOST, run_forward

from normkit import Convention, _checks
from normkit._norm import Norm, along, check_call
from normkit._presets import convention_of

Axes = int | Sequence[int]


def feature_sizes(x: Any, feature_axes: Axes) -> tuple[int, ...]:
    """Sizes of the feature axes of ``x``, which are the shape of scale and bias."""
    return tuple(x.shape[a] for a in _checks.axes(x.shape, feature_axes))


def as_jax(x: Any) -> Any:
    """``x``, moved to the device where it is a NumPy array, as Flax's own layers do."""
    if isinstance(x, np.ndarray):
        return jnp.asarray(x)
    _checks.same_framework(HOST, x=x)
    return x


def normalise(
    norm: Norm,
    x: Any,
    scale: Any,
    bias: Any,
    *,
    epsilon: float | None,
    dtype: Any,
    reduction_axes: Axes,
    feature_axes: Axes,
    axis_name: Any,
    convention: str | Convention,
) -> Any:
    """``norm`` over ``reduction_axes``, with scale and bias along ``feature_axes``.

    The result has ``dtype``, or the convention's where that is None. Where the convention
    promotes, as Flax's own does, ``dtype`` takes the place of the promoted one. "standard" widens
    x to a wider ``dtype`` first, exactly. Else the result is cast.
    """
    if dtype is not None:
        convention = convention_of(convention, norm.name).with_dtype(jnp.dtype(dtype).name)
    _checks.same_framework(HOST, x=x, scale=scale, bias=bias)
    call = check_call(
        norm,
        x,
        None,
        None,
        host=HOST,
        eps=epsilon,
        axis=reduction_axes,
        axis_name=axis_name,
        convention=convention,
    )
    _checks.real_floating(scale=scale, bias=bias)
    features = _checks.axes(x.shape, feature_axes)
    _checks.parameter_shape("scale", scale, x.shape, features)
    _checks.parameter_shape("bias", bias, x.shape, features)
    scale, bias = (along(p, x, features, jnp.reshape) for p in (scale, bias))
    if dtype is not None and call.convention.rounds_once:
        x = x.astype(jnp.promote_types(x.dtype, dtype))
    y = run_forward(norm, x, scale, bias, call, axis_name)
    return y if dtype is None else y.astype(dtype)
