"""Parts of a call on the threads of XLA's own pool. Offsets are those of `xla/ffi/api/c_api.h`.

XLA may run a task late, or only when the caller is done. So nobody waits for a task, only for the
parts that were taken; and the block that tasks read is freed by whoever is the last to leave it.
"""

from typing import Any

from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from normkit.kernels._parts import DONE, PARTS
from normkit.kernels._words import call, set_word, take, word, word_now

# Places in XLA_FFI_Api, in words of 8 bytes
_DESTROY_ERROR, _SCHEDULE, _NUMBER_OF_THREADS = 8, 17, 18

_IEEE = 0x1F80  # the processor's control word without flushing of subnormal numbers

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

# Before the block: how many have left it, of how many, and the function that takes parts
_LEFT, _OF, _TAKE_PARTS, HEAD = range(4)


@intrinsic
def _control(context: Any, value: Any) -> Any:
    """Set the thread's floating-point control word; the old one is returned."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        place = builder.alloca(_I32)
        pointer = builder.bitcast(place, _I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer()])
        store = builder.module.declare_intrinsic("llvm.x86.sse.stmxcsr", fnty=kind)
        load = builder.module.declare_intrinsic("llvm.x86.sse.ldmxcsr", fnty=kind)
        builder.call(store, [pointer])
        old = builder.load(place)
        builder.store(builder.trunc(arguments[0], _I32), place)
        builder.call(load, [pointer])
        return builder.zext(old, _I64)

    return types.int64(types.int64), generate


@intrinsic
def _pause(context: Any) -> Any:
    """Tell the processor that the thread waits."""

    def generate(context: Any, builder: Any, _: Any, __: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", fnty=kind), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _ask(context: Any, function: Any, words: Any) -> Any:
    """The error, or 0, of a function of XLA's that takes a struct of ``words``."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        struct = builder.alloca(_I64, size=len(words))
        for i in range(len(words)):
            value = builder.extract_value(arguments[1], i)
            builder.store(value, builder.gep(struct, [_I64(i)]))
        kind = ir.FunctionType(_I64, [_I64.as_pointer()]).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], kind), [struct])

    return types.int64(types.int64, words), generate


@intrinsic
def _allocate(context: Any, size: Any) -> Any:
    """The address of so many bytes, or 0."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I64])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "malloc"), arguments
        )

    return types.int64(types.int64), generate


@intrinsic
def _free(context: Any, address: Any) -> Any:
    """Free what `_allocate` gave."""

    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "free"), arguments)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit
def failed(api: int, error: int) -> bool:
    """Whether there is an error, which is XLA's to destroy."""
    if error:
        _ask(word(api, _DESTROY_ERROR), (24, 0, error))
    return error != 0


@njit
def threads_for(api: int, context: int, most: int, scratch: int) -> int:
    """How many threads of XLA's pool to use, the caller's among them; ``scratch`` is a word."""
    if most < 2 or word(api, 0) < 8 * (_NUMBER_OF_THREADS + 1):
        return 1
    set_word(scratch, 0, 1)
    if failed(api, _ask(word(api, _NUMBER_OF_THREADS), (32, 0, context, scratch))):
        return 1
    return min(most, word(scratch, 0))


@njit
def new_block(words: int, threads: int, work: int) -> int:
    """The address of a block of so many words that ``threads`` threads leave, else ``work``."""
    memory = _allocate(8 * (HEAD + words)) if threads > 1 else 0
    if memory == 0:
        memory, threads = work, 1
    set_word(memory, _LEFT, 0)
    set_word(memory, _OF, threads)
    return memory + 8 * HEAD


@njit
def _leave(block: int) -> None:
    memory = block - 8 * HEAD
    if take(memory, _LEFT) + 1 == word(memory, _OF):
        _free(memory)


@cfunc(types.void(types.int64))
def _task(block: int) -> None:
    """What a thread of the pool does; XLA lets its threads flush subnormal numbers."""
    before = _control(_IEEE)
    call(word(block - 8 * HEAD, _TAKE_PARTS), (block,))
    _control(before)
    _leave(block)


@njit
def run_parts(api: int, context: int, block: int, take_parts: int, task: int) -> None:
    """Have all parts of the block taken, by as many threads as it was made for."""
    memory = block - 8 * HEAD
    set_word(memory, _TAKE_PARTS, take_parts)
    threads = word(memory, _OF)
    for _ in range(1, threads):
        if failed(api, _ask(word(api, _SCHEDULE), (40, 0, context, task, block))):
            take(memory, _LEFT)
    before = _control(_IEEE)
    call(take_parts, (block,))
    _control(before)
    while word_now(block, DONE) < word(block, PARTS):
        _pause()
    if threads > 1:
        _leave(block)


TASK: int = _task.address
