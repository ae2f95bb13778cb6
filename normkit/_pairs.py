"""Every number as an unevaluated sum of two: for devices without float64, and for float64 itself.

A `Pair` hi + lo of float32 holds 48 bits, of float64 106. The formulas of the norms run on pairs
as they run on arrays. Only the array API is asked for, and of the device only IEEE 754 sums and
products; square roots and quotients may be off by some ULPs, for a step of Newton's method
repairs them. No lo is ever NaN: where hi is not finite, it is 0.

Source: Dekker, A floating-point technique for extending the available precision, 1971; Knuth,
The Art of Computer Programming, volume 2, section 4.2.2.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from normkit._arithmetic import Arithmetic, Array
from normkit._checks import HALF_DTYPES, Axes, dtype_name


class _Word(NamedTuple):
    """The dtype of hi and lo.

    Attributes:
        split: 2^k + 1, which cuts a significand into two halves.
        tame: Magnitude from which a factor is made smaller before it is cut.
        shift: Largest k of the powers 4^k that a row is scaled by.
        nothing: A mean square below it is 0: of a scaled row that is not, it is larger.
    """

    split: float
    tame: float
    shift: int
    nothing: float


_WORDS = {
    "float32": _Word(2.0**12 + 1, 2.0**64, 32, 2.0**-100),
    "float64": _Word(2.0**27 + 1, 2.0**512, 256, 2.0**-900),
}


class Pair:
    """hi + lo with |lo| at most half an ULP of hi, and the operators that the formulas use."""

    __slots__ = ("ar", "hi", "lo")

    def __init__(self, ar: "PairArithmetic", hi: Array, lo: Array) -> None:
        self.ar, self.hi, self.lo = ar, hi, lo

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self.hi.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.hi.shape)

    def each(self, function: Callable[[Array], Array]) -> "Pair":
        """``function`` of hi and of lo."""
        return Pair(self.ar, function(self.hi), function(self.lo))

    def __neg__(self) -> "Pair":
        """Exact."""
        return self.each(lambda part: -part)

    def __add__(self, other: "Pair") -> "Pair":
        """Within about 2^-46 (2^-104) of |self| + |other|."""
        hi, error = self.ar.two_sum(self.hi, other.hi)
        return self.ar.normalised(hi, error + (self.lo + other.lo))

    def __sub__(self, other: "Pair") -> "Pair":
        """As a sum."""
        return self + -other

    def __mul__(self, other: Any) -> "Pair":
        """Within about 2^-46 (2^-104) of the product; ``other`` may be a Python number."""
        other = self.ar.pair_of(other, self.hi)
        hi, error = self.ar.two_product(self.hi, other.hi)
        cross = self.ar.product(self.hi, other.lo) + self.ar.product(self.lo, other.hi)
        return self.ar.normalised(hi, error + cross)

    __rmul__ = __mul__

    def __truediv__(self, n: Any) -> "Pair":
        """Divided by a Python number; the quotient's own error is computed and added."""
        divisor = self.ar.pair_of(n, self.hi)
        quotient = self.ar.rounded(self.hi / divisor.hi)
        hi, error = self.ar.two_product(quotient, divisor.hi)
        rest = ((self.hi - hi) - error) + self.lo - self.ar.product(quotient, divisor.lo)
        return self.ar.normalised(quotient, self.ar.rounded(rest / divisor.hi))


