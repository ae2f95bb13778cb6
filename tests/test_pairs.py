"""The kernel "pairs": what a device without float64 runs, asked for by name on devices that have it.

On array-api-strict's device without float64 it runs unasked.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import array_api_strict
import normkit.numpy
import numpy as np
import pytest
from backends import DTYPES, Subject, subjects
from oracles import EXACT, EXACT_VJP, gradient_floors, hard_cases, real_cases

import normkit
from normkit.testing import MAX_ULP, assert_same_bits, assert_ulp, contract_floor, dtype_of

_HERE = {subject.label: subject for subject in subjects()[0]}
_LABELS = ["numpy:cpu", "torch:cpu", "jax:jit-cpu"]
# XLA counts subnormal numbers as 0, the second of a pair included: an error of at most a smallest
# normal number for each of the three steps
_FLUSHED = 3 * 2.0**-126


@pytest.fixture(params=_LABELS)
def host(request: pytest.FixtureRequest) -> Subject:
    if request.param not in _HERE:
        pytest.skip("the backend is not here")
    return _HERE[request.param]


def _flushes(host: Subject) -> bool:
    return host.backend.framework == "jax"


def _cases(host: Subject, op: str, dtype: str) -> list[Any]:
    cases = [*hard_cases(op, dtype), *(c for c in real_cases(dtype) if c[0].op == op)]
    if _flushes(host):  # and compiles anew for each shape
        cases = [c for c in cases if "subnormal" not in c[0].name and c[0].x.shape == (8, 129)]
    return cases


@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_inputs_and_real_activations(host: Subject, op: str, dtype: str) -> None:
    """0.501 ULP beyond the floor for every dtype, float64 included; and everywhere NumPy's bits."""
    if _flushes(host) and dtype in ("float16", "float64"):
        pytest.skip("compiling takes long, and float32 and bfloat16 take the same steps")
    for case, exact, _ in _cases(host, op, dtype):
        arguments = (op, case.x, case.scale, case.bias)
        y = host.run(*arguments, eps=case.eps, kernel="pairs")
        assert y.dtype == case.x.dtype
        floor = contract_floor(case.x, exact, case.scale, case.bias, pairs=True)
        assert_ulp(y, exact, floor=floor + (_FLUSHED if _flushes(host) else 0.0))
        reference = _HERE["numpy:cpu"].run(*arguments, eps=case.eps, kernel="pairs")
        kept = _whole(reference) if _flushes(host) else np.ones(reference.shape, bool)
        assert_same_bits(y[kept], reference[kept])


def _whole(y: Any) -> Any:
    """Where both of a pair are normal numbers, 24 bits apart, in rows scaled to 1."""
    size = np.abs(y.astype(np.float64))
    with np.errstate(invalid="ignore"):
        return np.isnan(size) | (size >= 2.0 ** (24 - 126) * np.nanmax(size, initial=1.0))


def _row(width: int, dtype: str) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(width)
    x = random.standard_normal((3, width)).astype(dtype_of(dtype))
    scale, bias = random.standard_normal((2, width)).astype(dtype_of(dtype))
    return x, scale, bias


@pytest.mark.parametrize("first", range(1, 258, 32))
@pytest.mark.parametrize("label", ["numpy:cpu", "torch:cpu"])
def test_every_length(label: str, op: str, first: int) -> None:
    """1 to 257, and to the exact result."""
    for width in range(first, min(first + 32, 258)):
        x, scale, bias = _row(width, "float32")
        exact = EXACT[op](x, scale, bias)
        y = _HERE[label].run(op, x, scale, bias, kernel="pairs")
        assert_ulp(y, exact, floor=contract_floor(x, exact, scale, bias, pairs=True))


