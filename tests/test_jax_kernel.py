"""The kernel "numba" inside of XLA on the CPU: that it runs, its bits, and what JAX asks of it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import normkit.numpy
import numpy as np
import pytest

from normkit.testing import assert_same_bits, dtype_of

jax = pytest.importorskip("jax")
functions = pytest.importorskip("normkit.jax")
_REASON = __import__("normkit.jax._cpu", fromlist=["unavailable"]).unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


def _arrays(shape: tuple[int, ...], dtype: str) -> tuple[Any, ...]:
    """dy, x, scale and bias."""
    random = np.random.default_rng(80)
    arrays = *random.standard_normal((2, *shape)), *random.standard_normal((2, shape[-1]))
    return tuple(a.astype(dtype_of(dtype)) for a in arrays)


def _run(op: str, **options: Any) -> Any:
    function = getattr(functions, op)

    def run(dy: Any, *inputs: Any) -> Any:
        def of(*inputs: Any) -> Any:
            return function(*inputs, **options)

        return of(*inputs), jax.vjp(of, *inputs)[1](dy)

    return jax.jit(run)


def test_it_runs(op: str, bits_dtype: str) -> None:
    dy, *inputs = _arrays((6, 40), bits_dtype)
    text = _run(op).lower(dy, *inputs).compile().as_text()
    assert text.count(f'custom_call_target="normkit_forward_{op[:3]}') == 1
    assert text.count(f'custom_call_target="normkit_backward_{op[:3]}') == 1
    text = _run(op, kernel="array_api").lower(dy, *inputs).compile().as_text()
    assert "custom_call_target" not in text


@pytest.mark.parametrize(
    "shape", [(6, 40), (3, 5, 1000), (2, 7), (1, 1), (700, 768), (70000, 8)], ids=str
)
def test_bits_are_those_of_numpy(op: str, bits_dtype: str, shape: tuple[int, ...]) -> None:
    """Gradients in float64 sums of another order: one rounding in a thousand at most may differ."""
    dy, *inputs = _arrays(shape, bits_dtype)
    y, gradients = _run(op, kernel="numba")(dy, *inputs)
    assert_same_bits(np.asarray(y), getattr(normkit.numpy, op)(*inputs))
    wanted = getattr(normkit.numpy, f"{op}_vjp")(dy, *inputs)
    step = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}[bits_dtype]
    for a, b in zip(gradients, wanted, strict=True):
        assert a.dtype == b.dtype
        assert (np.asarray(a) == b).mean() > 0.999
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=step)


def test_subnormal_numbers_are_not_flushed(op: str) -> None:
    """XLA's threads flush them; the kernel must not, and XLA's own operations go on doing so."""
    x = np.float32([[1e-40, 3e-42, -2e-40, 5e-41]])
    tiny = jax.numpy.float32(1e-40)

    @jax.jit
    def run(x: Any, tiny: Any) -> Any:
        return tiny * 1, getattr(functions, op)(x, eps=0.0, kernel="numba"), tiny * 2

    before, y, after = run(x, tiny)
    assert_same_bits(np.asarray(y), getattr(normkit.numpy, op)(x, eps=0.0))
    assert before == after == 0


def test_parameters_of_other_dtypes_and_none(op: str) -> None:
    x = _arrays((4, 33), "bfloat16")[1]
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        with jax.enable_x64(True):
            scale, bias = _arrays((4, 33), dtype)[2:]
            for some in ((scale, bias), (scale,), (None, bias), ()):
                y = getattr(functions, op)(*map(_put, (x, *some)), kernel="numba")
                assert_same_bits(np.asarray(y), getattr(normkit.numpy, op)(x, *some))


def _put(array: Any) -> Any:
    return None if array is None else jax.numpy.asarray(array)


def test_exported_programs_do_not_need_it(op: str) -> None:
    _, *inputs = _arrays((6, 40), "float32")
    exported = jax.export.export(jax.jit(getattr(functions, op)))(*inputs)
    assert "normkit_forward" not in exported.mlir_module()
    assert_same_bits(np.asarray(exported.call(*inputs)), getattr(normkit.numpy, op)(*inputs))


@pytest.mark.parametrize("rows", [64, 640])
def test_threads_at_once(op: str, rows: int) -> None:
    """Small calls, and large ones whose parts wait in XLA's pool behind each other's."""
    dy, *inputs = _arrays((rows, 512), "float32")
    run = _run(op, kernel="numba")
    expected = jax.tree.leaves(run(dy, *inputs))

    def call(_: int) -> None:
        for _ in range(20):
            for a, b in zip(jax.tree.leaves(run(dy, *inputs)), expected, strict=True):
                assert_same_bits(np.asarray(a), np.asarray(b))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(16)))


def test_bits_do_not_depend_on_threads(op: str) -> None:
    """float64 shows in what order a sum was added; the first rows alone are too few to share out."""
    with jax.enable_x64(True):
        dy, *inputs = _arrays((1200, 256), "float64")
        y, (dx, dscale, dbias) = _run(op, kernel="numba")(dy, *inputs)
        few = [a[:200] for a in (dy, inputs[0])]
        y_few, (dx_few, *_) = _run(op, kernel="numba")(*few, *inputs[1:])
    assert_same_bits(np.asarray(y[:200]), np.asarray(y_few))
    assert_same_bits(np.asarray(dx[:200]), np.asarray(dx_few))
    wanted = getattr(normkit.numpy, f"{op}_vjp")(dy, *inputs, kernel="numba")
    for ours, theirs in zip((dx, dscale, dbias), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=2.0**-40, atol=2.0**-40)


def test_what_it_cannot_do_is_said(op: str) -> None:
    x = jax.numpy.ones((2, 3, 4))
    with pytest.raises(ValueError, match="numba: a row must lie along the last axes"):
        getattr(functions, op)(x, axis=1, kernel="numba")
