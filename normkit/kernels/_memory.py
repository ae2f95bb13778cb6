"""Numbers in memory as Numba sees them: an address, an index, and a tag that stands for a dtype.

A tag is an argument of which only the type counts: one loop serves all dtypes, compiled for each.
Numba has no half types; uint16 stands for bfloat16 and int16 for float16, and LLVM converts.
"""

from llvmlite import ir
from numba import types
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

# What a kernel writes to: the compiler is told that none of these overlaps another, or an input
# except in place. Else it would not use vectors.
RESULT, TOTAL, WORK = range(3)


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
def load_float32(context, tag, address, index):
    """The number at ``index``, rounded to float32 where it is a float64."""

    def generate(context, builder, signature, arguments):
        value = loaded(builder, tag, arguments[1], arguments[2])
        return builder.fptrunc(value, _FLOAT) if tag == types.float64 else value

    return types.float32(tag, types.int64, types.int64), generate


@intrinsic
def magnitude(context, address, index):
    """The bits of the float64 at ``index``, without its sign."""

    def generate(context, builder, signature, arguments):
        bits = builder.load(
            builder.gep(builder.inttoptr(arguments[0], _I64.as_pointer()), [arguments[1]])
        )
        return builder.and_(bits, _I64(2**63 - 1))

    return types.int64(types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def store(context, place, tag, address, index, value):
    """Write a float32 or float64 ``value``, rounded; to a half type by way of float32."""
    place_number = place.literal_value

    def generate(context, builder, signature, arguments):
        number = rounded(builder, tag, arguments[4])
        _no_overlap(
            builder, written(builder, tag, arguments[2], arguments[3], number), place_number
        )
        return context.get_dummy_value()

    return types.void(place, tag, types.int64, types.int64, value), generate


@intrinsic
def keep(context, address, index, value):
    """Write a float64 to working memory."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(builder, types.float64, arguments[0], arguments[1])
        _no_overlap(builder, builder.store(arguments[2], pointer, align=8), WORK)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64), generate


@intrinsic
def kept(context, address, index):
    """A float64 from working memory."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(builder, types.float64, arguments[0], arguments[1])
        value = builder.load(pointer, align=8)
        _no_overlap(builder, value, WORK)
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


@intrinsic
def fused(context, a, b, c):
    """a b + c in one rounding."""

    def generate(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


@intrinsic
def fused_float32(context, a, b, c):
    """`fused` of float32 numbers."""

    def generate(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def trimmed(context, h):
    """``h`` rounded to 50 bits, as `normkit._arithmetic.Arithmetic.trimmed`: faster on integers."""

    def generate(context, builder, signature, arguments):
        bits = builder.add(builder.bitcast(arguments[0], _I64), _I64(4))
        return builder.bitcast(builder.and_(bits, _I64(-8)), _DOUBLE)

    return types.float64(types.float64), generate


def loaded(builder, tag, address, index, count=None):
    """The number at ``index``, a half type in float32; with ``count``, a vector of so many from there."""
    kind = _several(_IN_MEMORY[tag], count)
    pointer = builder.bitcast(_pointer(builder, tag, address, index), kind.as_pointer())
    value = builder.load(pointer, align=SIZE[tag])
    _no_overlap(builder, value, None)
    if tag == types.uint16:
        bits = builder.zext(value, _several(_I32, count))
        bits = builder.shl(bits, _number(_I32, 16, count))
        return builder.bitcast(bits, _several(_FLOAT, count))
    return builder.fpext(value, _several(_FLOAT, count)) if tag == types.int16 else value


def rounded(builder, tag, value, count=None):
    """A float32 or float64 number, or a vector of ``count``, as it is in memory."""
    wide = _several(_DOUBLE, count)
    if tag == types.float64:
        return value if value.type == wide else builder.fpext(value, wide)
    if value.type == wide:
        value = builder.fptrunc(value, _several(_FLOAT, count))
    if tag == types.uint16:
        return _to_bfloat16(builder, value, count)
    half = _several(ir.HalfType(), count)
    return builder.fptrunc(value, half) if tag == types.int16 else value


def written(builder, tag, address, index, value):
    """Write what `rounded` gave."""
    pointer = _pointer(builder, tag, address, index)
    pointer = builder.bitcast(pointer, value.type.as_pointer())
    return builder.store(value, pointer, align=SIZE[tag])


def _several(kind, count):
    return kind if count is None else ir.VectorType(kind, count)


def _number(kind, value, count):
    return kind(value) if count is None else ir.Constant(_several(kind, count), [value] * count)


def _pointer(builder, tag, address, index):
    return builder.gep(builder.inttoptr(address, _IN_MEMORY[tag].as_pointer()), [index])


def _to_bfloat16(builder, value, count):
    """A float32 rounded to nearest, ties to even; a NaN stays one."""

    def number(value):
        return _number(_I32, value, count)

    bits = builder.bitcast(value, _several(_I32, count))
    high = builder.lshr(bits, number(16))
    carry = builder.add(number(0x7FFF), builder.and_(high, number(1)))
    nearest = builder.lshr(builder.add(bits, carry), number(16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    chosen = builder.select(is_nan, builder.or_(high, number(0x40)), nearest)
    return builder.trunc(chosen, _several(_I16, count))


def _no_overlap(builder, instruction, place):
    """Tell LLVM that ``instruction`` and what touches another of the places do not overlap."""
    module = builder.module
    domain = module.add_metadata(["normkit"])
    places = [module.add_metadata([f"place {k}", domain]) for k in range(WORK + 1)]
    if place is not None:
        instruction.set_metadata("alias.scope", module.add_metadata([places[place]]))
    others = [scope for k, scope in enumerate(places) if k != place]
    instruction.set_metadata("noalias", module.add_metadata(others))
