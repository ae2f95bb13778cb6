"""Numbers in memory as Numba sees them: an address, an index, and a tag that stands for a dtype.

A tag is an argument of which only the type counts: one loop serves all dtypes, compiled for each.
Numba has no half types; uint16 stands for bfloat16 and int16 for float16, and LLVM converts.
"""

import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

TAGS = {
    "float32": types.float32,
    "float64": types.float64,
    "bfloat16": types.uint16,
    "float16": types.int16,
}
HALF = (types.uint16, types.int16)

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_IN_MEMORY = {
    types.float32: _FLOAT,
    types.float64: _DOUBLE,
    types.uint16: _I16,
    types.int16: ir.HalfType(),
}
SIZE = {types.float32: 4, types.float64: 8, types.uint16: 2, types.int16: 2}

_ANY_ORDER = ("reassoc", "nsz")


@intrinsic
def size(context, tag):
    """Bytes of a number in memory."""

    def generate(context, builder, signature, arguments):
        return _I64(SIZE[tag])

    return types.int64(tag), generate


@intrinsic
def load(context, tag, address, index):
    """The number at ``index``, in float64."""

    def generate(context, builder, signature, arguments):
        value = loaded(builder, tag, arguments[1], arguments[2])
        return value if tag == types.float64 else builder.fpext(value, _DOUBLE)

    return types.float64(tag, types.int64, types.int64), generate


@intrinsic
def magnitude(context, address, index):
    """The bits of the float64 at ``index``, without its sign."""

    def generate(context, builder, signature, arguments):
        bits = builder.load(
            builder.gep(builder.inttoptr(arguments[0], _I64.as_pointer()), [arguments[1]])
        )
        return builder.and_(bits, _I64(2**63 - 1))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def keep(context, address, index, value):
    """Write a float32 or float64 to working memory."""

    def generate(context, builder, signature, arguments):
        kept_value = written(builder, value, arguments[0], arguments[1], arguments[2])
        _in_work(builder, kept_value, True)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), generate


@intrinsic
def kept(context, address, index):
    """A float64 from working memory."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(builder, types.float64, arguments[0], arguments[1])
        value = builder.load(pointer, align=SIZE[types.float64])
        _in_work(builder, value, True)
        return value

    return types.float64(types.int64, types.int64), generate


@intrinsic
def add_up(context, total, term):
    """total + term in a sum that may be added in any order: the compiler makes vectors of it.

    Of this operation alone. A whole function in fast mathematics would merge subtractions too.
    """

    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments, flags=_ANY_ORDER)

    return types.float64(types.float64, types.float64), generate


@intrinsic
def multiply_add(context, a, b, c):
    """a b + c in a sum whose order does not matter, in one rounding where the machine can."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_DOUBLE, [_DOUBLE] * 3)
        function = builder.module.declare_intrinsic("llvm.fmuladd", [_DOUBLE], kind)
        return builder.call(function, arguments, fastmath=_ANY_ORDER)

    return types.float64(types.float64, types.float64, types.float64), generate


def loaded(builder, tag, address, index, count=None):
    """The number at ``index``, a half type in float32; with ``count``, a vector of so many from there."""
    kind = several(_IN_MEMORY[tag], count)
    pointer = builder.bitcast(_pointer(builder, tag, address, index), kind.as_pointer())
    value = builder.load(pointer, align=SIZE[tag])
    _in_work(builder, value, False)
    if tag == types.uint16:
        bits = builder.zext(value, several(_I32, count))
        bits = builder.shl(bits, constant(_I32, 16, count))
        return builder.bitcast(bits, several(_FLOAT, count))
    return builder.fpext(value, several(_FLOAT, count)) if tag == types.int16 else value


def rounded(builder, tag, value, count=None):
    """A float32 or float64 number, or a vector of ``count``, as it is in memory."""
    wide = several(_DOUBLE, count)
    if tag == types.float64:
        return value if value.type == wide else builder.fpext(value, wide)
    if value.type == wide:
        value = builder.fptrunc(value, several(_FLOAT, count))
    if tag == types.uint16:
        return _to_bfloat16(builder, value, count)
    half = several(ir.HalfType(), count)
    return builder.fptrunc(value, half) if tag == types.int16 else value


def written(builder, tag, address, index, value):
    """Write what `rounded` gave."""
    pointer = _pointer(builder, tag, address, index)
    pointer = builder.bitcast(pointer, value.type.as_pointer())
    return builder.store(value, pointer, align=SIZE[tag])


def several(kind, count):
    """The LLVM type of ``count`` numbers, or of one."""
    return kind if count is None else ir.VectorType(kind, count)


def constant(kind, value, count):
    """``value`` in each of ``count`` lanes."""
    return kind(value) if count is None else ir.Constant(several(kind, count), [value] * count)


def _pointer(builder, tag, address, index):
    return builder.gep(builder.inttoptr(address, _IN_MEMORY[tag].as_pointer()), [index])


def _to_bfloat16(builder, value, count):
    """A float32 rounded to nearest, ties to even; a NaN, which is quiet after any arithmetic, stays one.

    In integers of 16 bits, of which a register holds most.
    """
    high, low = _halves(builder, value, count)
    kind = several(_I16, count)
    sums = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [kind, kind]),
        f"llvm.uadd.sat.{'' if count is None else f'v{count}'}i16",
    )
    rest = builder.call(sums, [low, builder.and_(high, constant(_I16, 1, count))])
    up = builder.icmp_unsigned(">", rest, constant(_I16, 0x8000, count))
    magnitude = builder.and_(high, constant(_I16, 0x7FFF, count))
    is_number = builder.icmp_unsigned("<=", magnitude, constant(_I16, 0x7F80, count))
    return builder.add(high, builder.zext(builder.and_(up, is_number), kind))


def _halves(builder, value, count):
    """The upper and the lower 16 bits of float32 numbers."""
    bits = builder.bitcast(value, several(_I32, count))
    if count is None:
        return builder.trunc(builder.lshr(bits, _I32(16)), _I16), builder.trunc(bits, _I16)
    halves = builder.bitcast(bits, ir.VectorType(_I16, 2 * count))
    upper, lower = (1, 0) if sys.byteorder == "little" else (0, 1)
    kind = ir.VectorType(_I32, count)
    places = (ir.Constant(kind, [*range(first, 2 * count, 2)]) for first in (upper, lower))
    return [builder.shuffle_vector(halves, halves, place) for place in places]


def _in_work(builder, instruction, yes):
    """Tell LLVM whether ``instruction`` is about working memory, which nothing else overlaps.

    Else it would not make vectors of a loop that keeps what it reads.
    """
    module = builder.module
    scope = module.add_metadata(["working memory", module.add_metadata(["normkit"])])
    instruction.set_metadata("alias.scope" if yes else "noalias", module.add_metadata([scope]))
