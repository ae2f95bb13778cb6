"""Where XLA departs from IEEE 754, put right.

XLA on the CPU flushes subnormal numbers to zero, casts included, contracts a product and a sum
into one rounding, and offers float64 only under a flag. Bit-casts still see the true bits, so
subnormals are decoded to float64 and encoded from it by integer arithmetic; float32 steps are
done in float64 and rounded explicitly, which is the same number (a product of two float32
values is exact in float64, and a sum keeps more than twice the digits).

The two casts are primitives, linear to JAX like its own cast, and each other's transpose: so a
gradient leaves float64 by the same exact cast as a result does.
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from normkit._arithmetic import Arithmetic
from normkit._checks import HALF_DTYPES, Axes, dtype_name
from normkit._pairs import Pair, PairArithmetic

_SMALLEST_NORMAL = 2.0**-126  # of float32 and of bfloat16, which has the same exponents

# JAX runs a derivative's rule later than the code around the function, outside of its scope.
_FLOAT64 = jax.enable_x64(True)

# dtype: (bits of the exponent, bits of the stored significand, smallest normal number)
_FORMATS = {
    "float32": (8, 23, _SMALLEST_NORMAL),
    "bfloat16": (8, 7, _SMALLEST_NORMAL),
    "float16": (5, 10, 2.0**-14),
}

_SMALLEST_SUBNORMAL = 2.0**-149  # of float32
_INFINITY = np.uint32(0x7F800000)  # its bits: an exponent of ones


def platforms(x: Any) -> set[str]:
    """Where x is; a traced one is taken to be on the default backend."""
    concrete = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return {d.platform for d in x.devices()} if concrete else {jax.default_backend()}


class JaxArithmetic(Arithmetic):
    """float64 in a local scope; with ``axis_name``, rows that span a mapped axis."""

    def __init__(self, axis_name: Any = None) -> None:
        super().__init__(jnp)
        self.axis_name = axis_name

    def has_float64(self, x: Any) -> bool:
        """Not on TPU: XLA makes it of two float32 numbers there, which have float32's range."""
        return "tpu" not in platforms(x)

    def pairs(self, x: Any) -> "JaxPairArithmetic":
        """Pairs whose bits XLA cannot change; for one trace of one computation."""
        return JaxPairArithmetic(self, x)

    def scope(self) -> AbstractContextManager[Any]:
        """float64 for the computation inside, whatever the user's flag says."""
        return jax.enable_x64(True)

    def widen(self, x: Any) -> Any:
        """``x`` in float64, exactly, subnormals included."""
        return _cast(x, "float64")

    def to_float32(self, x: Any) -> Any:
        """``x`` rounded once to a float32 number, held in float64."""
        wide = _cast(x, "float64")
        return _round_to(wide, "float32") if dtype_name(x.dtype) == "float64" else wide

    def narrow(self, y: Any, dtype: Any) -> Any:
        """``y`` rounded to ``dtype`` by way of float32 for the half dtypes, subnormals included."""
        return _cast(y, dtype_name(dtype))

    def trimmed(self, h: Any) -> Any:
        """``h`` rounded to 50 bits by the operation of XLA that no pass removes."""
        return lax.reduce_precision(h, 11, 49)

    def leading(self, x: Any) -> Any:
        """``x`` rounded to half of its digits by the same operation."""
        return lax.reduce_precision(x, 11, 25)

    def dtype_called(self, name: str) -> Any:
        """The dtype called ``name``."""
        return jnp.dtype(name)

    def round_to(self, y: Any, name: str) -> Any:
        """Float64 ``y`` rounded to the dtype called ``name``, held in float64."""
        return y if name == "float64" else _round_to(y, name)

    def constant(self, x: Any) -> Any:
        """``x`` cut off from derivatives, whose rules would run outside of the scope."""
        return lax.stop_gradient(x)

    def sum(self, x: Any, axes: Axes) -> Any:
        """Sum over ``axes``, and over the mapped axis if there is one."""
        total = super().sum(x, axes)
        if super().count(x, axes) == 1:
            # XLA drops a sum of one element, and with it that -0 + 0 = 0, as elsewhere
            total = total + lax.optimization_barrier(jnp.zeros_like(total))
        return total if self.axis_name is None else lax.psum(total, self.axis_name)

    def max(self, x: Any, axes: Axes) -> Any:
        """Maximum over ``axes``, and over the mapped axis if there is one."""
        largest = super().max(x, axes)
        return largest if self.axis_name is None else lax.pmax(largest, self.axis_name)

    def count(self, x: Any, axes: Axes) -> Any:
        """Number of elements that `sum` adds up."""
        n = super().count(x, axes)
        return n if self.axis_name is None else n * lax.axis_size(self.axis_name)


