"""XLA's call frame, read by compiled code. Offsets are those of `xla/ffi/api/c_api.h`."""

from typing import Any

from numba import cfunc, njit, types

from normkit.kernels._backward import backward_work
from normkit.kernels._compiled import parts_of_backward, parts_of_forward
from normkit.kernels._forward import forward_work
from normkit.kernels._parts import BACKWARD, FORWARD
from normkit.kernels._words import set_word, word

from ._pool import HEAD, TASK, new_block, run_parts, threads_for

# Places in XLA_FFI_CallFrame, XLA_FFI_Buffer and XLA_FFI_Metadata, in words of 8 bytes
_EXTENSION, _API, _CONTEXT, _ARGUMENTS, _RESULTS = 1, 2, 3, 9, 14
_DTYPE, _DATA, _DIMS = 2, 3, 5
_METADATA, _API_VERSION = 3, 3

_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

# Words of a workspace before the memory for each thread
WORDS = HEAD + FORWARD.size // 8


@njit
def _buffer(buffers: int, index: int) -> Any:
    """(address, first size, last size, dtype as `normkit.kernels.cpu.KINDS`) of a buffer."""
    buffer = word(buffers, index)
    dims, rank = word(buffer, _DIMS), word(buffer, _DIMS - 1)
    code = word(buffer, _DTYPE) & 0xFFFFFFFF
    kind = 1 if code == 11 else 2 if code == 12 else 3 if code == 16 else 4
    return word(buffer, _DATA), word(dims, 0), word(dims, rank - 1), kind


@njit
def _parameter(buffers: int, index: int) -> Any:
    """(address, kind) of scale or bias; (0, 0) of an empty one, which stands for none."""
    address, size, _, kind = _buffer(buffers, index)
    return (address, kind) if size else (0, 0)


@njit
def _write(block: int, words: Any) -> None:
    for i in range(len(words)):
        set_word(block, i, words[i])


def _handler(execute: Any, version: tuple[int, int]) -> Any:
    """What XLA calls: with an extension it asks for the version, without one for the result."""
    words = version[1] << 32 | version[0]

    @cfunc(types.int64(types.int64))
    def handler(frame: int) -> int:
        extension = word(frame, _EXTENSION)
        if extension:
            set_word(word(extension, _METADATA), _API_VERSION, words)
            return 0
        pool = word(frame, _API), word(frame, _CONTEXT)
        execute(pool, word(frame, _ARGUMENTS), word(frame, _RESULTS))
        return 0

    return handler


def forward(centre: bool | None, dtype: str, version: tuple[int, int]) -> Any:
    """x, scale, bias, eps -> y, workspace."""
    take_parts, size = parts_of_forward(centre, dtype), _SIZES[dtype]
    address, loop, words = take_parts.address, take_parts.loop, FORWARD.size // 8

    @njit
    def execute(pool: Any, arguments: int, results: int) -> None:
        x, rows, width, _ = _buffer(arguments, 0)
        scale, scale_kind = _parameter(arguments, 1)
        bias, bias_kind = _parameter(arguments, 2)
        eps = word(_buffer(arguments, 3)[0], 0)
        y = _buffer(results, 0)[0]
        work, room, _, _ = _buffer(results, 1)
        own = forward_work(width)
        threads = threads_for(*pool, (room - WORDS) // own, work)
        parts = min(rows, 4 * threads) if threads > 1 else 1
        block = new_block(words, threads, work)
        step = width * size
        _write(
            block,
            (
                *(0, 0, 0, parts, threads, work + 8 * WORDS, 8 * own, loop),
                *(rows, width, eps, x, step, 0, 0, 0, 0, y, step),
                *(scale, scale_kind, bias, bias_kind),
            ),
        )
        run_parts(*pool, block, address, TASK)

    return _handler(execute, version)


def backward(
    centre: bool | None, dtype: str, dy_dtype: str, has_bias: bool, version: tuple[int, int]
) -> Any:
    """dy, x, scale, eps -> dx, dscale and dbias in parts, workspace."""
    take_parts = parts_of_backward(centre, dtype, dy_dtype, has_bias)
    address, loop, words = take_parts.address, take_parts.loop, BACKWARD.size // 8
    size, dy_size = _SIZES[dtype], _SIZES[dy_dtype]

    @njit
    def execute(pool: Any, arguments: int, results: int) -> None:
        dy = _buffer(arguments, 0)[0]
        x, rows, width, _ = _buffer(arguments, 1)
        scale, scale_kind = _parameter(arguments, 2)
        eps = word(_buffer(arguments, 3)[0], 0)
        dx, sums = _buffer(results, 0)[0], _buffer(results, 1)[0]
        work, room, _, _ = _buffer(results, 2)
        parts = word(word(word(results, 1), _DIMS), 1)
        for i in range((1 + has_bias) * parts * width):
            set_word(sums, i, 0)
        own = backward_work(width)
        threads = threads_for(*pool, min(parts, (room - WORDS) // own), work)
        block = new_block(words, threads, work)
        step = width * size
        _write(
            block,
            (
                *(0, 0, 0, parts, threads, work + 8 * WORDS, 8 * own, loop),
                *(rows, width, eps, dy, width * dy_size, x, step, dx, step),
                *(scale, scale_kind, sums),
            ),
        )
        run_parts(*pool, block, address, TASK)

    return _handler(execute, version)
