"""The oracle and the distances are themselves tested: against mpmath, by hand, and for red."""

import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import EXACT, EXACT_VJP, real_cases

from normkit.testing import (
    FORMATS,
    Exact,
    assert_same_bits,
    assert_ulp,
    bits_differ,
    contract_floor,
    dtype_of,
    exact_rms_norm,
    ulp,
    ulp_distance,
    worst_ulp,
)

_EXPECTED = Path(__file__).parent / "data" / "real_activations_expected.npz"


def _mpmath_norm(op: str, x: Any, scale: Any, bias: Any, eps: float) -> list[mpmath.mpf]:
    """The definition, word for word, at 1200 bits."""
    row = [mpmath.mpf(float(v)) for v in x]
    mean = mpmath.fsum(row) / len(row) if op == "layer_norm" else mpmath.mpf(0)
    d = [v - mean for v in row]
    root = mpmath.sqrt(mpmath.fsum(v * v for v in d) / len(d) + mpmath.mpf(eps))
    return [v / root * float(s) + float(b) for v, s, b in zip(d, scale, bias, strict=True)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_oracle_equals_mpmath(op: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    with mpmath.workprec(1200):
        for size, eps in ((1.0, 1e-6), (1e4, 0.0), (1e-4, 1e-12), (3e-8, 0.0)):
            x, scale, bias = (random.standard_normal((3, 37)) * size).astype(dtype)
            exact = EXACT[op](x, scale, bias, eps=eps)
            for ours, theirs in zip(
                exact._numbers, _mpmath_norm(op, x, scale, bias, eps), strict=True
            ):
                difference = mpmath.mpf(ours[0]) * mpmath.mpf(2) ** ours[1] - theirs
                assert abs(difference) <= mpmath.mpf(2) ** -200 * (abs(theirs) + float(size))


def test_oracle_at_chosen_elements(op: str) -> None:
    """What the whole row's result has there, with scale and bias, on a special row too."""
    random = np.random.default_rng(9)
    x, scale, bias = random.standard_normal((3, 4, 11)).astype(np.float32)
    x[1, 3], x[2, 0] = np.inf, np.nan
    at = [10, 0, 3]
    whole = EXACT[op](x, scale[0], bias[0])
    some = EXACT[op](x, scale[0], bias[0], at=at)
    assert some.shape == (4, 3)
    numbers = np.array([repr(n) for n in whole._numbers]).reshape(4, 11)
    assert [repr(n) for n in some._numbers] == numbers[:, at].reshape(-1).tolist()
    with pytest.raises(ValueError, match="at needs the last axis"):
        EXACT[op](x, axis=0, at=at)


def test_gradient_oracle_equals_mpmath_differences(op: str) -> None:
    # central differences at 1200 bits with step 2^-200: error about 2^-400
    random = np.random.default_rng(2)
    dy, x, scale, bias = random.standard_normal((4, 5)).astype(np.float32)
    with mpmath.workprec(1200):
        step = mpmath.mpf(2) ** -200

        def loss(x: Any, scale: Any, bias: Any) -> mpmath.mpf:
            d = list(x)
            if op == "layer_norm":
                mean = mpmath.fsum(d) / len(d)
                d = [v - mean for v in d]
            root = mpmath.sqrt(mpmath.fsum(v * v for v in d) / len(d) + mpmath.mpf(0.25))
            y = [v / root * s + b for v, s, b in zip(d, scale, bias, strict=True)]
            return mpmath.fsum(v * float(u) for v, u in zip(y, dy, strict=True))

        inputs = [[mpmath.mpf(float(v)) for v in a] for a in (x, scale, bias)]
        found = EXACT_VJP[op](dy, x, scale, bias, eps=0.25)
        for which, gradient in enumerate(found):
            for i, ours in enumerate(gradient._numbers):
                up, down = ([list(a) for a in inputs] for _ in range(2))
                up[which][i] += step
                down[which][i] -= step
                slope = (loss(*up) - loss(*down)) / (2 * step)
                value = mpmath.mpf(ours[0]) * mpmath.mpf(2) ** ours[1]
                assert abs(value - slope) < mpmath.mpf(2) ** -190


def test_oracle_equals_the_recorded_expectations() -> None:
    expected = np.load(_EXPECTED)
    for case, exact, _ in real_cases("float32"):
        recorded = expected[f"{case.name}/expected_float64"]
        # the recording was summed in float64: 2^-48 of the row's largest element
        bound = 2.0**-48 * np.abs(recorded).max(axis=-1, keepdims=True)
        assert np.all(np.abs(exact.values - recorded) <= bound), case.name


def test_rounding_ties_subnormals_and_overflow() -> None:
    numbers = [(2**11 + 1, -11), (2**11 + 3, -11), (1, -25), (3, -25), (-1, -26), (65519, 0)]
    numbers += [(65520, 0), (1, 400), math.nan, -math.inf]
    exact = Exact(numbers, (10,))
    expected = [1.0, 1 + 2**-9, 0.0, 2**-23, -0.0, 65504.0, math.inf, math.inf, math.nan, -math.inf]
    np.testing.assert_array_equal(exact.rounded("float16"), np.float16(expected))


@given(st.floats(width=64, allow_subnormal=True), st.sampled_from(list(FORMATS)))
def test_rounding_equals_the_cast(value: float, dtype: str) -> None:
    """NumPy and ml_dtypes round a float32 value once; a float64 value to bfloat16 they do not."""
    with np.errstate(over="ignore", under="ignore"):
        value = float(np.float32(value)) if dtype == "bfloat16" else value
    if math.isfinite(value):
        numerator, denominator = value.as_integer_ratio()
        rounded = Exact([(numerator, 1 - denominator.bit_length())], (1,)).rounded(dtype)
        with np.errstate(over="ignore", under="ignore"):
            assert rounded[0] == np.array(value).astype(dtype_of(dtype))


@pytest.mark.parametrize("dtype", FORMATS)
def test_ulp_is_the_distance_to_the_next_value(dtype: str) -> None:
    form = FORMATS[dtype]
    for exponent in (form.min_exponent, -3, 0, form.max_exponent):
        assert ulp(2.0**exponent, dtype) == 2.0 ** (exponent - form.precision + 1)
    tiny = 2.0 ** (form.min_exponent - form.precision + 1)
    assert ulp(0.0, dtype) == ulp(2.0**form.min_exponent / 2, dtype) == tiny
    assert np.isnan(ulp(np.inf, dtype))


@pytest.mark.parametrize("dtype", FORMATS)
def test_ulp_distance_counts_steps(dtype: str) -> None:
    form = FORMATS[dtype]
    step = 2.0 ** (1 - form.precision)
    values = np.array([1.0, 1 + step, 1 + 3 * step, -0.0, 0.0, np.nan]).astype(dtype_of(dtype))
    assert ulp_distance(values[[0, 0, 3, 5]], values[[1, 2, 4, 5]]).tolist() == [1, 3, 0, 0]
    assert ulp_distance(values[:1], values[5:])[0] == np.iinfo(np.int64).max
    smallest = 2.0 ** (form.min_exponent - form.precision + 1)
    around_zero = np.array([-smallest, smallest]).astype(dtype_of(dtype))
    assert ulp_distance(around_zero[:1], around_zero[1:])[0] == 2


def test_error_is_measured_beyond_float64() -> None:
    # 1/3 is 0.333...: the nearest float32 is off by 1/3 of an ULP, and float64 by 1/3 of its own
    third = Exact([((1 << 300) // 3, -300)], (1,))
    for dtype, beyond in (("float32", 4 / 3), ("float64", 2 / 3)):
        nearest = third.rounded(dtype)  # float32's lies above 1/3, float64's below
        above = np.nextafter(nearest, nearest.dtype.type(2))
        assert third.ulp_error(nearest)[0] == pytest.approx(1 / 3, abs=2.0**-40)
        assert third.ulp_error(above)[0] == pytest.approx(beyond, abs=2.0**-40)


def test_wrong_special_values_are_infinitely_wrong() -> None:
    exact = Exact([math.nan, math.inf, (1, 0), (1, 200)], (4,))
    right = np.float32([np.nan, np.inf, 1, np.inf])
    assert exact.ulp_error(right).tolist() == [0, 0, 0, 0]
    wrong = np.float32([1, -np.inf, np.nan, 3e38])
    assert np.isinf(exact.ulp_error(wrong))[:3].all()
    assert exact.ulp_error(wrong)[3] > 1e6


def test_assert_ulp_fails_one_ulp_away_and_names_the_place() -> None:
    x = np.linspace(1, 2, 9, dtype=np.float32).reshape(3, 3)
    exact = exact_rms_norm(x)
    good = exact.rounded("float32")
    assert_ulp(good, exact)
    bad = good.copy()
    bad[1, 2] = np.nextafter(bad[1, 2], np.float32(9))
    with pytest.raises(AssertionError, match=r"1 of 9 elements of float32.*at \(1, 2\)"):
        assert_ulp(bad, exact)
    assert_ulp(bad, exact, floor=np.float64(2.0**-22))
    assert_ulp(bad, good, max_ulp=1)
    with pytest.raises(AssertionError, match="1 ULP off"):
        assert_ulp(bad, good)
    with pytest.raises(TypeError, match="expected must have the dtype of actual, float32"):
        assert_ulp(bad, good.astype(np.float64))
    with pytest.raises(ValueError, match=r"actual must have the shape .*\(3, 3\)"):
        assert_ulp(bad[0], exact)


def test_assert_same_bits_sees_a_sign_of_zero() -> None:
    zeros = np.zeros(3, np.float32)
    assert bits_differ(zeros, zeros) == 0
    with pytest.raises(AssertionError, match=r"1 of 3 elements .* at \(1,\)"):
        assert_same_bits(np.float32([0, -0.0, 0]), zeros)
    with pytest.raises(TypeError, match="a and b must be alike"):
        bits_differ(zeros, zeros.astype(np.float64))


def test_worst_ulp_of_nothing_is_zero() -> None:
    x = np.zeros((0, 4), np.float32)
    assert worst_ulp(x, exact_rms_norm(x)) == 0.0


def test_floor_excuses_cancellation_only() -> None:
    """An element that the bias cancels may be wrong by the floor; one that it leaves may not."""
    x = np.float16([[1, 2, 3, 4]])
    bias = np.float16([[-0.365, 0, 0, 0]])[0]
    exact = exact_rms_norm(x, None, bias, eps=0.0)
    floor = contract_floor(x, exact, None, bias)
    assert floor.shape == x.shape
    # 2^-22 of about 1.8: hundreds of times below the ULP of what the bias left
    assert floor.max() < ulp(exact.values, "float16")[0, 1:].min() / 500
