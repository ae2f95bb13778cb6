"""How `normkit.identify` calls Keras layers, on whichever backend Keras runs."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np

from normkit._identify._host import BIAS_NAMES, first_result

Array = Any

# The policy under which a layer takes x of one dtype and holds parameters of another. Under
# float64 Keras casts to float32 on some backends and not on others; no preset speaks of it.
_POLICIES = {
    ("float32", "float32"): "float32",
    ("bfloat16", "bfloat16"): "bfloat16",
    ("float16", "float16"): "float16",
    ("bfloat16", "float32"): "mixed_bfloat16",
    ("float16", "float32"): "mixed_float16",
}


class KerasHost:
    """Tensors of the backend."""

    name = "keras"

    def is_module(self, thing: Any) -> bool:
        """Whether it is a layer."""
        return isinstance(thing, keras.layers.Layer)

    def subject(self, module: Any, width: int | None) -> "KerasLayer":
        """The layer's recipe; each call makes a new one."""
        return KerasLayer(module, width)

    def array(self, values: Array) -> Any:
        """A tensor of the backend."""
        return keras.ops.convert_to_tensor(values, dtype=values.dtype.name)

    def numpy(self, result: Any) -> Array:
        """A tensor as a NumPy array, with its bits."""
        import ml_dtypes

        if not keras.ops.is_tensor(result) and not isinstance(result, np.ndarray):
            raise TypeError(f"the result is {type(result).__name__}, not a tensor")
        half = keras.backend.standardize_dtype(result.dtype) == "bfloat16"
        wide = keras.ops.convert_to_numpy(keras.ops.cast(result, "float32") if half else result)
        return wide.astype(ml_dtypes.bfloat16) if half else np.asarray(wide)

    def scope(self) -> AbstractContextManager[Any]:
        """Nothing."""
        return nullcontext()


HOST = KerasHost()


class KerasLayer:
    """A layer made anew from its configuration, for the dtype policy that a probe stands for."""

    framework = "keras"
    optional = False

    def __init__(self, layer: Any, width: int | None) -> None:
        self.layer_type, self.config = type(layer), layer.get_config()
        self.width = width or (layer.weights[0].shape[0] if layer.weights else 64)
        trial = self._made("float32", (2, self.width))
        self.roles: Mapping[str, str] = {
            w.name: "bias" if w.name in BIAS_NAMES else "scale" for w in trial.weights
        }

    def _made(self, policy: str, shape: tuple[int, ...]) -> Any:
        layer = self.layer_type.from_config({**self.config, "dtype": policy})
        layer.build(shape)
        return layer

    def __call__(self, inputs: Sequence[Array], scale: Array | None, bias: Array | None) -> Array:
        """The results under the policy of these dtypes; TypeError if Keras has none."""
        x = inputs[0]
        dtypes = (x.dtype.name, x.dtype.name if scale is None else scale.dtype.name)
        if dtypes not in _POLICIES:
            raise TypeError(f"Keras has no policy for x and parameters of {dtypes}")
        layer = self._made(_POLICIES[dtypes], x.shape)
        given = {"scale": scale, "bias": bias}
        for weight in layer.weights:
            value = given[self.roles[weight.name]]
            if value is not None:
                weight.assign(HOST.array(value))
        return first_result(HOST, layer(*[HOST.array(a) for a in inputs]))
