"""The accuracy contract as an assertion."""

from typing import Any

import numpy as np

from normkit.testing._exact import Exact
from normkit.testing._formats import Array, bits_differ, ulp

MAX_ULP = 0.501
"""Units in the last place: 0.5 is correct rounding, the rest is for near ties."""

MAX_ULP_FLOAT64 = 4.0
"""ULPs of the row's largest element, for float64, which has no wider type."""


def contract_floor(
    x: Array,
    exact: Exact,
    scale: Any = None,
    bias: Any = None,
    axis: Any = -1,
    *,
    pairs: bool = False,
) -> Array:
    """The absolute error that the contract allows beside 0.501 ULP, for each element i.

    With F_i = |scale_i| max|h| + |bias_i|, what the last steps add up: h is the normalised row,
    and an element of it may have the error of the largest.

    - float32 is summed in float64, whose own rounding shows where the result nearly cancels:
      2^-49 F, four bits above 2^-53 for the sum over up to 2^20 elements;
    - a half dtype with a bias is added up in float32: h, h scale and the sum are each rounded at
      2^-24, at most 2^-22 F together;
    - bfloat16 reaches float32's subnormal numbers: 2^-149 for each of the three steps, the first
      two times max(1, |scale|);
    - float64 has no wider type, and its own rule: 4 ULP of F, and 2^-1074 max(1, |scale|) for an h
      that is subnormal;
    - pairs of float32 have 48 bits, of which a long sum may cost a few: 2^-42 F, and float32's
      smallest subnormal number times max(1, |scale|), below which the second of a pair vanishes.
      Pairs of float64 have 106 bits: 2^-90 F and float64's smallest, in place of its own rule.

    Args:
        x: The input, a NumPy array.
        exact: What `exact_rms_norm` or `exact_layer_norm` returned for it.
        scale, bias, axis: As given to that function.
        pairs: For the kernel "pairs" instead of "array_api".

    Returns:
        float64 array of the shape of ``x``, for `assert_ulp`.

    Raises:
        ValueError: ``exact`` is not the result of one of these two functions.
    """
    if exact.largest is None:
        raise ValueError(
            "exact must be what exact_rms_norm or exact_layer_norm returned; got other numbers; "
            "call one of them"
        )
    axes = tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))
    shape = tuple(size if a in axes else 1 for a, size in enumerate(x.shape))
    b = _size(bias, 0.0, shape)
    w = _size(scale, 1.0, shape)
    with np.errstate(over="ignore"):
        largest = np.minimum(w * exact.largest + b, np.finfo(np.float64).max)
    name = x.dtype.name
    if pairs and name == "float64":
        floor = 2.0**-90 * largest + 2.0**-1074
    elif name == "float64":
        floor = MAX_ULP_FLOAT64 * ulp(largest, "float64") + 2.0**-1074 * np.maximum(1.0, w)
    else:
        share = 2.0**-49 if name == "float32" or bias is None else 2.0**-22
        subnormal = 3 * 2.0**-149 * np.maximum(1.0, w) if name == "bfloat16" else 0.0
        floor = share * largest + subnormal
        if pairs:
            floor = np.maximum(floor, 2.0**-42 * largest) + 2.0**-149 * np.maximum(1.0, w)
    return np.broadcast_to(floor, x.shape)


def _size(parameter: Any, default: float, shape: tuple[int, ...]) -> Any:
    if parameter is None:
        return default
    return np.abs(np.asarray(parameter, np.float64)).reshape(shape)


def worst_ulp(actual: Array, exact: Exact, floor: Any = 0.0) -> float:
    """The largest `Exact.ulp_error`, after ``floor`` has been taken off each absolute error.

    Args:
        actual: NumPy array of the dtype under test.
        exact: The oracle's numbers.
        floor: Absolute error that does not count, a number or an array of the shape of actual.

    Returns:
        ULPs; infinite where NaN or infinity is wrong or missing, 0.0 for no elements.
    """
    if actual.size == 0:
        return 0.0
    return float(np.max(_excess(actual, exact, floor)))


def _excess(actual: Array, exact: Exact, floor: Any) -> Array:
    error = exact.ulp_error(actual)
    absolute = exact.error(actual)
    with np.errstate(all="ignore"):
        excused = error * np.maximum(1.0 - floor / absolute, 0.0)
    return np.where(np.isfinite(error) & (absolute > 0), excused, error)


def assert_ulp(
    actual: Array, expected: Exact | Array, max_ulp: float = MAX_ULP, *, floor: Any = 0.0
) -> None:
    """Fail where ``actual`` is further from ``expected`` than ``max_ulp`` ULPs plus ``floor``.

    Args:
        actual: NumPy array of the dtype under test.
        expected: The oracle's `Exact` numbers, or a NumPy array of the same dtype, which counts as
            exact: the error is then the whole steps between the two.
        max_ulp: Units in the last place of the expected number, in the dtype of actual.
        floor: Absolute error that does not count, for instance `contract_floor`.

    Raises:
        AssertionError: names the worst element, its value, the expected one and its error.
        ValueError: the shapes differ.  TypeError: the dtypes differ.

    Example:
        >>> from normkit.testing import exact_rms_norm
        >>> x = np.float32([1, 2, 3, 4])
        >>> exact = exact_rms_norm(x, eps=0.0)
        >>> assert_ulp(np.float32([0.36514837, 0.73029674, 1.0954452, 1.4605935]), exact)
    """
    actual = np.asarray(actual)
    if not isinstance(expected, Exact):
        expected = _as_exact(actual, np.asarray(expected))
    error = _excess(actual, expected, floor)
    wrong = ~(error <= max_ulp)
    if not wrong.any():
        return
    worst = np.unravel_index(int(np.argmax(np.where(wrong, error, -1.0))), error.shape)
    raise AssertionError(
        f"{int(wrong.sum())} of {error.size} elements of {actual.dtype} are further than "
        f"{max_ulp} ULP; the worst, at {tuple(int(i) for i in worst)}, is {error[worst]:.4g} ULP "
        f"off: got {float(actual[worst])!r}, expected {float(expected.values[worst])!r}"
    )


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Fail where bits differ (all NaN count as one value).

    Args:
        actual, expected: NumPy arrays of one dtype and shape.

    Raises:
        AssertionError: names the count and the first element that differs.
        TypeError: dtypes or shapes differ.
    """
    count = bits_differ(actual, expected)
    if count:
        differ = (actual != expected) | (np.signbit(actual) != np.signbit(expected))
        differ &= ~(np.isnan(actual) & np.isnan(expected))
        first = tuple(int(i) for i in np.argwhere(differ)[0])
        raise AssertionError(
            f"{count} of {actual.size} elements of {actual.dtype} differ; the first, at {first}: "
            f"got {float(actual[first])!r}, expected {float(expected[first])!r}"
        )


def _as_exact(actual: Array, expected: Array) -> Exact:
    if expected.dtype != actual.dtype:
        raise TypeError(
            f"expected must have the dtype of actual, {actual.dtype}; got {expected.dtype}; cast it"
        )
    numbers: list[tuple[int, int] | float] = []
    for value in expected.astype(np.float64).ravel().tolist():
        if np.isfinite(value):
            numerator, denominator = value.as_integer_ratio()
            numbers.append((numerator, 1 - denominator.bit_length()))
        else:
            numbers.append(value)
    return Exact(numbers, expected.shape)
