"""What the formulas need from a framework and the array API standard leaves open.

The standard has no bfloat16, no bit-casts and no rule against a compiler that flushes small
numbers or contracts a product and a sum into one operation. `Arithmetic` names the few
operations in which that matters. The class here serves every framework that keeps IEEE 754
(NumPy, PyTorch, CuPy, Dask); the adapter of a framework that does not brings a subclass.
"""

import functools
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

    def constant(self, x: Array) -> Array:
        """``x``, for a computation whose result no derivative depends on."""
        return x

    def sum(self, x: Array, axes: Axes) -> Array:
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
    if not hasattr(xp, "float64"):
        raise _checks.no_float64(xp.__name__)
    return Arithmetic(xp)