ARITHMETIC = JaxArithmetic()


class SmoothArithmetic(JaxArithmetic):
    """Without the roundings on the way: what derivatives are taken of."""

    def to_float32(self, x: Any) -> Any:
        """``x`` in float64, not rounded."""
        return _cast(x, "float64")

    def trimmed(self, h: Any) -> Any:
        """``h``, not rounded."""
        return h

    def round_to(self, y: Any, name: str) -> Any:
        """``y``, not rounded."""
        return y

    def number_in(self, number: float, name: str) -> float:
        """``number``, not rounded."""
        return number


class SingleArithmetic(JaxArithmetic):
    """Plain float32 in scaled rows: what derivatives are taken of where there is no float64."""

    def widen(self, x: Any) -> Any:
        """``x`` in float32."""
        return x.astype(jnp.float32)

    def to_float32(self, x: Any) -> Any:
        """``x`` in float32."""
        return x.astype(jnp.float32)

    def narrow(self, y: Any, dtype: Any) -> Any:
        """``y`` rounded to ``dtype``."""
        return y.astype(dtype)

    def trimmed(self, h: Any) -> Any:
        """``h``, not rounded."""
        return h

    def leading(self, x: Any) -> Any:
        """``x`` rounded to half of float32's digits."""
        return lax.reduce_precision(x, 8, 11)

    def row_root(self, x: Any, eps: float, axes: Axes) -> Any:
        """As for pairs, for the range is theirs."""
        return self.pairs(x).row_root(x, eps, axes)

    def scaled_eps(self, eps: float, q: Any) -> Any:
        """eps q^4."""
        return self.pairs(q).scaled_eps(eps, q).hi


class JaxPairArithmetic(PairArithmetic):
    """Pairs under XLA, which may merge a product with a sum that follows it into one rounding.

    Every rounded product goes through an exclusive or with 0. As the 0 is computed from the data,
    no compiler can know it: it has to finish the product first. A significand is halved by masking
    its bits.
    """

    def __init__(self, plain: JaxArithmetic, x: Any) -> None:
        word = "float64" if dtype_name(x.dtype) == "float64" else "float32"
        super().__init__(plain, word)
        self._axis_name = plain.axis_name
        self._bits, self._high = _PATTERNS[word]
        with self.scope():  # x may be float64
            self._zero = self._unknown_zero(x)

    def _unknown_zero(self, x: Any) -> Any:
        """The bits of |x_0 0|, with x_0 finite."""
        first = jnp.ravel(x)[:1].astype(self.dtype)
        first = jnp.where(jnp.isfinite(first), first, jnp.ones_like(first))
        return lax.bitcast_convert_type(jnp.sum(jnp.abs(first * 0.0)), jnp.dtype(self._bits))

    def rounded(self, x: Any) -> Any:
        """``x``, once it is computed."""
        return _opaque(x, self._zero) if x.dtype == self.dtype else x

    def two_product(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Masked halves do not overflow."""
        return self._two_product(a, b)

    def halves(self, a: Any) -> tuple[Any, Any]:
        """The leading bits of the significand, and the rest."""
        high = lax.bitcast_convert_type(
            lax.bitcast_convert_type(a, jnp.dtype(self._bits)) & self._high, a.dtype
        )
        return high, a - high

    def finished(self, hi: Any, lo: Any) -> tuple[Any, Any]:
        """Both, out of a loop of one turn, into which XLA cannot fuse the sum.

        It would compute every element anew at each level of the sum, and compile for a minute.
        """
        hi, lo = _once(hi, lo, self._zero)
        return hi, lo

    def sum(self, x: Pair, axes: Axes) -> Pair:
        """The parts of a mapped axis are gathered, for psum would add them up in float32."""
        found = self.total(x, axes)
        if self._axis_name is None:
            return found
        parts = found.each(lambda part: lax.all_gather(part, self._axis_name))
        return self.total(parts, (0,)).each(lambda part: part[0])

    def max(self, x: Any, axes: Axes) -> Any:
        """Over the mapped axis too."""
        return self._plain.max(x, axes)

    def count(self, x: Any, axes: Axes) -> Any:
        """Over the mapped axis too."""
        return self._plain.count(x, axes)

    def constant(self, x: Any) -> Any:
        """``x`` cut off from derivatives."""
        return self._plain.constant(x)


# word: (the integer dtype of its bits, the mask of the leading half of its significand)
_PATTERNS = {"float32": ("int32", -(1 << 12)), "float64": ("int64", -(1 << 27))}


@jax.custom_jvp
def _opaque(x: Any, zero: Any) -> Any:
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, zero.dtype) ^ zero, x.dtype)


@_opaque.defjvp
def _opaque_jvp(primals: Any, tangents: Any) -> Any:
    return _opaque(*primals), tangents[0]


@jax.custom_jvp
def _once(hi: Any, lo: Any, zero: Any) -> Any:
    def turn(state: Any) -> Any:
        return state[0] + 1, state[1], state[2]

    return lax.while_loop(lambda state: state[0] <= zero, turn, (zero, hi, lo))[1:]


@_once.defjvp
def _once_jvp(primals: Any, tangents: Any) -> Any:
    return _once(*primals), tangents[:2]


def _decode(x: Any) -> Any:
    """``x`` in float64, exactly."""
    name = dtype_name(x.dtype)
    if name == "float32":
        return _of_float32_bits(lax.bitcast_convert_type(x, jnp.uint32))
    if name == "bfloat16":  # the upper half of a float32
        return _of_float32_bits(lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32) << 16)
    return x.astype(jnp.float64)


def _encode(y: Any, name: str) -> Any:
    """Float64 ``y`` rounded to the dtype called ``name``, to a half dtype by way of float32."""
    if name == "float64":
        return y
    bits = _float32_bits(y)
    if name != "bfloat16":
        return lax.bitcast_convert_type(bits, jnp.float32).astype(name)
    quiet = bits | jnp.uint32(1 << 22)  # a NaN must not be rounded to infinity
    rounded = bits + jnp.uint32(0x7FFF) + (bits >> 16 & 1)  # to nearest, ties to even
    upper = jnp.where(bits << 1 > _INFINITY << 1, quiet, rounded) >> 16
    return lax.bitcast_convert_type(upper.astype(jnp.uint16), jnp.bfloat16)


def _of_float32_bits(bits: Any) -> Any:
    """The float64 of a float32's bits."""
    normal = lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.float64)
    # through int32, for which processors have an instruction
    significand = (bits & jnp.uint32(0x7FFFFF)).astype(jnp.int32).astype(jnp.float64)
    magnitude = significand * _SMALLEST_SUBNORMAL
    subnormal = jnp.where(bits >> 31 == 1, -magnitude, magnitude)
    return jnp.where(bits & _INFINITY == 0, subnormal, normal)


