"""What normkit relies on in each framework, so that a new version that breaks it is named here.

These test the frameworks, not normkit. A failure says which assumption to look at.
"""

from typing import Any

import numpy as np
import pytest

from normkit.testing import Exact, assert_same_bits, dtype_of

_RANDOM = np.random.default_rng(50)


def _float64_samples() -> Any:
    """Float64 values over the range of float32 and beyond, ties and their neighbours included."""
    significand = _RANDOM.integers(2**23, 2**24, 4000).astype(np.float64)
    ties = (significand + 0.5) * 2.0 ** _RANDOM.integers(-172, 104, 4000)
    near = np.nextafter(ties, _RANDOM.choice([-np.inf, np.inf], 4000))
    plain = _RANDOM.standard_normal(4000) * 2.0 ** _RANDOM.integers(-152, 128, 4000)
    values = np.concatenate([ties, near, plain, [0.0, 2.0**-149, 2.0**-150, 3.4e38, 2.0**128]])
    return np.concatenate([values, -values])


def _rounded(values: Any, dtype: str) -> Any:
    """Rounded once, by integer arithmetic."""
    numbers: list[Any] = []
    for value in values.tolist():
        numerator, denominator = value.as_integer_ratio()
        numbers.append((numerator, 1 - denominator.bit_length()))
    return Exact(numbers, values.shape).rounded(dtype)


def _same_values(actual: Any, expected: Any) -> None:
    """Bits, but for the sign of zero, which an integer does not have."""
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == expected.dtype


def test_numpy_casts_float64_to_float32_in_one_rounding() -> None:
    values = _float64_samples()
    with np.errstate(over="ignore", under="ignore"):
        _same_values(values.astype(np.float32), _rounded(values, "float32"))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_numpy_and_ml_dtypes_cast_float32_to_half_in_one_rounding(half: str) -> None:
    with np.errstate(over="ignore", under="ignore"):
        values = _float64_samples().astype(np.float32)
        values = values[np.isfinite(values)]
        _same_values(values.astype(dtype_of(half)), _rounded(values.astype(float), half))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_torch_casts_in_one_rounding(half: str) -> None:
    torch = pytest.importorskip("torch")
    values = _float64_samples()
    with np.errstate(over="ignore", under="ignore"):
        single = values.astype(np.float32)
    assert_same_bits(torch.from_numpy(values).to(torch.float32).numpy(), single)
    narrow = torch.from_numpy(single).to(getattr(torch, half))
    with np.errstate(over="ignore", under="ignore"):
        _same_values(
            narrow.to(torch.float32).numpy(), single.astype(dtype_of(half)).astype(np.float32)
        )


def test_torch_widens_subnormals_and_keeps_them_in_a_product() -> None:
    torch = pytest.importorskip("torch")
    tiny = np.float32([1e-45, -3e-39, 1e-38])
    assert_same_bits(torch.from_numpy(tiny).double().numpy(), tiny.astype(np.float64))
    product = torch.from_numpy(tiny) * torch.tensor(0.5)
    assert_same_bits(product.numpy(), tiny * np.float32(0.5))


@pytest.mark.parametrize("jit", [False, True])
def test_jax_rounds_to_float32_explicitly(jit: bool) -> None:
    """lax.reduce_precision on float64 is one rounding and survives XLA's passes."""
    jax = pytest.importorskip("jax")
    values = _float64_samples()
    with np.errstate(over="ignore", under="ignore"):
        expected = values.astype(np.float32).astype(np.float64)

    def rounded(x: Any) -> Any:
        return jax.lax.reduce_precision(x, 8, 23)

    with jax.enable_x64(True):
        found = np.asarray((jax.jit(rounded) if jit else rounded)(jax.numpy.asarray(values)))
    normal = np.abs(values) >= 2.0**-126  # below, it flushes: normkit rounds those by integers
    _same_values(found[normal], expected[normal])


