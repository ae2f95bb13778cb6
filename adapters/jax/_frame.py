"""XLA's call frame, read by compiled code. Offsets are those of `xla/ffi/api/c_api.h`."""

from typing import Any

from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from normkit.kernels._compiled import backward_function, forward_function
from normkit.kernels._words import word

# Places in XLA_FFI_CallFrame, XLA_FFI_Buffer and XLA_FFI_Metadata, in words of 8 bytes
_EXTENSION, _ARGUMENTS, _RESULTS = 1, 9, 14
_DTYPE, _DATA, _DIMS = 2, 3, 5
_METADATA, _API_VERSION = 3, 3

_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

_IEEE = 0x1F80  # the processor's control word without flushing of subnormal numbers


@intrinsic
def _set_word(context: Any, address: Any, index: Any, value: Any) -> Any:
    """Store an integer in the word ``index`` at an address."""

    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[2], builder.gep(pointer, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _control(context: Any, value: Any) -> Any:
    """Set the thread's floating-point control word; the old one is returned."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        place = builder.alloca(ir.IntType(32))
        pointer = builder.bitcast(place, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
        store = builder.module.declare_intrinsic("llvm.x86.sse.stmxcsr", fnty=kind)
        load = builder.module.declare_intrinsic("llvm.x86.sse.ldmxcsr", fnty=kind)
        builder.call(store, [pointer])
        old = builder.load(place)
        builder.store(builder.trunc(arguments[0], ir.IntType(32)), place)
        builder.call(load, [pointer])
        return builder.zext(old, ir.IntType(64))

    return types.int64(types.int64), generate


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


def _handler(execute: Any, version: tuple[int, int]) -> Any:
    """What XLA calls: with an extension it asks for the version, without one for the result."""
    words = version[1] << 32 | version[0]

    @cfunc(types.int64(types.int64))
    def handler(frame: int) -> int:
        extension = word(frame, _EXTENSION)
        if extension:
            _set_word(word(extension, _METADATA), _API_VERSION, words)
            return 0
        before = _control(_IEEE)
        execute(word(frame, _ARGUMENTS), word(frame, _RESULTS))
        _control(before)
        return 0

    return handler


def forward(centre: bool | None, dtype: str, version: tuple[int, int]) -> Any:
    """x, scale, bias, eps -> y, workspace."""
    loop, size, one = forward_function(centre, dtype), _SIZES[dtype], int(centre is True)

    @njit
    def execute(arguments: int, results: int) -> None:
        x, rows, width, _ = _buffer(arguments, 0)
        scale, scale_kind = _parameter(arguments, 1)
        bias, bias_kind = _parameter(arguments, 2)
        eps = _float64(_buffer(arguments, 3)[0])
        y, work = _buffer(results, 0)[0], _buffer(results, 1)[0]
        step = width * size
        loop(
            *(one, 0, x, step, 0, 0, 0, 0, y, step),
            *(scale, scale_kind, bias, bias_kind, work, 0, rows, width, eps),
        )

    return _handler(execute, version)


def backward(
    centre: bool | None, dtype: str, dy_dtype: str, has_bias: bool, version: tuple[int, int]
) -> Any:
    """dy, x, scale, eps -> dx, dscale and dbias in parts, workspace."""
    loop, one = backward_function(centre, dtype, dy_dtype, has_bias), int(centre is True)
    size, dy_size = _SIZES[dtype], _SIZES[dy_dtype]

    @njit
    def execute(arguments: int, results: int) -> None:
        dy = _buffer(arguments, 0)[0]
        x, rows, width, _ = _buffer(arguments, 1)
        scale, scale_kind = _parameter(arguments, 2)
        eps = _float64(_buffer(arguments, 3)[0])
        dx, sums, work = _buffer(results, 0)[0], _buffer(results, 1)[0], _buffer(results, 2)[0]
        parts = word(word(word(results, 1), _DIMS), 1)
        for i in range((1 + has_bias) * parts * width):
            _set_word(sums, i, 0)
        step = width * size
        for part in range(parts):
            dscale = sums + 8 * width * part
            dbias = dscale + 8 * width * parts
            first, last = rows * part // parts, rows * (part + 1) // parts
            loop(
                *(one, 0, 0, dy, width * dy_size, x, step, dx, step),
                *(scale, scale_kind, dscale, dbias, work, first, last, width, eps),
            )

    return _handler(execute, version)


@intrinsic
def _float64(context: Any, address: Any) -> Any:
    """The number at an address."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.DoubleType().as_pointer()))

    return types.float64(types.int64), generate
