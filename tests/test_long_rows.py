"""Rows of 10^5 and 10^6 elements: NumPy against the exact oracle, the others against NumPy."""

import normkit.numpy
import numpy as np
from backends import Subject
from oracles import long_cases

from normkit.testing import assert_same_bits, assert_ulp, long_rows


def test_numpy_meets_the_contract(op: str, bits_dtype: str) -> None:
    """All elements: one of each value against the oracle, and the others against that one."""
    for case, at, exact, floor in long_cases(op, bits_dtype):
        y = getattr(normkit.numpy, op)(case.x, eps=case.eps)
        assert_ulp(y[:, at], exact, floor=floor)
        wide = case.x[0].astype(np.float64)
        same = np.searchsorted(wide[at], wide)
        assert_same_bits(y, y[:, at][:, same])


def test_bits_are_those_of_numpy(backend: Subject, op: str, bits_dtype: str) -> None:
    for case in long_rows(op, bits_dtype):
        y = backend.run(op, case.x, eps=case.eps)
        assert y.shape == case.x.shape
        if backend.exact_bits:
            assert_same_bits(y, getattr(normkit.numpy, op)(case.x, eps=case.eps))


def test_float64_meets_its_contract(backend: Subject, op: str) -> None:
    for case, at, exact, floor in long_cases(op, "float64"):
        y = backend.run(op, case.x, eps=case.eps)
        assert_ulp(y[:, at], exact, floor=floor)
