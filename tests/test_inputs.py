"""The families are what their names say, and none is missing."""

import numpy as np
import pytest
from backends import FORWARD

from normkit.testing import FORMATS, dtype_of, hard_inputs, long_rows

# The ways in which norms were found to fail, and the family that stands for each.
_FLOAT32 = {
    "normal",
    *(f"mean {mean}" for mean in (1000, 100000, 10000000)),
    *(f"size {size}" for size in ("1e-20", "1e+15", "1e+19", "1e+25")),
    *(f"size {size}, eps 0" for size in ("1e-04", "1e-20", "1e-30")),
    *("near the top", "subnormal", "subnormal, eps 0"),
    *(f"outlier {place}" for place in ("first", "in the middle", "last", "1e+20")),
    *("width 1", "width 2", "width 3", "wide", "wide and positive"),
    *("constant", "zeros", "alternating", "cancelling mean", "mixed exponents"),
    *("random bits", "random bits, NaN and infinities", "NaN and infinities"),
    *("size and eps alike", "scale and bias"),
}
# What would lie outside of float16's range, and what XLA takes for 0 in float64
_LEFT_OUT = {
    "float16": {
        *("mean 100000", "mean 10000000", "outlier 1e+20"),
        *("size 1e-20", "size 1e-20, eps 0", "size 1e-30, eps 0"),
        *("size 1e+15", "size 1e+19", "size 1e+25"),
    },
    "float64": {"subnormal", "subnormal, eps 0"},
}


def test_no_family_is_missing(op: str, dtype: str) -> None:
    names = [case.name for case in hard_inputs(op, dtype)]
    assert len(set(names)) == len(names)
    assert not _FLOAT32 - _LEFT_OUT.get(dtype, set()) - set(names)


def test_only_families_that_say_so_are_special(op: str, dtype: str) -> None:
    for case in hard_inputs(op, dtype):
        finite = np.isfinite(case.x.astype(np.float64)).all(axis=-1)
        if "NaN and infinities" in case.name:
            assert 0 < finite.sum() < len(finite), case.name
        else:
            # "near the top" spans the whole range, and half types may round up to infinity
            assert finite.all(), case.name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_random_bits_hold_subnormals(dtype: str) -> None:
    for case in hard_inputs("rms_norm", dtype):
        if case.name.startswith("random bits, eps 0"):
            x = np.abs(case.x.astype(np.float64))
            smallest = 2.0 ** FORMATS[dtype].min_exponent
            assert ((x > 0) & (x < smallest)).any()
            assert x.max() > smallest**-0.99


def test_rows_about_a_mean_are_not_constant(dtype: str) -> None:
    """A half type's spacing at 1e5 is more than the 1 by which float32's rows vary."""
    for case in (*hard_inputs("layer_norm", dtype), *long_rows("layer_norm", dtype)):
        if "mean" in case.name:
            assert (case.x.max(axis=-1) > case.x.min(axis=-1)).all(), case.name


@pytest.mark.parametrize("dtype", [*FORMATS])
def test_long_rows_with_an_outlier_are_one_row_in_three_orders(dtype: str) -> None:
    first, middle, last = (c.x[0] for c in long_rows("rms_norm", dtype) if "outlier" in c.name)
    at = [int(np.argmax(row)) for row in (first, middle, last)]
    assert at == [0, 500_000, 999_999]
    assert first.dtype == dtype_of(dtype)
    for row in (middle, last):
        assert np.array_equal(np.sort(row.astype(np.float64)), np.sort(first.astype(np.float64)))


def test_families_are_the_same_each_time() -> None:
    for op in FORWARD:
        for a, b in zip(hard_inputs(op), hard_inputs(op), strict=True):
            assert a.x.tobytes() == b.x.tobytes()
