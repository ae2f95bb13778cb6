"""The contenders in NumPy."""

from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401 (gives NumPy the dtype bfloat16)
import numpy as np

import normkit.numpy

from ._plan import Group

Make = Callable[[], Callable[[], object]]


def _rms_norm(x: Any, scale: Any) -> Any:
    """The formula as one writes it."""
    wide = x.astype(np.float32, copy=False)
    y = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(1e-6)) * scale
    return y.astype(x.dtype, copy=False)


def _layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    wide = x.astype(np.float32, copy=False)
    mean = np.mean(wide, axis=-1, keepdims=True)
    variance = np.var(wide, axis=-1, keepdims=True)
    y = (wide - mean) / np.sqrt(variance + np.float32(1e-5)) * scale + bias
    return y.astype(x.dtype, copy=False)


def _arrays(group: Group) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    dtype = np.dtype(group.dtype)
    width = group.shape[-1]

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape, np.float32).astype(dtype)

    x, residual, bias = normal(*group.shape), normal(*group.shape), normal(width)
    return x, residual, (1 + random.standard_normal(width) / 8).astype(dtype), bias


def set_threads(count: int) -> None:
    """NumPy's own functions know no threads; normkit reads the environment."""


def contenders(group: Group) -> dict[str, Make]:
    """Functions that make what is timed, by name."""
    x, residual, scale, bias = _arrays(group)
    wide_scale, wide_bias = scale.astype(np.float32), bias.astype(np.float32)
    ours: Any = normkit.numpy
    live = np.zeros_like(x)
    found: dict[str, Make] = {
        "copy": lambda: x.copy,
        "copyto": lambda: lambda: np.copyto(live, x),
    }
    if group.passes == "forward":
        found |= {
            "normkit rms_norm": lambda: lambda: ours.rms_norm(x, scale),
            "normkit.out rms_norm": lambda: lambda: ours.rms_norm(x, scale, out=live),
            "numpy rms_norm": lambda: lambda: _rms_norm(x, wide_scale),
            "normkit layer_norm": lambda: lambda: ours.layer_norm(x, scale, bias),
            "normkit.out layer_norm": lambda: lambda: ours.layer_norm(x, scale, bias, out=live),
            "numpy layer_norm": lambda: lambda: _layer_norm(x, wide_scale, wide_bias),
        }
    else:
        found |= {
            "normkit rms_norm": lambda: lambda: ours.add_rms_norm(x, residual, scale),
            "numpy rms_norm": lambda: lambda: _rms_norm(x + residual, wide_scale),
            "normkit layer_norm": lambda: lambda: ours.add_layer_norm(x, residual, scale, bias),
            "numpy layer_norm": lambda: lambda: _layer_norm(x + residual, wide_scale, wide_bias),
        }
    return found


def kernel_runs(name: str, group: Group) -> None:
    """Run the forward pass with a named kernel; ValueError where it cannot serve."""
    x, _, scale, _ = _arrays(group)
    normkit.numpy.rms_norm(x, scale, kernel=name)
