"""Properties that hold for every input: hypothesis draws bits, subnormals and extremes included."""

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
from backends import Subject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import EXACT

from normkit.testing import assert_same_bits, assert_ulp, contract_floor, dtype_of

_SHAPE = (2, 11)  # one shape, so that a compiled backend compiles once
# The fixture is the same object for all examples of a test, and the first call may compile.
_MANY = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _bits(dtype: str) -> Any:
    """Arrays of any bit patterns but NaN and infinity."""
    unsigned = np.dtype(f"u{dtype_of(dtype).itemsize}")

    def finite(patterns: Any) -> Any:
        x = patterns.view(dtype_of(dtype))
        with np.errstate(invalid="ignore"):  # which ml_dtypes says of a signalling NaN
            return np.where(np.isfinite(x), x, np.ones_like(x))

    return hnp.arrays(unsigned, _SHAPE).map(finite)


def _near_one() -> Any:
    return hnp.arrays(np.float32, _SHAPE, elements=st.floats(-8, 8, width=32))


@_MANY
@given(data=st.data())
def test_any_bits_meet_the_contract(backend: Subject, op: str, bits_dtype: str, data: Any) -> None:
    x = data.draw(_bits(bits_dtype))
    eps = data.draw(st.sampled_from([0.0, 1e-30, 1e-12, 1e-6, 1.0]))
    exact = EXACT[op](x, eps=eps)
    assert_ulp(backend.run(op, x, eps=eps), exact, floor=contract_floor(x, exact))


@_MANY
@given(x=_near_one(), k=st.integers(-40, 40))
def test_scaling_by_a_power_of_two_changes_no_bit(
    backend: Subject, op: str, x: Any, k: int
) -> None:
    """norm(x 2^k, eps 4^k) = norm(x, eps): every product is exact, so the bits are the same."""
    x = np.where(np.abs(x) < 2.0**-60, np.float32(0), x)  # what 2^-40 would make subnormal
    scaled = backend.run(op, x * np.float32(2.0**k), eps=2.0**-20 * 4.0**k)
    assert_same_bits(scaled, backend.run(op, x, eps=2.0**-20))


@_MANY
@given(x=_near_one())
def test_norms_are_odd(backend: Subject, op: str, x: Any) -> None:
    """norm(-x) = -norm(x), but for the sign of a zero that LayerNorm makes by subtraction."""
    np.testing.assert_array_equal(backend.run(op, -x), -backend.run(op, x))


@_MANY
@given(x=_near_one(), shift=st.integers(-1000, 1000))
def test_layer_norm_ignores_a_constant(backend: Subject, x: Any, shift: int) -> None:
    """With x on a grid of 2^-6, x + shift is exact, and the result the same real number."""
    x = np.round(x * 64) / np.float32(64)
    exact = EXACT["layer_norm"](x)
    moved = backend.run("layer_norm", x + np.float32(shift))
    assert_ulp(moved, exact, floor=contract_floor(x, exact))


@_MANY
@given(x=_near_one())
def test_unit_scale_and_zero_bias_change_no_value(backend: Subject, op: str, x: Any) -> None:
    ones, zeros = np.ones(_SHAPE[1], np.float32), np.zeros(_SHAPE[1], np.float32)
    np.testing.assert_array_equal(backend.run(op, x, ones, zeros), backend.run(op, x))


@_MANY
@given(x=_near_one())
def test_rows_have_squared_norm_n(backend: Subject, x: Any) -> None:
    """At eps 0 a row that is not zero lies on the sphere of radius sqrt(n)."""
    y = backend.run("rms_norm", x, eps=0.0).astype(np.float64)
    lengths = (y * y).sum(axis=-1)
    expected = np.where((x != 0).any(axis=-1), _SHAPE[1], 0)
    # each element is rounded at 2^-24, so the sum of squares at 2^-23
    assert np.all(np.abs(lengths - expected) <= _SHAPE[1] * 2.0**-23)
