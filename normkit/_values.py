"""Numbers held in float64 together with the dtype that they have in the original.

Every operation is done in float64 and rounded once to the dtype that a framework would give the
result. That is the correctly rounded operation in that dtype: a product of two float32 numbers is
exact in float64, and a sum, quotient or root keeps more than twice the digits. So every framework
that has float64 gives the same bits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Union

from normkit._arithmetic import Arithmetic, Array
from normkit._checks import HALF_DTYPES, Axes, dtype_name
from normkit._convention import DTYPES, Convention

# Spacing of the numbers at 1.
_MACHINE = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def promoted(*dtypes: str | None) -> str:
    """The dtype that NumPy, PyTorch and JAX give to an operation on arrays of ``dtypes``."""
    found = {d for d in dtypes if d is not None}
    if len(found) == 1:
        return found.pop()
    return "float64" if "float64" in found else "float32"


class Dtypes(NamedTuple):
    """Names of the dtypes of a call's arrays, from which a rule makes a dtype."""

    x: str
    scale: str | None
    bias: str | None

    def of(self, rule: str | None) -> str | None:
        """The dtype that ``rule``, a field of a convention, means; None for no cast."""
        if rule is None or rule in DTYPES:
            return rule
        half = self.x in HALF_DTYPES
        if rule == "scale":
            return self.scale
        if rule == "scale_if_half":
            return self.scale if self.scale in HALF_DTYPES else None
        if rule == "promote":
            return promoted(*self)
        if rule == "at_least_float32":
            return "float32" if half else self.x
        if rule == "wide":
            return "float32" if half else "float64"
        return self.x

    def of_statistics(self, c: Convention) -> str:
        """The dtype of the statistics; "x" means x as cast by ``input`` and ``scale_input``."""
        if c.statistics == "exact":
            return "float64"
        if c.statistics != "x":
            return str(self.of(c.statistics))
        x = self.of(c.input) or self.x
        if c.order != "scale_input":
            return x
        scale = None if self.scale is None else self.of(c.scale) or self.scale
        return self.of(c.between) or promoted(x, scale)


def dtypes_of(x: Array, scale: Array | None, bias: Array | None) -> Dtypes:
    """The names of the arrays' dtypes."""
    return Dtypes(
        dtype_name(x.dtype),
        None if scale is None else dtype_name(scale.dtype),
        None if bias is None else dtype_name(bias.dtype),
    )


def default_eps(c: Convention, x: Array, scale: Array | None, bias: Array | None) -> float:
    """What ``eps=None`` stands for."""
    if c.eps != "machine":
        return float(c.eps)
    return _MACHINE[dtypes_of(x, scale, bias).of_statistics(c)]


class Value:
    """Numbers of the dtype called ``dtype``, ``held`` in float64."""

    __slots__ = ("ar", "dtype", "held")

    def __init__(self, ar: Arithmetic, held: Any, dtype: str) -> None:
        self.ar, self.held, self.dtype = ar, held, dtype

    def to(self, dtype: str | None) -> "Value":
        """Cast; None leaves the value as it is."""
        return self if dtype is None else self.like(self.held, dtype)

    def like(self, held: Any, dtype: str | None = None) -> "Value":
        """``held``, rounded to ``dtype``, or to this value's."""
        dtype = dtype or self.dtype
        return Value(self.ar, self.ar.round_to(held, dtype), dtype)

    def __neg__(self) -> "Value":
        """Exact."""
        return Value(self.ar, -self.held, self.dtype)

    def __add__(self, other: Union["Value", float]) -> "Value":
        """Rounded once, as are the others."""
        return self._result(other, lambda a, b: a + b)

    def __sub__(self, other: "Value") -> "Value":
        return self._result(other, lambda a, b: a - b)

    def __mul__(self, other: "Value") -> "Value":
        return self._result(other, lambda a, b: a * b)

    def __truediv__(self, other: "Value") -> "Value":
        return self._result(other, lambda a, b: a / b)

    def _result(
        self, other: Union["Value", float], operation: Callable[[Any, Any], Any]
    ) -> "Value":
        if not isinstance(other, Value):  # a number takes part in the array's dtype
            return self.like(operation(self.held, self.ar.number_in(other, self.dtype)))
        return self.like(operation(self.held, other.held), promoted(self.dtype, other.dtype))


def work_dtype(dtype: str) -> str:
    """The dtype in which frameworks carry out one operation on a half dtype."""
    return "float32" if dtype in HALF_DTYPES else dtype


def by_constant(a: Value, constant: float) -> Value:
    """a times a constant that a half dtype does not round: PyTorch multiplies in float32."""
    return a.like(a.held * a.ar.number_in(constant, work_dtype(a.dtype)))


def mean(z: Value, axes: Axes, n: Any = None) -> Value:
    """The exact sum of a row, rounded; divided by n, rounded. In a half dtype once, at the end.

    ``n`` is the size of a row where it is not given.
    """
    ar, work = z.ar, work_dtype(z.dtype)
    total = ar.round_to(ar.sum(z.held, axes), work)
    return z.like(ar.round_to(total / (ar.count(z.held, axes) if n is None else n), work))


def root(v: Value) -> Value:
    """sqrt(v)."""
    return v.like(safe_root(v.ar, v.held))


def norm(z: Value, axes: Axes) -> Value:
    """|z|, one operation, whose squares overflow as float32 does."""
    ar, work = z.ar, work_dtype(z.dtype)
    total = ar.round_to(ar.sum(ar.round_to(z.held * z.held, work), axes), work)
    return z.like(ar.round_to(safe_root(ar, total), work))


def safe_root(ar: Arithmetic, v: Any) -> Any:
    """sqrt(v) of an array, with derivative 0 where v is 0."""
    xp = ar.xp
    vanishes = v == 0
    return xp.where(vanishes, v, xp.sqrt(xp.where(vanishes, xp.ones_like(v), v)))