class PairArithmetic(Arithmetic):
    """`Arithmetic` whose wide numbers are pairs of ``word``, "float32" or "float64"."""

    def __init__(self, plain: Arithmetic, word: str) -> None:
        super().__init__(plain.xp)
        self._plain = plain
        self.word = word
        self.dtype = getattr(plain.xp, word)
        self._limits = _WORDS[word]

    def scope(self) -> AbstractContextManager[Any]:
        """The framework's own."""
        return self._plain.scope()

    # between arrays and pairs

    def widen(self, x: Any) -> Pair:
        """``x`` as a pair, exactly (a float64 array in a pair of float32 to 48 bits)."""
        if isinstance(x, Pair):
            return x
        hi = self.xp.astype(x, self.dtype, copy=False)
        if self.word == "float32" and dtype_name(x.dtype) == "float64":
            return self.normalised(hi, self.xp.astype(x - self.xp.astype(hi, x.dtype), self.dtype))
        return Pair(self, hi, self.xp.zeros_like(hi))

    def pair_of(self, number: Any, like: Array) -> Pair:
        """A Python number beside the arrays of ``like``'s device."""
        if isinstance(number, Pair):
            return number
        hi = _leading(float(number), self.word)
        parts = (self.xp.full_like(like[..., :1], part) for part in (hi, float(number) - hi))
        return Pair(self, *parts)

    def to_float32(self, x: Any) -> Array:
        """``x``, a pair or the sum or product of two float32 arrays, as a float32 array."""
        if isinstance(x, Pair):
            x = x.hi + x.lo
        return self.rounded(self.xp.astype(x, self.xp.float32, copy=False))

    def narrow(self, y: Any, dtype: Any) -> Array:
        """``y`` rounded to ``dtype``, and to a half dtype by way of float32."""
        if isinstance(y, Pair):
            y = y.hi + y.lo
        if dtype_name(dtype) in HALF_DTYPES:
            y = self.to_float32(y)
        return self.xp.astype(y, dtype, copy=False)

    # error-free transformations

    def rounded(self, x: Array) -> Array:
        """``x``, where a compiler might otherwise merge the operation that made it with the next."""
        return x

    def product(self, a: Array, b: Array) -> Array:
        """a b, rounded."""
        return self.rounded(a * b)

    def two_sum(self, a: Array, b: Array) -> tuple[Array, Array]:
        """s and e with s = a + b rounded and s + e = a + b exactly."""
        s = a + b
        part = s - a
        return s, (a - (s - part)) + (b - part)

    def two_product(self, a: Array, b: Array) -> tuple[Array, Array]:
        """p and e with p = a b rounded and p + e = a b exactly, where e does not underflow."""
        a, from_a = self._tamed(a)
        b, from_b = self._tamed(b)
        p, e = self._two_product(a, b)
        back = from_a * from_b
        return p * back, e * back

    def _two_product(self, a: Array, b: Array) -> tuple[Array, Array]:
        (a_high, a_low), (b_high, b_low) = self.halves(a), self.halves(b)
        p = self.product(a, b)
        # each of these products is exact, so that merging it with a sum changes nothing
        return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low

    def _tamed(self, a: Array) -> tuple[Array, Array]:
        """``a`` times a power of two, and the power that undoes it: no half of a overflows."""
        tame = self._limits.tame
        large = self.xp.abs(a) >= tame
        one = self.xp.ones_like(a)
        return self.xp.where(large, a * (1 / tame), a), self.xp.where(large, one * tame, one)

    def halves(self, a: Array) -> tuple[Array, Array]:
        """High and low with high + low = a, of half as many digits each."""
        multiple = self.product(a, self._limits.split)
        high = multiple - (multiple - a)
        return high, a - high

    def normalised(self, hi: Array, lo: Array) -> Pair:
        """hi + lo as a pair, for |lo| not larger than |hi|."""
        nothing = self.xp.zeros_like(hi)
        lo = self.xp.where(self.xp.isfinite(hi), lo, nothing)
        s = hi + lo
        return Pair(self, s, self.xp.where(self.xp.isfinite(s), lo - (s - hi), nothing))

    # what the formulas ask for

    def total(self, x: Pair, axes: Axes) -> Pair:
        """Sum over ``axes``, which stay with size 1: neighbours in pairs, always in one order."""
        rest = [a for a in range(x.ndim) if a not in axes]
        kept = tuple(1 if a in axes else size for a, size in enumerate(x.shape))
        batch = tuple(x.shape[a] for a in rest)
        rows = x.each(lambda part: self.xp.permute_dims(part, (*rest, *axes)))
        rows = rows.each(lambda part: self.xp.reshape(part, (*batch, self.count(x, axes))))
        return self._tree(rows).each(lambda part: self.xp.reshape(part, kept))

    def _tree(self, x: Pair) -> Pair:
        """Sum over the last axis, which stays with size 1, by halving it.

        All hi are summed as they would be alone, and their errors together with the lo.
        """
        hi, lo = self.finished(x.hi, x.lo)
        while (n := hi.shape[-1]) > 1:
            half = n // 2
            left, right = (..., slice(half)), (..., slice(half, 2 * half))
            s, error = self.two_sum(hi[left], hi[right])
            error = error + (lo[left] + lo[right])
            odd = (..., slice(2 * half, n))
            hi = self.xp.concat([s, hi[odd]], axis=-1) if n % 2 else s
            lo = self.xp.concat([error, lo[odd]], axis=-1) if n % 2 else error
        return self.normalised(hi, lo)

    def finished(self, hi: Array, lo: Array) -> tuple[Array, Array]:
        """Both, computed before a sum of them begins."""
        return hi, lo

    def trimmed(self, h: Pair) -> Pair:
        """``h``: a pair sums in one order, and has bits to spare."""
        return h

    def leading(self, x: Pair) -> Pair:
        """``x`` without its lo."""
        return Pair(self, x.hi, self.xp.zeros_like(x.hi))

    def inverse_root(self, v: Pair) -> Pair:
        """1 / sqrt(v), and 0 where v is 0: one step of Newton's method from the rounded root."""
        xp = self.xp
        vanishes = v.hi < self._limits.nothing
        one, zero = xp.ones_like(v.hi), xp.zeros_like(v.hi)
        v = Pair(self, xp.where(vanishes, one, v.hi), xp.where(vanishes, zero, v.lo))
        r = Pair(self, one / xp.sqrt(v.hi), zero)
        t = (self.pair_of(1.0, one) - v * (r * r)).hi  # relative error of r, twice and negated
        t = xp.where(xp.isfinite(t), t, zero)  # v infinite: r = 0 is right
        r = self.normalised(r.hi, self.product(r.hi, t) * (0.5 + 0.375 * t))
        return r.each(lambda part: xp.where(vanishes, zero, part))

    def row_root(self, x: Array, eps: float, axes: Axes) -> Array:
        """q = 2^k with max(max|x|, sqrt(eps)) q^2 in 1 .. 4, as far as q^2 is a normal number.

        By comparisons and exact products, for the standard has no function for exponents. A row
        that is 0 or not finite is left alone.
        """
        xp = self.xp
        m = self.max(xp.abs(xp.astype(self.constant(x), self.dtype, copy=False)), axes)
        one = xp.ones_like(m)
        least = min(math.sqrt(eps), 4.0 ** (2 * self._limits.shift - 1))
        m = xp.where(m < least, one * least, m)
        m = xp.where(xp.isfinite(m) & (m > 0), m, one)
        q = one
        shifts = [self._limits.shift >> i for i in range(self._limits.shift.bit_length())]
        for k in shifts:
            large = m >= 4.0**k
            m = xp.where(large, m * 4.0**-k, m)
            q = xp.where(large, q * 2.0**-k, q)
        for k in shifts:
            small = m < 4.0 ** (1 - k)
            m = xp.where(small, m * 4.0**k, m)
            q = xp.where(small, q * 2.0**k, q)
        return q

    def times_power(self, x: Any, q: Any) -> Any:
        """``x`` times powers of two: exact."""
        return x.each(lambda part: part * q) if isinstance(x, Pair) else x * q

    def scaled_eps(self, eps: float, q: Array) -> Pair:
        """eps q^4 as a pair, though neither need fit the word: eps = f 2^(2e), f in 1/4 .. 1."""
        fraction, exponent = math.frexp(eps)
        if exponent % 2:
            fraction, exponent = fraction / 2, exponent + 1
        first = exponent // 4
        second = exponent // 2 - first
        # beyond these powers eps q^4 is 0 or infinite: so is their product
        limit = 4 * self._limits.shift - 8
        power = (q * 2.0 ** max(-limit, min(limit, first))) * (
            q * 2.0 ** max(-limit, min(limit, second))
        )
        return self.pair_of(fraction, q).each(lambda part: part * power * power)


def _leading(value: float, word: str) -> float:
    """The float32 number next to ``value``, if that is the word."""
    if word == "float64":
        return value
    multiple = value * (2.0**29 + 1)
    return multiple - (multiple - value)
