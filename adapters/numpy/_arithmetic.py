"""NumPy sums in pairs only along contiguous memory; here the layout does not matter."""

from contextlib import AbstractContextManager
from typing import Any

import array_api_compat.numpy as xp
import ml_dtypes
import numpy as np

from normkit._arithmetic import Arithmetic
from normkit._checks import Axes


class NumpyArithmetic(Arithmetic):
    """float64 sums in one order for every memory layout, and no warnings."""

    def __init__(self) -> None:
        super().__init__(xp)

    def for_rows_of(self, x: Any) -> Arithmetic:
        """Sums of float64 rows keep their rounding errors."""
        return _FLOAT64 if x.dtype == np.float64 else self

    def scope(self) -> AbstractContextManager[Any]:
        """No warnings: IEEE 754 makes NaN of NaN and infinity, as on every other backend."""
        return np.errstate(all="ignore")

    def dtype_called(self, name: str) -> Any:
        """NumPy's own dtypes, and ml_dtypes' bfloat16."""
        return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)

    def sum(self, x: Any, axes: Axes) -> Any:
        """Sum over ``axes``, which stay with size 1, in pairs along a contiguous row."""
        kept = tuple(1 if a in axes else size for a, size in enumerate(x.shape))
        last = tuple(range(-len(axes), 0))
        rows = np.ascontiguousarray(np.moveaxis(x, axes, last))
        batch = rows.shape[: x.ndim - len(axes)]
        return rows.reshape(*batch, self.count(x, axes)).sum(axis=-1).reshape(kept)


class _Float64Arithmetic(NumpyArithmetic):
    """Sums rounded once: NumPy adds up to 16 numbers in a row, which may cost 8 ULP."""

    def sum(self, x: Any, axes: Axes) -> Any:
        """Sum over ``axes``, which stay with size 1, in pairs of float64."""
        pairs = self.pairs(x)
        return pairs.total(pairs.widen(x), axes).hi


ARITHMETIC = NumpyArithmetic()
_FLOAT64 = _Float64Arithmetic()
