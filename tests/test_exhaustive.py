"""Every value of both half types, as a row of one element."""

import functools
from typing import Any

import normkit.numpy
import numpy as np
import pytest
from backends import Subject
from oracles import EXACT

from normkit.testing import Exact, assert_same_bits, assert_ulp, contract_floor, dtype_of

_EPS = (0.0, 1e-6, 1.0)


@functools.cache
def _expected(op: str, dtype: str, eps: float) -> tuple[Any, Exact, Any]:
    x = np.arange(2**16, dtype=np.uint16).view(dtype_of(dtype))[:, None]
    exact = EXACT[op](x, eps=eps)
    return x, exact, contract_floor(x, exact)


@pytest.mark.parametrize("eps", _EPS)
def test_all_values_of_a_half_type(backend: Subject, op: str, half_dtype: str, eps: float) -> None:
    """65 536 rows: subnormals, infinities and every NaN among them."""
    x, exact, floor = _expected(op, half_dtype, eps)
    y = backend.run(op, x, eps=eps)
    assert_ulp(y, exact, floor=floor)
    if backend.exact_bits:
        assert_same_bits(y, getattr(normkit.numpy, op)(x, eps=eps))
