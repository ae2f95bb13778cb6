"""Exact real numbers as the oracle returns them, and the error of a result against them."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from normkit.testing._formats import Array, Format, dtype_of, format_of


class Exact:
    """An array of real numbers known to far more digits than any dtype holds.

    An element is ``m * 2**e`` with Python integers m and e, or NaN or an infinity.

    Attributes:
        shape: Shape of the array.
        largest: Of a norm's result, for each element the largest |h| of its row, as float64: the
            normalised row before scale and bias. None of other numbers.
    """

    def __init__(
        self,
        numbers: Iterable[tuple[int, int] | float],
        shape: tuple[int, ...],
        largest: Array | None = None,
    ) -> None:
        self.shape = shape
        self.largest = largest
        self._numbers = list(numbers)
        parts = [_split(number) for number in self._numbers]
        self._leading, self._rest, self._exponent = (
            np.array([part[i] for part in parts], dtype).reshape(shape)
            for i, dtype in enumerate((np.float64, np.float64, np.int64))
        )

    def rounded(self, dtype: Any) -> Array:
        """The numbers rounded once, to nearest with ties to even, as an array of ``dtype``."""
        dtype = dtype_of(dtype) if isinstance(dtype, str) else np.dtype(dtype)
        form = format_of(dtype)
        values = [
            number if isinstance(number, float) else _round(*number, *form)
            for number in self._numbers
        ]
        rounded: Array = np.array(values, np.float64).reshape(self.shape).astype(dtype)
        return rounded

    def ulp_error(self, actual: Any) -> Array:
        """|actual - exact| in ULPs of the exact number, in the dtype of ``actual``.

        Correct rounding is at most 0.5. A NaN or infinity counts 0 where it is right, and infinite
        where it is wrong; an infinity is right from the middle between the largest finite number
        and the next power of two on.
        """
        dtype = np.asarray(actual).dtype
        form, actual = self._checked(actual)
        exponent = np.maximum(self._exponent, form.min_exponent)
        exponent = np.where(self._leading == 0, form.min_exponent, exponent)
        with np.errstate(over="ignore", invalid="ignore"):
            difference = np.ldexp(actual, -self._exponent) - self._leading - self._rest
            error: Array = np.ldexp(
                np.abs(difference), self._exponent - exponent + form.precision - 1
            )
        special = ~np.isfinite(actual) | ~np.isfinite(self._leading)
        if special.any():
            right = self.rounded(dtype).astype(np.float64)
            alike = (actual == right) | (np.isnan(actual) & np.isnan(right))
            error = np.where(special, np.where(alike, 0.0, np.inf), error)
        return error

    def error(self, actual: Any) -> Array:
        """|actual - exact| as float64; NaN where either is not finite."""
        _, actual = self._checked(actual)
        with np.errstate(all="ignore"):
            scaled = np.ldexp(actual, -self._exponent) - self._leading - self._rest
            error: Array = np.ldexp(np.abs(scaled), self._exponent)
        return error

    @property
    def values(self) -> Array:
        """The numbers rounded to float64."""
        return self.rounded("float64")

    def _checked(self, actual: Any) -> tuple[Format, Array]:
        actual = np.asarray(actual)
        form = format_of(actual.dtype)
        if actual.shape != self.shape:
            raise ValueError(
                f"actual must have the shape of the exact numbers, {self.shape}; "
                f"got {actual.shape}; reshape it"
            )
        return form, actual.astype(np.float64)


def _split(number: tuple[int, int] | float) -> tuple[float, float, int]:
    """(leading, rest, k) with number = (leading + rest) * 2**k and 1 <= |leading| < 2."""
    if isinstance(number, float):
        return number, 0.0, 0
    m, e = number
    if m == 0:
        return 0.0, 0.0, 0
    sign, m = (-1.0, -m) if m < 0 else (1.0, m)
    length = m.bit_length()
    m = m >> (length - 118) if length > 118 else m << (118 - length)
    leading, rest = m >> 65, m & ((1 << 65) - 1)
    return sign * math.ldexp(leading, -52), sign * math.ldexp(rest, -117), e + length - 1


def _round(m: int, e: int, precision: int, min_exponent: int, max_exponent: int) -> float:
    """m * 2**e rounded to the format, ties to even, as a Python float."""
    sign, m = (-1.0, -m) if m < 0 else (1.0, m)
    dropped = max(m.bit_length() - precision, min_exponent - precision + 1 - e)
    if dropped > 0:
        kept, rest = m >> dropped, m & ((1 << dropped) - 1)
        half = 1 << (dropped - 1)
        m = kept + (rest > half or (rest == half and kept % 2 == 1))
        e += dropped
    if m and m.bit_length() - 1 + e > max_exponent:
        return sign * math.inf
    return sign * math.ldexp(m, e)
