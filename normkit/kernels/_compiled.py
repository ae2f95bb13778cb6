"""The loops, compiled for the dtypes that they meet, and kept on disk where there is a place."""

import ctypes
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit, types

from ._backward import backward_rows
from ._forward import forward_rows
from ._memory import TAGS

_NUMBER, _REAL = types.int64, types.float64


@functools.cache
def forward_loop(centre: bool | None, dtype: str) -> Callable[..., None]:
    """`forward_rows` for x of ``dtype``."""
    return _for_python(forward_rows, _forward_signature(centre, dtype))


@functools.cache
def backward_loop(
    centre: bool | None, dtype: str, dy_dtype: str, has_bias: bool
) -> Callable[..., None]:
    """`backward_rows` for x of ``dtype`` and dy of ``dy_dtype``."""
    return _for_python(backward_rows, _backward_signature(centre, dtype, dy_dtype, has_bias))


def forward_function(centre: bool | None, dtype: str) -> Any:
    """`forward_loop` as a function of C, for code that runs without Python."""
    return _c_function(forward_rows, _forward_signature(centre, dtype))


def backward_function(centre: bool | None, dtype: str, dy_dtype: str, has_bias: bool) -> Any:
    """`backward_loop` as a function of C."""
    return _c_function(backward_rows, _backward_signature(centre, dtype, dy_dtype, has_bias))


def _forward_signature(centre: bool | None, dtype: str) -> tuple[Any, ...]:
    return _centre(centre), TAGS[dtype], *[_NUMBER] * 16, _REAL


def _backward_signature(
    centre: bool | None, dtype: str, dy_dtype: str, has_bias: bool
) -> tuple[Any, ...]:
    tags = _centre(centre), TAGS[dtype], TAGS[dy_dtype]
    return *tags, *[_NUMBER] * 9, _NUMBER if has_bias else types.none, *[_NUMBER] * 4, _REAL


def _c_function(function: Callable[..., None], signature: tuple[Any, ...]) -> Any:
    result = _overload(function, signature)
    address = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
    return ctypes.CFUNCTYPE(None, *(_C_TYPES[t] for t in signature))(address)


# None is a pointer that nobody reads
_C_TYPES: dict[Any, Any] = {
    types.none: ctypes.c_int64,
    types.boolean: ctypes.c_bool,
    types.int64: ctypes.c_int64,
    types.uint16: ctypes.c_uint16,
    types.int16: ctypes.c_int16,
    types.float32: ctypes.c_float,
    types.float64: ctypes.c_double,
}


def _centre(centre: bool | None) -> Any:
    return types.boolean if centre else types.none


def _for_python(function: Callable[..., None], signature: tuple[Any, ...]) -> Callable[..., None]:
    # The entry point is the machine code with a wrapper that takes Python numbers: without the
    # look at each argument's type that a call of the dispatcher begins with.
    entry_point: Callable[..., None] = _overload(function, signature).entry_point
    return entry_point


def _overload(function: Callable[..., None], signature: tuple[Any, ...]) -> Any:
    dispatcher = _dispatcher(function)
    dispatcher.compile(signature)
    return dispatcher.overloads[signature]


@functools.cache
def _dispatcher(function: Callable[..., None]) -> Any:
    # Numba names the file by the function and checks the time of its module alone
    function.__qualname__ += "_" + _digest()
    try:
        return njit(function, nogil=True, cache=True)
    except RuntimeError:  # there is no folder that Numba could write to
        return njit(function, nogil=True)


@functools.cache
def _digest() -> str:
    """Of all that the loops are made of."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