@pytest.mark.parametrize(
    ("dtype", "width"),
    [("float32", n) for n in (1, 2, 3, 5, 7, 8, 33, 64, 65, 127, 257, 1023)]
    + [("bfloat16", n) for n in (1, 3, 33, 65)],
)
def test_lengths_under_jit(op: str, dtype: str, width: int) -> None:
    """Odd lengths are where XLA merges a product with a sum; `make contract` runs more."""
    if "jax:jit-cpu" not in _HERE:
        pytest.skip("JAX is not here")
    arguments = (op, *_row(width, dtype))
    y = _HERE["jax:jit-cpu"].run(*arguments, kernel="pairs")
    assert_same_bits(y, _HERE["numpy:cpu"].run(*arguments, kernel="pairs"))


def test_steps_of_a_half_type_under_jit() -> None:
    """h scale is rounded before bias is added: one number in 2^13 shows it in float16."""
    if "jax:jit-cpu" not in _HERE:
        pytest.skip("JAX is not here")
    x, scale, bias = _row(8, "float16")
    x = np.random.default_rng(0).standard_normal((2**15, 8)).astype(x.dtype)
    arguments = ("rms_norm", x, scale, bias)
    y = _HERE["jax:jit-cpu"].run(*arguments, kernel="pairs")
    assert_same_bits(y, _HERE["numpy:cpu"].run(*arguments, kernel="pairs"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients(host: Subject, op: str, dtype: str) -> None:
    """dx, dscale and dbias of the public vjp, to the contract of the gradients."""
    random = np.random.default_rng(3)
    for case, _, _ in _cases(host, op, dtype):
        if not np.isfinite(case.x).all() or (_flushes(host) and case.scale is None):
            continue
        case = case._replace(x=case.x[:4])
        dy = random.standard_normal(case.x.shape).astype(case.x.dtype)
        arguments = (dy, case.x, case.scale, case.bias)
        found = host.run(f"{op}_vjp", *arguments, eps=case.eps, kernel="pairs")
        expected = EXACT_VJP[op](*arguments, eps=case.eps)
        for actual, wanted, floor in zip(found, expected, gradient_floors(case, dy), strict=True):
            if wanted is not None:
                assert_ulp(actual, wanted, MAX_ULP, floor=floor + 2.0**-149)


def test_torch_compile_keeps_the_named_kernel(op: str) -> None:
    """Inductor sees an operator, not the many steps of pairs, on which it would work for minutes."""
    if "torch:compile" not in _HERE:
        pytest.skip("torch is not here")
    arguments = (op, *_row(129, "float32"))
    y = _HERE["torch:compile"].run(*arguments, kernel="pairs")
    assert_same_bits(y, _HERE["numpy:cpu"].run(*arguments, kernel="pairs"))


@pytest.mark.parametrize("label", ["torch:cpu", "jax:jit-cpu"])
def test_differentiation_through_pairs(label: str, op: str) -> None:
    """The host's own derivative of the named kernel: float32's accuracy, not that of pairs.

    Each of the sums of 65 terms of size 1 errs by some 2^-24, and so does each product.
    """
    if label not in _HERE:
        pytest.skip("the backend is not here")
    x, scale, bias = _row(65, "float32")
    dy = x[:, ::-1].copy()
    found = _HERE[label].gradients(op, dy, x, scale, bias, kernel="pairs")
    expected = getattr(normkit.numpy, f"{op}_vjp")(dy, x, scale, bias)
    for actual, wanted in zip(found, expected, strict=True):
        largest = np.abs(wanted).max()
        assert np.abs(actual - wanted).max() <= 65 * 2.0**-24 * max(largest, 1)


def test_second_derivative_through_pairs(op: str) -> None:
    torch = pytest.importorskip("torch")
    function = getattr(pytest.importorskip("normkit.torch"), op)

    def second(dtype: Any, kernel: str) -> Any:
        x = torch.tensor([[1.0, 2.0, 4.0, 3.0, 7.0]], dtype=dtype, requires_grad=True)
        (g,) = torch.autograd.grad((function(x, kernel=kernel) ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad((g**2).sum(), x)[0]

    wanted = second(torch.float64, "array_api")
    difference = second(torch.float32, "pairs").double() - wanted
    assert difference.abs().max() <= 2.0**-20 * wanted.abs().max()  # a few dozen roundings of 2^-24


def _without_float64(array: Any) -> Any:
    return array_api_strict.asarray(array, device=array_api_strict.Device("no_float64"))


def _back(array: Any) -> Any:
    return np.asarray(array.to_device(array_api_strict.Device("CPU_DEVICE")))


def test_a_device_without_float64_runs_pairs_unasked(op: str) -> None:
    plain = _row(129, "float32")
    x, scale, bias = (_without_float64(a) for a in plain)
    y = getattr(normkit, op)(x, scale, bias)
    assert y.device == x.device
    assert_same_bits(_back(y), getattr(normkit.numpy, op)(*plain, kernel="pairs"))
    gradients = getattr(normkit, f"{op}_vjp")(x, x, scale, bias)
    expected = getattr(normkit.numpy, f"{op}_vjp")(plain[0], *plain, kernel="pairs")
    for actual, wanted in zip(gradients, expected, strict=True):
        assert_same_bits(_back(actual), wanted)
    total = getattr(normkit, f"add_{op}")(x, x)[1]
    assert_same_bits(_back(total), 2 * plain[0])


def test_a_device_without_float64_refuses_the_other_kernel(op: str) -> None:
    with pytest.raises(ValueError, match=r"array_api: the device has no float64"):
        getattr(normkit, op)(_without_float64(_row(4, "float32")[0]), kernel="array_api")


def test_unknown_kernel(op: str, backend: Subject) -> None:
    if backend.backend.framework == "flax":
        pytest.skip("a layer does not take a kernel's name")
    with pytest.raises(ValueError, match="kernel must be one of the table's; got 'triton'"):
        backend.run(op, np.ones((1, 2), np.float32), kernel="triton")


def test_lowered_for_tpu_without_float64(op: str) -> None:
    jax = pytest.importorskip("jax")
    function = getattr(pytest.importorskip("normkit.jax"), op)

    def lowered(kernel: str) -> str:
        call = jax.jit(lambda x: function(x, kernel=kernel))
        traced = call.trace(jax.ShapeDtypeStruct((4, 129), jax.numpy.float32))
        text: str = traced.lower(lowering_platforms=("tpu",)).as_text()
        return text

    assert "f64" not in lowered("pairs")
    assert "f64" in lowered("array_api")


def test_callers_at_the_same_time(op: str) -> None:
    """The zero that guards a product belongs to one trace: nothing is shared between threads."""
    jax = pytest.importorskip("jax")
    function = getattr(pytest.importorskip("normkit.jax"), op)
    widths = [5, 6] * 3

    def call(width: int) -> Any:
        x = jax.numpy.asarray(_row(width, "float32")[0])
        return np.asarray(jax.jit(lambda x: function(x, kernel="pairs"))(x))

    with ThreadPoolExecutor(len(widths)) as pool:
        for width, y in zip(widths, pool.map(call, widths), strict=True):
            x = _row(width, "float32")[0]
            assert_same_bits(y, getattr(normkit.numpy, op)(x, kernel="pairs"))


@pytest.mark.parametrize(
    ("scale", "eps"),
    [(3e38, 1e-6), (1e-38, 1e-6), (1.0, 1e-300), (1.0, 1e-80), (1.0, 1e40), (1.0, 1e300)],
    ids=str,
)
def test_what_leaves_the_range_on_the_way(op: str, scale: float, eps: float) -> None:
    """A scale near the ends of float32, and an eps far outside of it."""
    x = _row(33, "float32")[0] / 64
    weight = np.full(33, scale, np.float32)
    exact = EXACT[op](x, weight, eps=eps)
    y = getattr(normkit.numpy, op)(x, weight, eps=eps, kernel="pairs")
    assert_ulp(y, exact, floor=contract_floor(x, exact, weight, pairs=True))
