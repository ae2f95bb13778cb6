"""Floating-point formats and distances counted in units in the last place."""

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Format(NamedTuple):
    """A binary format: ``precision`` significant bits, exponents of its normal numbers."""

    precision: int
    min_exponent: int
    max_exponent: int


FORMATS = {
    "float16": Format(11, -14, 15),
    "bfloat16": Format(8, -126, 127),
    "float32": Format(24, -126, 127),
    "float64": Format(53, -1022, 1023),
}
"""The formats that normkit takes, by dtype name."""


def format_of(dtype: Any) -> Format:
    """The `Format` of a NumPy dtype (ml_dtypes' bfloat16 too); TypeError for any other kind."""
    name = np.dtype(dtype).name
    if name not in FORMATS:
        raise TypeError(f"dtype must be one of {', '.join(FORMATS)}; got {name}; cast first")
    return FORMATS[name]


def dtype_of(name: str) -> Any:
    """The NumPy dtype called ``name``, such as ``"bfloat16"``."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def ulp(values: Any, dtype: Any) -> Array:
    """Distance between neighbours of ``dtype`` at ``values``, as float64.

    2^(e - p + 1) for a value in [2^e, 2^(e+1)) and p significant bits; below the smallest normal
    number, the smallest subnormal number. For float64 subnormals it is 2^-1074, exactly.

    Args:
        values: Array of real numbers, any floating dtype.
        dtype: The dtype whose spacing is asked for.

    Returns:
        float64 array of the shape of ``values``; NaN where the value is not finite.

    Example:
        >>> ulp([1.0, 3.0, 0.0], "float16")
        array([9.76562500e-04, 1.95312500e-03, 5.96046448e-08])
    """
    form = format_of(dtype)
    values = np.asarray(values, np.float64)
    exponent = np.maximum(np.frexp(values)[1] - 1, form.min_exponent)
    exponent = np.where(values == 0, form.min_exponent, exponent)
    spacing = np.ldexp(1.0, exponent - form.precision + 1)
    return np.where(np.isfinite(values), spacing, np.nan)


def ulp_distance(a: Any, b: Any) -> Array:
    """Number of steps between neighbouring values that lead from ``a`` to ``b``.

    0 for equal values, for the two zeros, and for two NaN; the largest int64 where just one is NaN.
    The step from the largest finite value to infinity counts 1.

    Args:
        a, b: NumPy arrays of one floating dtype and of shapes that broadcast.

    Returns:
        int64 array.

    Raises:
        TypeError: the dtypes differ or are not floating.

    Example:
        >>> ulp_distance(np.float32([1.0, -0.0]), np.float32([1.0000001, 0.0]))
        array([1, 0])
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        raise TypeError(f"a and b must have one dtype; got {a.dtype} and {b.dtype}; cast one")
    format_of(a.dtype)
    first, second = _ordered(a), _ordered(b)
    steps = np.where(first > second, first - second, second - first)
    largest = np.uint64(np.iinfo(np.int64).max)
    steps = np.minimum(steps, largest)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    steps = np.where(nan_a & nan_b, np.uint64(0), np.where(nan_a ^ nan_b, largest, steps))
    return steps.astype(np.int64)


def bits_differ(a: Any, b: Any) -> int:
    """Number of elements whose bits differ; all NaN count as one value.

    Args:
        a, b: NumPy arrays of one dtype and shape.

    Returns:
        The count.

    Raises:
        TypeError: dtypes or shapes differ, so that a comparison would mean nothing.

    Example:
        >>> bits_differ(np.float32([0.0, 1.0]), np.float32([-0.0, 1.0]))
        1
    """
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        raise TypeError(
            f"a and b must be alike; got {a.dtype} {a.shape} and {b.dtype} {b.shape}; cast one"
        )
    unsigned = f"u{a.dtype.itemsize}"
    differ = (a.view(unsigned) != b.view(unsigned)) & ~(np.isnan(a) & np.isnan(b))
    return int(np.count_nonzero(differ))


def _ordered(a: Array) -> Array:
    """The values' ranks: unsigned integers in the order of the values, both zeros alike."""
    bits = a.dtype.itemsize * 8
    pattern = a.view(f"u{a.dtype.itemsize}").astype(np.uint64)
    top = np.uint64(1 << (bits - 1))
    magnitude = pattern & (top - np.uint64(1))
    return np.where(pattern & top, top - magnitude, top + magnitude)
