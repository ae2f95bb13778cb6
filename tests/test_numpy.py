"""normkit.numpy as a NumPy user meets it."""

from typing import Any

import ml_dtypes
import normkit.numpy as nk
import numpy as np
import pytest

import normkit
from normkit.testing import assert_same_bits

_FUNCTIONS = [nk.rms_norm, nk.layer_norm]
_X = np.random.default_rng(40).standard_normal((4, 6)).astype(np.float32)


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_out_is_filled_and_returned(function: Any) -> None:
    expected = function(_X)
    for out in (np.empty_like(_X), np.asfortranarray(_X), np.empty((4, 12), np.float32)[:, ::2]):
        assert function(_X, out=out) is out
        assert_same_bits(out, expected)


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_in_place(function: Any) -> None:
    x = _X.copy()
    assert function(x, out=x) is x
    assert_same_bits(x, function(_X))
    x = _X.copy()
    function(x, out=x[::-1])  # an overlapping view: x itself is read to the end before
    assert_same_bits(np.ascontiguousarray(x[::-1]), function(_X))


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_foreign_byte_order_and_subclasses(function: Any) -> None:
    swapped = _X.astype(">f4")
    y = function(swapped)
    assert y.dtype == swapped.dtype
    assert_same_bits(y.astype(np.float32), function(_X))


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_bfloat16_sums_do_not_saturate(function: Any) -> None:
    """NumPy's own mean of 1000 bfloat16 ones is 0.256, because it sums in bfloat16."""
    ones = np.ones((1, 1000), ml_dtypes.bfloat16)
    expected = 1.0 if function is nk.rms_norm else 0.0
    assert function(ones, eps=0.0).tolist() == [[expected] * 1000]


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_typed_eps_keeps_the_dtype(function: Any) -> None:
    for eps in (np.float64(1e-6), np.float32(1e-6), np.array(1e-6), 0, np.int64(1)):
        assert function(_X, eps=eps).dtype == np.float32
        assert function(_X.astype(np.float16), eps=eps).dtype == np.float16


def test_default_eps() -> None:
    """1e-6 for RMSNorm and 1e-5 for LayerNorm, whatever the dtype."""
    tiny = np.full((1, 8), 1e-3)
    assert abs(nk.rms_norm(tiny)[0, 0] - 0.5**0.5) < 1e-12
    assert_same_bits(nk.rms_norm(_X), nk.rms_norm(_X, eps=1e-6))
    assert_same_bits(nk.layer_norm(_X), nk.layer_norm(_X, eps=1e-5))
    assert nk.layer_norm(_X, eps=1e-6).tolist() != nk.layer_norm(_X).tolist()


def test_core_and_adapter_are_one() -> None:
    assert set(nk.__all__) <= set(normkit.__all__)
    assert_same_bits(normkit.rms_norm(np.asfortranarray(_X)), nk.rms_norm(_X))


def test_no_warning_about_special_values() -> None:
    """Warnings are errors here; infinities, NaN and overflow in a half dtype give none."""
    x = np.float16([[np.inf, 1, 2], [np.nan, 1, 2], [1, 2, 3]])
    huge = np.full(3, 60000, np.float16)
    for function in (*_FUNCTIONS, normkit.rms_norm, normkit.layer_norm):
        assert np.isinf(function(x, huge, huge, eps=0.0)[2]).any()
