"""Vectors of float64 numbers, for loops that the compiler would not make vectors of by itself.

What takes `Lanes` takes one float64 number too: a loop over columns is written once, and serves those
that are left over when the others have gone by `LANES`.
"""

import operator

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from ._memory import SIZE, loaded, rounded, written

# Numbers of a vector: some of the machine's registers for each, and not more than it has for all
LANES = 32 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 16

_LINE = 64  # bytes that processors move at once

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_DOUBLE = ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, LANES)


class Lanes(types.Type):
    """The type of a vector of `LANES` float64 numbers."""

    def __init__(self):
        super().__init__("Lanes")


_LANES = Lanes()


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _VECTOR)


@intrinsic
def lanes(context, value):
    """``value`` in each lane."""

    def generate(context, builder, signature, arguments):
        return _each(builder, arguments[0])

    return _LANES(types.float64), generate


@intrinsic
def load_lanes(context, like, tag, address, index):
    """The numbers from ``index`` on, in float64: as many as ``like`` has."""

    def generate(context, builder, signature, arguments):
        value = loaded(builder, tag, arguments[2], arguments[3], _count(like))
        return value if tag == types.float64 else builder.fpext(value, _type_of(like))

    return like(like, tag, types.int64, types.int64), generate


@intrinsic
def store_lanes(context, tag, address, index, value):
    """Write float64 numbers from ``index`` on, rounded; to a half type by way of float32."""

    def generate(context, builder, signature, arguments):
        numbers = rounded(builder, tag, arguments[3], _count(value))
        written(builder, tag, arguments[1], arguments[2], numbers)
        return context.get_dummy_value()

    return types.void(tag, types.int64, types.int64, value), generate


@intrinsic
def fused_lanes(context, a, b, c):
    """a b + c in one rounding; some of them may be one number for all lanes."""
    kind = _LANES if _LANES in (a, b, c) else types.float64

    def generate(context, builder, signature, arguments):
        own = _type_of(kind)
        name = f"llvm.fma.v{LANES}f64" if kind == _LANES else "llvm.fma.f64"
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(own, [own] * 3), name)
        return builder.call(fma, [_as(builder, kind, argument) for argument in arguments])

    return kind(a, b, c), generate


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
        def generate(context, builder, signature, arguments):
            return getattr(builder, name)(*(_as(builder, _LANES, value) for value in arguments))

        return _LANES(a, b), generate

    return of_lanes


_add, _subtract, _multiply = _binary("fadd"), _binary("fsub"), _binary("fmul")


@overload(operator.add)
def _sum(a, b):
    return (lambda a, b: _add(a, b)) if _LANES in (a, b) else None


@overload(operator.sub)
def _difference(a, b):
    return (lambda a, b: _subtract(a, b)) if _LANES in (a, b) else None


@overload(operator.mul)
def _product(a, b):
    return (lambda a, b: _multiply(a, b)) if _LANES in (a, b) else None


def _count(kind):
    return LANES if kind == _LANES else None


def _type_of(kind):
    return _VECTOR if kind == _LANES else _DOUBLE


def _as(builder, kind, value):
    return _each(builder, value) if kind == _LANES and value.type == _DOUBLE else value


def _each(builder, value):
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, first, zeros)
