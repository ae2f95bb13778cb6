"""Integers of 64 bits at addresses, and functions to call there."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I64 = ir.IntType(64)


@intrinsic
def word(context, address, index):
    """The integer of 64 bits at ``index``."""

    def generate(context, builder, signature, arguments):
        return builder.load(_pointer(builder, *arguments))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def set_word(context, address, index, value):
    """Write an integer at ``index``."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _pointer(builder, *arguments[:2]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def take(context, address, index):
    """The integer at ``index``, to which 1 is added before another thread can take it."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _pointer(builder, *arguments), _I64(1), "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def word_now(context, address, index):
    """The integer at ``index``, which other threads change, and what they wrote before it."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_pointer(builder, *arguments), "acquire", 8)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def call(context, address, arguments):
    """Call the C function at an address, which returns nothing, with a tuple of arguments."""

    def generate(context, builder, signature, values):
        members = [context.get_value_type(kind) for kind in arguments.types]
        function = ir.FunctionType(ir.VoidType(), members).as_pointer()
        unpacked = [builder.extract_value(values[1], i) for i in range(len(members))]
        builder.call(builder.inttoptr(values[0], function), unpacked)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


def _pointer(builder, address, index):
    return builder.gep(builder.inttoptr(address, _I64.as_pointer()), [index])
