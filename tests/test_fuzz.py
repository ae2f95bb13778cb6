"""A fixed batch of fuzzed cases, the seeds that failed once, and what they taught by example."""

import json

import normkit.numpy
import numpy as np
import pytest
from backends import DTYPES, FORWARD, subjects
from fuzz import PATH, backends_here, case_of, failures
from oracles import EXACT

from normkit.testing import assert_same_bits, assert_ulp, contract_floor, dtype_of

_BATCH = range(12_000)  # some 10 s a test, half of it JAX's compilations


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FORWARD)
def test_fixed_batch(op: str, dtype: str) -> None:
    here = backends_here()
    tried = 0
    for seed in _BATCH:
        case = case_of(seed)
        if (case.op, case.x.dtype.name) == (op, dtype):
            tried += 1
            assert not [f.message for f in failures(case, here) if not f.known]
    assert tried > len(_BATCH) / 10


@pytest.mark.parametrize("seed", json.loads(PATH.read_text(encoding="utf-8")))
def test_recorded_seed(seed: int) -> None:
    found = failures(case_of(seed), backends_here())
    assert not [f.message for f in found if not f.known]


def test_floor_where_scale_hides_the_rest_of_the_row() -> None:
    """An element close to the mean has the error of its row, and scale leaves nothing else."""
    x = np.random.default_rng(0).standard_normal((64, 129))
    x[:, 0] = (x[:, 1:].sum(axis=1) / 128) * (1 + 1e-6)
    scale = np.zeros(129)
    scale[0] = 1.0
    exact = EXACT["layer_norm"](x, scale)
    y = normkit.numpy.layer_norm(x, scale)
    assert_ulp(y, exact, floor=contract_floor(x, exact, scale))


@pytest.mark.parametrize("kernel", [None, "array_api"])
def test_float64_subnormal_deviations(kernel: str | None) -> None:
    """Deviations below 2^-1022, which eps leaves small, and a huge scale brings back."""
    x = np.repeat([[1e-297]], 5, axis=1)
    x[0, 0] = np.nextafter(1e-297, 0)
    scale = np.full(5, 1e300)
    exact = EXACT["layer_norm"](x, scale, eps=1e-12)
    y = normkit.numpy.layer_norm(x, scale, eps=1e-12, kernel=kernel)
    assert_ulp(y, exact, floor=contract_floor(x, exact, scale))


@pytest.mark.xfail(
    raises=AssertionError, reason="the steps after h are float32: h scale is infinite on the way"
)
def test_half_type_that_overflows_on_the_way() -> None:
    """h = -1.5, scale = 2.34e38 and bias = 2.78e38: the sum fits bfloat16, the product does not."""
    x = np.array([[-1.0, -1.0, 3.0, 3.0, -4.0]]).astype(dtype_of("bfloat16"))
    scale = np.full(5, 2.34e38).astype(x.dtype)
    bias = np.full(5, 2.78e38).astype(x.dtype)
    exact = EXACT["layer_norm"](x, scale, bias)
    assert np.isfinite(exact.rounded(x.dtype)[0, 4])
    y = normkit.numpy.layer_norm(x, scale, bias)
    assert_ulp(y[:, 4:], EXACT["layer_norm"](x, scale, bias, at=[4]))


@pytest.mark.parametrize("op", FORWARD)
def test_bits_where_the_result_is_often_a_tie(op: str) -> None:
    """RMSNorm of a constant row is bias +- 1, LayerNorm of two elements too, but for rounding."""
    random = np.random.default_rng(0)
    width = 59 if op == "rms_norm" else 2
    x = np.repeat(random.standard_normal((512, 1)), width, axis=1).astype(np.float32)
    x[:, 1:] *= 1 if op == "rms_norm" else -1
    scale, bias = random.standard_normal((2, width)).astype(np.float32)
    expected = getattr(normkit.numpy, op)(x, scale, bias, eps=0.0)
    for subject in subjects()[0]:
        if subject.exact_bits:
            assert_same_bits(subject.run(op, x, scale, bias, eps=0.0), expected)
