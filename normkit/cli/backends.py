"""The backends that `normkit check` and the test suite run on, found at run time.

A row stands for one framework on one device. What is not there has a reason, never a silence.
"""

import importlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Backend(NamedTuple):
    """One framework on one device.

    Attributes:
        framework: "numpy", "torch", "jax" or "flax".
        device: "cpu", "cuda", "gpu" or "tpu", in the framework's own word.
        functions: Object with the public functions (flax: only ``rms_norm`` and ``layer_norm``).
        put: Moves a NumPy array to the device, with its bits.
        get: Moves a result back, with its bits.
    """

    framework: str
    device: str
    functions: Any
    put: Callable[[Array], Any]
    get: Callable[[Any], Array]

    @property
    def label(self) -> str:
        """``framework:device``, as ``--require`` takes it."""
        return f"{self.framework}:{self.device}"

    def run(self, op: str, *arrays: Array | None, **options: Any) -> Any:
        """``op`` on NumPy arrays, moved there and back; a tuple where it returns one."""
        moved = [None if a is None else self.put(a) for a in arrays]
        result = getattr(self.functions, op)(*moved, **options)
        if isinstance(result, tuple):
            return tuple(None if part is None else self.get(part) for part in result)
        return self.get(result)


def find_backends() -> tuple[list[Backend], dict[str, str]]:
    """The backends that are here, numpy first, and for each missing label the reason."""
    found: list[Backend] = []
    missing: dict[str, str] = {}
    for framework, search in _SEARCHES.items():
        for device, backend in search():
            if isinstance(backend, Backend):
                found.append(backend)
            else:
                missing[f"{framework}:{device}"] = backend
    return found, missing


_Found = Iterator[tuple[str, Backend | str]]


def _numpy() -> _Found:
    functions = importlib.import_module("normkit.numpy")
    yield "cpu", Backend("numpy", "cpu", functions, lambda a: a, np.asarray)


def _torch() -> _Found:
    try:
        functions = importlib.import_module("normkit.torch")
    except ImportError as error:
        yield "cpu", str(error)
        return
    import torch

    def on(device: str) -> Backend:
        return Backend("torch", device, functions, lambda a: _to_torch(a).to(device), _from_torch)

    yield "cpu", on("cpu")
    available = torch.cuda.is_available()
    yield "cuda", on("cuda") if available else "torch finds no CUDA device"


def _to_torch(array: Array) -> Any:
    import torch

    array = np.array(array, order="C")  # torch takes neither read-only nor negatively strided ones
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _from_torch(tensor: Any) -> Array:
    import ml_dtypes
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def _jax() -> _Found:
    yield from _on_jax_devices("jax", lambda: importlib.import_module("normkit.jax"))


def _flax() -> _Found:
    yield from _on_jax_devices("flax", _nnx_functions)


def _on_jax_devices(framework: str, functions: Callable[[], Any]) -> _Found:
    try:
        loaded = functions()
    except ImportError as error:
        yield "cpu", str(error)
        return
    import jax

    for platform in ("cpu", "gpu", "tpu"):
        try:
            device = jax.devices(platform)[0]
        except RuntimeError:
            yield platform, f"jax finds no {platform} device"
            continue

        def put(array: Array, device: Any = device) -> Any:
            with jax.enable_x64(True):
                return jax.device_put(array, device)

        yield platform, Backend(framework, platform, loaded, put, np.asarray)


def _nnx_functions() -> Any:
    """normkit.flax's NNX modules as functions, with scale and bias put into their parameters."""
    layers = importlib.import_module("normkit.flax")
    from flax import nnx

    def run(
        layer_type: Any, x: Any, scale: Any, bias: Any, eps: Any, axis: Any, convention: Any
    ) -> Any:
        axes = axis if isinstance(axis, tuple) else (axis,)
        parameter = bias if scale is None else scale
        sizes = (
            [x.shape[a] for a in axes if a in range(-x.ndim, x.ndim)]
            if parameter is None
            else parameter.shape
        )
        options = {"epsilon": eps, "convention": convention}
        if eps is None and convention == "standard":
            del options["epsilon"]  # the layer's own default
        layer = layer_type(
            math.prod(sizes),
            use_scale=scale is not None,
            use_bias=bias is not None,
            reduction_axes=axis,
            feature_axes=axis,
            rngs=nnx.Rngs(0),
            **options,
        )
        for name, value in (("scale", scale), ("bias", bias)):
            if value is not None:
                setattr(layer, name, nnx.Param(value.reshape(-1) if value.ndim > 1 else value))
        return layer(x)

    def function(layer_type: Any) -> Any:
        return lambda x, scale=None, bias=None, *, eps=None, axis=-1, convention="standard": run(
            layer_type, x, scale, bias, eps, axis, convention
        )

    return SimpleNamespace(rms_norm=function(layers.RMSNorm), layer_norm=function(layers.LayerNorm))


_SEARCHES: dict[str, Callable[[], _Found]] = {
    "numpy": _numpy,
    "torch": _torch,
    "jax": _jax,
    "flax": _flax,
}