@pytest.mark.parametrize("jit", [False, True])
def test_jax_product_of_float32_values_is_exact_in_float64(jit: bool) -> None:
    jax = pytest.importorskip("jax")
    a, b, c = _RANDOM.standard_normal((3, 4097)).astype(np.float32)

    def steps(a: Any, b: Any, c: Any) -> Any:
        wide = [x.astype(jax.numpy.float64) for x in (a, b, c)]
        product = jax.lax.reduce_precision(wide[0] * wide[1], 8, 23)
        return jax.lax.reduce_precision(product + wide[2], 8, 23).astype(jax.numpy.float32)

    with jax.enable_x64(True):
        arrays = [jax.numpy.asarray(x) for x in (a, b, c)]
        found = np.asarray((jax.jit(steps) if jit else steps)(*arrays))
    assert_same_bits(found, a * b + c)  # NumPy: two float32 roundings, never one


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("jit", [False, True])
def test_jax_casts_float32_to_half_in_one_rounding(half: str, jit: bool) -> None:
    """All patterns of float32 whose top 17 bits matter: each half value, the ties, their sides."""
    jax = pytest.importorskip("jax")
    tops = np.arange(2**17, dtype=np.uint32) << 15
    values = np.concatenate([tops, tops | 1, tops | 0x1000, tops | 0x1001]).view(np.float32)
    values = values[np.isfinite(values) & ((values == 0) | (np.abs(values) >= 2.0**-126))]
    dtype = dtype_of(half)

    def cast(x: Any) -> Any:
        return x.astype(dtype)

    found = np.asarray((jax.jit(cast) if jit else cast)(jax.numpy.asarray(values)))
    with np.errstate(over="ignore", under="ignore"):
        assert_same_bits(found, values.astype(dtype))


@pytest.mark.parametrize("jit", [False, True])
def test_jax_bit_casts_see_subnormals_that_arithmetic_flushes(jit: bool) -> None:
    """If the second half fails, XLA has stopped flushing, and the decoding is not needed."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("flushing is a property of XLA on the CPU")
    tiny = jax.numpy.asarray(np.float32([1e-45, -3e-39]))

    def bits(x: Any) -> Any:
        return jax.lax.bitcast_convert_type(x, jax.numpy.uint32)

    def doubled(x: Any) -> Any:
        return x + x

    found = np.asarray((jax.jit(bits) if jit else bits)(tiny))
    assert found.tolist() == np.asarray(tiny).view(np.uint32).tolist()
    assert not np.asarray((jax.jit(doubled) if jit else doubled)(tiny)).any()


def _guarded(a: Any, b: Any) -> Any:
    """a b through an exclusive or with a zero that is computed from the data."""
    import jax
    from jax import lax

    integer = jax.numpy.int32
    zero = lax.bitcast_convert_type(jax.numpy.abs(a[0] * 0), integer)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(a * b, integer) ^ zero, a.dtype)


def test_jax_finishes_a_product_that_an_integer_operation_follows() -> None:
    """Pairs rest on it. If the second half fails, XLA has stopped merging, and no guard is needed."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("merging is a property of XLA on the CPU")
    a, b, c = _RANDOM.standard_normal((3, 4097)).astype(np.float32)
    arrays = [jax.numpy.asarray(x) for x in (a, b, c)]
    guarded = jax.jit(lambda a, b, c: _guarded(a, b) + c)(*arrays)
    assert_same_bits(np.asarray(guarded), a * b + c)
    assert (np.asarray(jax.jit(lambda a, b, c: a * b + c)(*arrays)) != a * b + c).any()


@pytest.mark.parametrize("jit", [False, True])
def test_jax_leaves_the_error_of_a_sum_alone(jit: bool) -> None:
    """No pass of XLA takes (a + b) - a for b."""
    jax = pytest.importorskip("jax")
    a, b = _RANDOM.standard_normal((2, 4097)).astype(np.float32)

    def two_sum(a: Any, b: Any) -> Any:
        s = a + b
        part = s - a
        return s, (a - (s - part)) + (b - part)

    s, e = (jax.jit(two_sum) if jit else two_sum)(jax.numpy.asarray(a), jax.numpy.asarray(b))
    assert_same_bits(np.asarray(s), a + b)
    exact = a.astype(np.float64) + b.astype(np.float64)
    _same_values(np.asarray(s).astype(np.float64) + np.asarray(e).astype(np.float64), exact)
