"""The kernel "numba" inside of XLA: a foreign function made of machine code, without Python's lock.

XLA calls a function of one argument, the address of a frame that `xla/ffi/api/c_api.h` describes.
Numba compiles a small one for each pair of dtypes, around the loops of `normkit.kernels`. No compiler is
needed, and nothing of the header but its version: as long as the major version is 0, fields keep
their places.
"""

import functools
import platform
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from normkit._checks import dtype_name
from normkit.kernels import cpu

_MAJOR = 0

# So many elements are worth a thread of XLA's pool
_WORTH = 64 * 1024


@functools.cache
def unavailable() -> str | None:
    """Why XLA cannot call the kernel in this process, or None."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "XLA flushes subnormal numbers, and only on x86 does the kernel know the switch"
    if _version()[0] != _MAJOR:
        return f"XLA's interface for foreign functions has version {_version()[0]}, not {_MAJOR}"
    return cpu.unavailable()


@functools.cache
def _version() -> tuple[int, int]:
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return -1, -1
    major, minor = (re.search(rf"#define XLA_FFI_API_{n} (\d+)", text) for n in ("MAJOR", "MINOR"))
    return (int(major[1]), int(minor[1])) if major and minor else (-1, -1)


def forward(centre: bool | None, x: Any, scale: Any, bias: Any, eps: float) -> Any:
    """The norm of the rows of x; scale and bias have one axis, or are None."""
    width = x.shape[1]
    name = _registered("forward", centre, dtype_name(x.dtype))
    shapes = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        _workspace(cpu.loops().forward_work(width), x.shape[0], x.size),
    )
    arguments = x, _parameter(scale), _parameter(bias), jnp.asarray([eps], jnp.float64)
    return jax.ffi.ffi_call(name, shapes)(*arguments)[0]


def backward(
    centre: bool | None, dy: Any, x: Any, scale: Any, has_bias: bool, eps: float
) -> tuple[Any, Any, Any]:
    """(dx, dscale, dbias), the latter two in float64; dbias is None without bias."""
    rows, width = x.shape
    parts = cpu.parts_of_sums(rows, width)
    name = _registered("backward", centre, dtype_name(x.dtype), dtype_name(dy.dtype), has_bias)
    shapes = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        _float64(1 + has_bias, parts, width),
        _workspace(cpu.loops().backward_work(width), parts, x.size),
    )
    arguments = dy, x, _parameter(scale), jnp.asarray([eps], jnp.float64)
    dx, sums, _ = jax.ffi.ffi_call(name, shapes)(*arguments)
    dscale, *dbias = sums.sum(axis=1)
    return dx, dscale, dbias[0] if dbias else None


def _float64(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float64)


def _workspace(size: int, parts: int, elements: int) -> Any:
    """Room for a call, and for ``size`` numbers in each thread that is worth its start."""
    from ._frame import WORDS

    threads = max(1, min(cpu.available_processors(), parts, elements // _WORTH))
    return _float64(WORDS + threads * size)


def _parameter(array: Any) -> Any:
    return jnp.zeros(0, jnp.float32) if array is None else array


@functools.cache
def _registered(direction: str, centre: bool | None, *types: Any) -> str:
    """The name under which XLA finds the function."""
    from . import _frame

    function = getattr(_frame, direction)(centre, *types, _version())
    name = "_".join(["normkit", direction, "layer" if centre else "rms", *map(str, types)])
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function.ctypes), platform="cpu")
    _KEPT.append(function)
    return name


_KEPT: list[Any] = []  # machine code that XLA may call as long as the process lives
