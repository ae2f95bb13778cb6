"""The accuracy contract on every backend, against the exact oracle and bit by bit."""

from typing import Any

import normkit.numpy
import numpy as np
import pytest
from backends import Subject
from oracles import EXACT, EXACT_VJP, gradient_floors, hard_cases, real_cases

from normkit.testing import (
    MAX_ULP,
    assert_same_bits,
    assert_ulp,
    contract_floor,
    dtype_of,
    worked_example,
)

# Worked by hand in docs/mathematics.md: the tokens 猫 吃 鱼 with d = 4, scale 1, eps 0.
_BY_HAND = {
    "rms_norm": [
        [0.3651, 0.7303, 1.0954, 1.4606],
        [0.8165, 0, -0.8165, 1.6330],
        [-1, 1, -1, 1],
    ],
    "layer_norm": [
        [-1.3416, -0.4472, 0.4472, 1.3416],
        [0.4472, -0.4472, -1.3416, 1.3416],
        [-1, 1, -1, 1],
    ],
}


def _same(backend: Subject, actual: Any, case: Any) -> None:
    """Bits equal NumPy's where that is promised: on the CPU, for all dtypes but float64."""
    if backend.exact_bits and case.x.dtype != np.float64:
        reference = getattr(normkit.numpy, case.op)(case.x, case.scale, case.bias, eps=case.eps)
        assert_same_bits(actual, reference)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_worked_example(backend: Subject, op: str, dtype: str) -> None:
    case = worked_example(dtype)[op]
    y = backend.run(op, case.x, case.scale, eps=0.0)
    assert y.dtype == case.x.dtype
    assert np.abs(y - np.array(_BY_HAND[op])).max() < 0.00005


def test_real_activations_are_correctly_rounded(backend: Subject, dtype: str) -> None:
    for case, exact, floor in real_cases(dtype):
        y = backend.run(case.op, case.x, case.scale, case.bias, eps=case.eps)
        # float64's floor is its whole contract; the others need none on real data
        assert_ulp(y, exact, MAX_ULP, floor=floor if dtype == "float64" else 0.0)
        _same(backend, y, case)


def test_hard_inputs(backend: Subject, op: str, dtype: str) -> None:
    for case, exact, floor in hard_cases(op, dtype):
        y = backend.run(op, case.x, case.scale, case.bias, eps=case.eps)
        try:
            assert_ulp(y, exact, floor=floor)
            _same(backend, y, case)
        except AssertionError as error:
            raise AssertionError(f"family {case.name!r}: {error}") from None


def test_same_bits_on_normal_data(backend: Subject, op: str, bits_dtype: str) -> None:
    if not backend.exact_bits:
        pytest.skip("equal bits are promised on the CPU")
    random = np.random.default_rng(5)
    x = random.standard_normal((128, 4096)).astype(dtype_of(bits_dtype))
    scale, bias = random.standard_normal((2, 4096)).astype(dtype_of(bits_dtype))
    assert_same_bits(backend.run(op, x, scale, bias), getattr(normkit.numpy, op)(x, scale, bias))


@pytest.mark.parametrize(
    ("size", "mean", "eps"), [(1e20, 0, 1e-6), (1e-30, 0, 0.0), (1, 1e6, 1e-6)]
)
def test_where_torch_and_flax_fail(
    backend: Subject, op: str, size: float, mean: float, eps: float
) -> None:
    """float32 rows at 1e20, at 1e-30 with eps 0, and at mean 1e6 with unit noise."""
    x = (np.random.default_rng(6).standard_normal((4, 300)) * size + mean).astype(np.float32)
    exact = EXACT[op](x, eps=eps)
    assert_ulp(backend.run(op, x, eps=eps), exact, floor=contract_floor(x, exact))


@pytest.mark.parametrize("width", [*range(1, 34), 63, 64, 65, 127, 128, 129, 1023])
def test_every_width(op: str, width: int) -> None:
    x = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    exact = EXACT[op](x)
    assert_ulp(getattr(normkit.numpy, op)(x), exact, floor=contract_floor(x, exact))


def test_any_pair_of_dtypes(backend: Subject, op: str, dtype: str, scale_dtype: str) -> None:
    """The result has x's dtype; scale is used with all of its digits that float32 or float64 has."""
    x = np.array([[1, 2, 3, 4]]).astype(dtype_of(dtype))
    scale = np.array([1, 2, 1.1, 2]).astype(dtype_of(scale_dtype))
    y = backend.run(op, x, scale, eps=0.0)
    assert y.dtype == x.dtype
    assert_ulp(y, EXACT[op](x, scale, eps=0.0), 1.5 if dtype == "float64" else MAX_ULP)


def test_gradients_of_real_activations(backend: Subject, dtype: str) -> None:
    """Gradients are float64 all through and rounded once (a half dtype by way of float32)."""
    random = np.random.default_rng(8)
    for case, _, _ in real_cases(dtype):
        case = case._replace(x=case.x[:6])
        dy = random.standard_normal(case.x.shape).astype(case.x.dtype)
        found = backend.gradients(case.op, dy, case.x, case.scale, case.bias, eps=case.eps)
        expected = EXACT_VJP[case.op](dy, case.x, case.scale, case.bias, eps=case.eps)
        limit = 1.0 if dtype == "float64" else MAX_ULP  # float64 has no wider type
        for actual, wanted, floor in zip(found, expected, gradient_floors(case, dy), strict=True):
            if wanted is None:
                assert actual is None
            else:
                assert_ulp(actual, wanted, limit, floor=floor)