def _float32_bits(y: Any) -> Any:
    """The bits of float64 ``y`` rounded to float32."""
    normal = lax.bitcast_convert_type(y.astype(jnp.float32), jnp.uint32)
    magnitude, bits = jnp.abs(y), lax.bitcast_convert_type(y, jnp.uint64)
    # beside 2^-97 the last digit of a float64 is the smallest subnormal: the sum rounds to it
    digits = lax.bitcast_convert_type(magnitude + 2.0**-97, jnp.uint64).astype(jnp.uint32)
    sign = (bits >> 32).astype(jnp.uint32) & jnp.uint32(1 << 31)
    return jnp.where(magnitude < _SMALLEST_NORMAL, digits | sign, normal)


@_FLOAT64
def _cast_as_operations(x: Any, *, name: str) -> Any:
    return _decode(x) if name == "float64" else _encode(x, name)


def _cast(x: Any, name: str) -> Any:
    """``x`` in the dtype called ``name``; one of the two is float64."""
    return x if dtype_name(x.dtype) == name else _CAST.bind(x, name=name)


_CAST = Primitive("normkit_cast")
_CAST.def_impl(jax.jit(_cast_as_operations, static_argnames="name"))
_CAST.def_abstract_eval(_FLOAT64(lambda x, *, name: x.update(dtype=jnp.dtype(name))))
mlir.register_lowering(_CAST, mlir.lower_fun(_cast_as_operations, multiple_results=False))
batching.defvectorized(_CAST)
ad.deflinear2(_CAST, lambda t, x, *, name: [_cast(t, dtype_name(x.aval.dtype))])


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _round_to(y: Any, name: str) -> Any:
    """Float64 ``y`` rounded to float32 and, for a half dtype, from there once more."""
    if name in HALF_DTYPES:
        y = _round_to(y, "float32")
    exponent_bits, significand_bits, smallest_normal = _FORMATS[name]
    # lax.reduce_precision survives XLA's removal of paired casts; it flushes subnormals
    spacing = smallest_normal * 2.0**-significand_bits
    subnormal = jnp.round(y / spacing) * spacing
    normal = lax.reduce_precision(y, exponent_bits, significand_bits)
    return jnp.where(jnp.abs(y) < smallest_normal, subnormal, normal)


@_round_to.defjvp
@_FLOAT64
def _round_to_jvp(name: str, primals: Any, tangents: Any) -> Any:
    (y,), (t,) = primals, tangents
    return _round_to(y, name), t  # the derivative of the number that is rounded
