"""Rows of every length from 1 to 257, and of 2^k - 1, 2^k and 2^k + 1 elements up to 65 537.

Compilers treat the end of a row that does not fill a vector apart, and there XLA contracts products
and sums, so a fault may show at odd lengths alone. Scale and bias give it something to contract.

NumPy meets the oracle at every length, and the others have NumPy's bits: torch at every length in
both dtypes. JAX compiles each length anew, 0.1 s or more a time: `jax.jit` is asked at every length
in float32, 16 of them in one program; in bfloat16 at the lengths up to 33 and about the powers of
two. JAX without jit and Flax compile the same function, and are asked at these lengths.
"""

from collections.abc import Iterator
from typing import Any

import normkit.numpy
import numpy as np
import pytest
from backends import FORWARD, Subject, subjects
from contract import BACKENDS
from oracles import EXACT

from normkit.testing import assert_same_bits, assert_ulp, contract_floor, dtype_of

_POWERS = {2**k + d for k in range(1, 17) for d in (-1, 0, 1)}
_LENGTHS = sorted({*range(1, 258), *_POWERS})
_FEW = sorted({*range(1, 34), *_POWERS})
_DTYPES = ("float32", "bfloat16")
_HERE = {subject.label: subject for subject in subjects()[0]}
_PARTS = 4  # tests for each backend, op and dtype, so that they spread over the processes


def _row(length: int, dtype: str) -> tuple[Any, Any, Any]:
    """Two rows, one off the centre, and their scale and bias; one row where it is long."""
    random = np.random.default_rng(length)
    x, scale, bias = random.standard_normal((3, 2, length))
    x[1] += 100
    x = x[: 2 if length <= 257 else 1]
    return tuple(a.astype(dtype_of(dtype)) for a in (x, scale[0], bias[0]))


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("parameters", [True, False], ids=["scale and bias", "alone"])
@pytest.mark.parametrize("dtype", _DTYPES)
def test_numpy_at_every_length(op: str, dtype: str, parameters: bool, part: int) -> None:
    for length in _LENGTHS[part::_PARTS]:
        x, *both = _row(length, dtype)
        both = both if parameters else [None, None]
        exact = EXACT[op](x, *both)
        y = getattr(normkit.numpy, op)(x, *both, eps=1e-5 if op == "layer_norm" else 1e-6)
        try:
            assert_ulp(y, exact, floor=contract_floor(x, exact, *both))
        except AssertionError as error:
            raise AssertionError(f"length {length}: {error}") from None


def _lengths(label: str, dtype: str) -> list[int]:
    """See above: few where each one is compiled."""
    few = label.startswith(("jax", "flax")) and (dtype, label) != ("float32", "jax:jit-cpu")
    return _FEW if few else _LENGTHS


def _results(
    subject: Subject, op: str, dtype: str, lengths: list[int]
) -> Iterator[tuple[int, Any]]:
    """(length, result) with scale and bias."""
    if not subject.label.startswith("jax:jit"):
        for length in lengths:
            yield length, subject.run(op, *_row(length, dtype))
        return
    import jax

    function = getattr(_HERE["jax:cpu"].backend.functions, op)
    many = jax.jit(lambda rows: [function(*row) for row in rows])
    for i in range(0, len(lengths), 16):
        some = lengths[i : i + 16]
        rows = [tuple(map(subject.backend.put, _row(length, dtype))) for length in some]
        yield from zip(some, map(subject.backend.get, many(rows)), strict=True)


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("label", BACKENDS)
def test_bits_at_every_length(label: str, op: str, dtype: str, part: int) -> None:
    if label not in _HERE:
        pytest.skip("the backend is not here")
    for length, y in _results(_HERE[label], op, dtype, _lengths(label, dtype)[part::_PARTS]):
        try:
            assert_same_bits(y, getattr(normkit.numpy, op)(*_row(length, dtype)))
        except AssertionError as error:
            raise AssertionError(f"length {length}: {error}") from None
