"""The loops, compiled for the dtypes that they meet."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from ._backward import backward_rows
from ._cache import compiled
from ._forward import forward_rows
from ._memory import TAGS
from ._parts import backward_parts, forward_parts

_NUMBER, _REAL = types.int64, types.float64


class Parts(NamedTuple):
    """What takes parts of a call, given the address of its block (`_parts`)."""

    call: Callable[[int], None]
    address: int  # of the same as a function of C, which reads no argument but the first
    loop: int  # address of the loop that does the work, for the block


@functools.cache
def forward_loop(centre: bool | None, dtype: str) -> Callable[..., None]:
    """`forward_rows` for x of ``dtype``."""
    loop: Callable[..., None] = _overload(forward_rows, _of_forward(centre, dtype)).entry_point
    return loop


@functools.cache
def parts_of_forward(centre: bool | None, dtype: str) -> Parts:
    """`forward_parts` for x of ``dtype``."""
    loop = _overload(forward_rows, _of_forward(centre, dtype))
    result = _overload(forward_parts, (_NUMBER, _flag(centre), TAGS[dtype]))

    def call(block: int) -> None:
        result.entry_point(block, centre, 0)

    return Parts(call, _address(result), _address(loop))


@functools.cache
def parts_of_backward(centre: bool | None, dtype: str, dy_dtype: str, has_bias: bool) -> Parts:
    """`backward_parts` for x of ``dtype`` and dy of ``dy_dtype``."""
    bias = has_bias or None
    loop = _overload(backward_rows, _of_backward(centre, dtype, dy_dtype, has_bias))
    tags = _flag(centre), TAGS[dtype], TAGS[dy_dtype]
    result = _overload(backward_parts, (_NUMBER, *tags, _flag(bias)))

    def call(block: int) -> None:
        result.entry_point(block, centre, 0, 0, bias)

    return Parts(call, _address(result), _address(loop))


def _of_forward(centre: bool | None, dtype: str) -> tuple[Any, ...]:
    return _flag(centre), TAGS[dtype], *[_NUMBER] * 16, _REAL


def _of_backward(centre: bool | None, dtype: str, dy_dtype: str, has_bias: bool) -> tuple[Any, ...]:
    tags = _flag(centre), TAGS[dtype], TAGS[dy_dtype]
    return *tags, *[_NUMBER] * 9, _NUMBER if has_bias else types.none, *[_NUMBER] * 4, _REAL


def _flag(yes: bool | None) -> Any:
    return types.boolean if yes else types.none


def _overload(function: Callable[..., None], signature: tuple[Any, ...]) -> Any:
    """Its ``entry_point`` is the machine code with a wrapper that takes Python numbers.

    Without the look at each argument's type that a call of the dispatcher begins with.
    """
    dispatcher = compiled(function)
    dispatcher.compile(signature)
    return dispatcher.overloads[signature]


def _address(result: Any) -> int:
    found: int = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
    return found
