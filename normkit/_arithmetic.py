"""What the formulas need from a framework and the array API standard leaves open.

The standard has no bfloat16, no bit-casts and no rule against a compiler that flushes small
numbers or contracts a product and a sum into one operation. `Arithmetic` names the few
operations in which that matters. The class here serves every framework that keeps IEEE 754
(NumPy, PyTorch, CuPy, Dask); the adapter of a framework that does not brings a subclass. For a
device without float64, each has a `PairArithmetic`.
"""

import functools
import math
import struct
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import entry_points
from typing import Any, TypeAlias

import array_api_compat

from normkit import _checks
from normkit._checks import HALF_DTYPES, Axes, dtype_name

Array: TypeAlias = Any


class Arithmetic:
    """The operations of one array namespace ``xp``, with float64 as the wide type."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def has_float64(self, x: Array) -> bool:
        """Whether the device of ``x`` computes in float64."""
        return _has_float64(self.xp, array_api_compat.device(x))

    def pairs(self, x: Array) -> "Arithmetic":
        """The arithmetic of pairs: of float64 for float64 ``x``, else of float32."""
        from normkit._pairs import PairArithmetic  # which is an Arithmetic itself

        return PairArithmetic(self, "float64" if dtype_name(x.dtype) == "float64" else "float32")

    def on_device_of(self, x: Array) -> "Arithmetic":
        """This arithmetic, or pairs where the device of ``x`` has no float64."""
        return self if self.has_float64(x) else self.pairs(x)

    def for_rows_of(self, x: Array) -> "Arithmetic":
        """This arithmetic, or one that sums with more care where no type is wider than x's."""
        return self

    def scope(self) -> AbstractContextManager[Any]:
        """Entered around a whole computation; a place to make float64 available."""
        return nullcontext()

    def widen(self, x: Array) -> Array:
        """``x`` in float64, exactly."""
        return self.xp.astype(x, self.xp.float64, copy=False)

    def to_float32(self, x: Array) -> Array:
        """``x`` rounded once to float32. Products and sums of such values round to float32 too
        when passed through this function again."""
        return self.xp.astype(x, self.xp.float32, copy=False)

    def narrow(self, y: Array, dtype: Any) -> Array:
        """``y`` rounded to ``dtype``, and to a half dtype by way of float32.

        NumPy casts float64 to float16 in one rounding, PyTorch and XLA in two; the detour
        makes them agree, at a cost of at most 2^-13 ULP.
        """
        if dtype_name(dtype) in HALF_DTYPES:
            y = self.to_float32(y)
        return self.xp.astype(y, dtype, copy=False)

    def dtype_called(self, name: str) -> Any:
        """The dtype called ``name``."""
        _checks.has_dtype(self.xp, name)
        return getattr(self.xp, name)

    def round_to(self, y: Array, name: str) -> Array:
        """Wide ``y`` rounded once to the dtype called ``name``, and wide again."""
        return y if name == "float64" else self.widen(self.narrow(y, self.dtype_called(name)))

    def number_in(self, number: float, name: str) -> float:
        """A Python number rounded to the dtype called ``name``, as `round_to` rounds an array."""
        return _number_in(number, name)

    def constant(self, x: Array) -> Array:
        """``x``, for a computation whose result no derivative depends on."""
        return x

    def sum(self, x: Array, axes: Axes) -> Array:
        """Sum over the axes of a row, which stay with size 1; all of it, where a row is split."""
        return self.total(x, axes)

    def total(self, x: Array, axes: Axes) -> Array:
        """Sum over ``axes``, which stay with size 1."""
        return self.xp.sum(x, axis=axes, keepdims=True)

    def max(self, x: Array, axes: Axes) -> Array:
        """Maximum over ``axes``, which stay with size 1."""
        return self.xp.max(x, axis=axes, keepdims=True)

    def count(self, x: Array, axes: Axes) -> Any:
        """Number of elements that `sum` adds up."""
        n = 1
        for a in axes:
            n = n * x.shape[a]
        return n

    def trimmed(self, h: Array) -> Array:
        """``h`` rounded to 50 bits: this hides the order of a sum.

        Results that a norm often gives, such as +-1, are then exact: h scale + bias may lie in the
        middle between two float32 numbers, and the last bit of h would decide.

        Source: Dekker 1971 (Veltkamp's splitting).
        """
        multiple = 9.0 * h
        rest = multiple - h
        multiple -= rest  # in place, where arrays can be: this is a pass over all elements
        return multiple

    def leading(self, x: Array) -> Array:
        """``x`` rounded to half of its digits: its product with a number below 2^27 is exact."""
        multiple = (2.0**27 + 1) * x
        return multiple - (multiple - x)

    def inverse_root(self, v: Array) -> Array:
        """1 / sqrt(v), and 0 where v is 0."""
        xp = self.xp
        vanishes = v == 0
        r = 1.0 / xp.sqrt(xp.where(vanishes, xp.ones_like(v), v))
        return xp.where(vanishes, xp.zeros_like(v), r)

    def row_root(self, x: Array, eps: float, axes: Axes) -> Any:
        """q, a power of two for each row of ``x``, by whose square a row is scaled.

        1 where squares of x cannot leave float64's range. For float64 itself q is 2^-300 on huge
        rows and up to 2^300 on tiny ones, as far as eps q^4 stays below 2^1000. It keeps max|x| q^2
        below 2^424, so that n squares stay below 2^1023 for n up to 2^170; and either above 2^-474,
        so that the largest square is a normal number and one that vanishes is less than 2^-74 of
        it, or so far below eps that no square matters. Being constant to every derivative, q
        leaves them alone.
        """
        if dtype_name(x.dtype) != "float64":
            return 1.0
        largest = self.max(self.xp.abs(self.constant(x)), axes)
        one = self.xp.ones_like(largest)
        up = 2.0 ** min(300, (1000 - math.frexp(eps)[1]) // 4 if eps else 300)
        q = self.xp.where(largest < 2.0**-400, one * up, one)
        return self.xp.where(largest >= 2.0**400, one * 2.0**-300, q)

    def times_power(self, x: Array, q: Any) -> Array:
        """``x``, wide or not, times the power of two ``q``; the number 1 costs no pass over x."""
        return x if isinstance(q, float) and q == 1.0 else x * q

    def scaled_eps(self, eps: float, q: Any) -> Any:
        """eps q^4."""
        return eps * q * q * q * q


def arithmetic_of(x: Array) -> Arithmetic:
    """The arithmetic for the framework of ``x``.

    An adapter announces its own in the entry point group ``normkit.arithmetic``, under the
    name of its namespace: the core need not know any framework.
    """
    return _arithmetic(array_api_compat.array_namespace(x))


@functools.cache
def _arithmetic(xp: Any) -> Arithmetic:
    for announced in entry_points(group="normkit.arithmetic", name=xp.__name__):
        found: Arithmetic = announced.load()
        return found
    return Arithmetic(xp)


def _number_in(number: float, name: str) -> float:
    """A Python number rounded to the dtype called ``name``, to a half dtype by way of float32."""
    if name == "float64" or not math.isfinite(number):
        return number
    try:
        number = struct.unpack("f", struct.pack("f", number))[0]
        if name == "float16":
            number = struct.unpack("e", struct.pack("e", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    if name != "bfloat16":
        return number
    bits = struct.unpack("I", struct.pack("f", number))[0]  # to nearest, ties to even
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("f", struct.pack("I", rounded))[0])


@functools.cache
def _has_float64(xp: Any, device: Any) -> bool:
    return "float64" in xp.__array_namespace_info__().dtypes(device=device, kind="real floating")
