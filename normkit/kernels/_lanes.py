"""Vectors of numbers, for loops that the compiler would not make as good vectors of by itself.

What takes `Lanes` takes one number too: a loop over columns is written once, and serves those that are
left over when the others have gone by `LANES`.
"""

import operator

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_jitable, register_model

from ._memory import SIZE, constant, loaded, rounded, several, written

# Numbers of a vector: some of the machine's registers for each, and not more than it has for all
LANES = 32 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 16

_LINE = 64  # bytes that processors move at once

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_NUMBER = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


class Lanes(types.Type):
    """The type of a vector of `LANES` numbers of a dtype, float32 or float64."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(f"Lanes({dtype})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _vector(kind))


@intrinsic
def lanes(context, value):
    """``value`` in each lane."""
    kind = Lanes(value)

    def generate(context, builder, signature, arguments):
        return _as(builder, kind, arguments[0])

    return kind(value), generate


def in_columns(write):
    """The function ``(zero, width, arguments)`` that calls ``write(like, j, *arguments)`` for all columns.

    ``write`` does those from ``j`` on, as many as ``like`` has, which is ``zero`` in each.
    """

    def columns_of_row(zero, width, arguments):
        j = 0
        while j + LANES <= width:
            write(lanes(zero), j, *arguments)
            j += LANES
        while j < width:
            write(zero, j, *arguments)
            j += 1

    # As `_statistics.in_blocks`: the name must say which
    columns_of_row.__qualname__ = f"{write.__module__}_{write.__name__}"
    return register_jitable(columns_of_row)


@intrinsic
def load_lanes(context, like, tag, address, index):
    """The numbers from ``index`` on, as many as ``like`` has and of its dtype."""

    def generate(context, builder, signature, arguments):
        value = loaded(builder, tag, arguments[2], arguments[3], _count(like))
        return _converted(builder, value, like)

    return like(like, tag, types.int64, types.int64), generate


@intrinsic
def store_lanes(context, tag, address, index, value):
    """Write numbers from ``index`` on, rounded; to a half type by way of float32."""

    def generate(context, builder, signature, arguments):
        numbers = rounded(builder, tag, arguments[3], _count(value))
        written(builder, tag, arguments[1], arguments[2], numbers)
        return context.get_dummy_value()

    return types.void(tag, types.int64, types.int64, value), generate


@intrinsic
def float32_lanes(context, value):
    """Rounded to float32."""
    kind = Lanes(types.float32) if isinstance(value, Lanes) else types.float32

    def generate(context, builder, signature, arguments):
        return _converted(builder, arguments[0], kind)

    return kind(value), generate


@intrinsic
def fused_lanes(context, a, b, c):
    """a b + c in one rounding; some of them may be one number for all lanes."""
    kind = _widest(a, b, c)

    def generate(context, builder, signature, arguments):
        own = _vector(kind)
        size = f"v{LANES}" if isinstance(kind, Lanes) else ""
        name = f"llvm.fma.{size}f{dtype_of(kind).bitwidth}"
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(own, [own] * 3), name)
        return builder.call(fma, [_as(builder, kind, argument) for argument in arguments])

    return kind(a, b, c), generate


@intrinsic
def trimmed_lanes(context, h):
    """``h`` rounded to 50 bits, as `normkit._arithmetic.Arithmetic.trimmed`: faster on integers."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], several(_I64, _count(h)))
        bits = builder.add(bits, constant(_I64, 4, _count(h)))
        return builder.bitcast(builder.and_(bits, constant(_I64, -8, _count(h))), _vector(h))

    return h(h), generate


@intrinsic
def will_store_lanes(context, tag, address, index):
    """Have the processor fetch what a later `store_lanes` of `LANES` numbers will write to."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        first = builder.add(arguments[1], builder.mul(arguments[2], _I64(SIZE[tag])))
        for line in range(0, LANES * SIZE[tag], _LINE):
            at = builder.inttoptr(builder.add(first, _I64(line)), _I8.as_pointer())
            builder.call(prefetch, [at, _I32(1), _I32(3), _I32(1)])  # to write, soon, of data
        return context.get_dummy_value()

    return types.void(tag, types.int64, types.int64), generate


def _binary(name):
    @intrinsic
    def of_lanes(context, a, b):
        kind = _widest(a, b)

        def generate(context, builder, signature, arguments):
            return getattr(builder, name)(*(_as(builder, kind, value) for value in arguments))

        return kind(a, b), generate

    return of_lanes


_add, _subtract, _multiply = _binary("fadd"), _binary("fsub"), _binary("fmul")


@overload(operator.add)
def _sum(a, b):
    return (lambda a, b: _add(a, b)) if isinstance(_widest(a, b), Lanes) else None


@overload(operator.sub)
def _difference(a, b):
    return (lambda a, b: _subtract(a, b)) if isinstance(_widest(a, b), Lanes) else None


@overload(operator.mul)
def _product(a, b):
    return (lambda a, b: _multiply(a, b)) if isinstance(_widest(a, b), Lanes) else None


def _widest(*kinds):
    """The first type of lanes, or the type of all."""
    return next((kind for kind in kinds if isinstance(kind, Lanes)), kinds[0])


def dtype_of(kind):
    """Of each number of such a vector, or of the one number."""
    return kind.dtype if isinstance(kind, Lanes) else kind


def _count(kind):
    return LANES if isinstance(kind, Lanes) else None


def _vector(kind):
    return several(_NUMBER[dtype_of(kind)], _count(kind))


def _converted(builder, value, kind):
    """``value``, which has as many numbers as ``kind``, in its dtype."""
    own = _vector(kind)
    if value.type == own:
        return value
    return (
        builder.fpext(value, own)
        if dtype_of(kind) == types.float64
        else builder.fptrunc(value, own)
    )


def _as(builder, kind, value):
    """``value`` in each lane, where ``kind`` has lanes and it has not."""
    own = _vector(kind)
    if value.type == own:
        return value
    first = builder.insert_element(ir.Constant(own, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(first, first, constant(_I32, 0, LANES))
