"""The same bits again: over repeats, batches, threads, and callers at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from backends import Subject

from normkit.testing import assert_same_bits, dtype_of


def _data(dtype: str, shape: tuple[int, int]) -> Any:
    random = np.random.default_rng(60)
    x, dy = random.standard_normal((2, *shape)).astype(dtype_of(dtype))
    scale, bias = random.standard_normal((2, shape[1])).astype(dtype_of(dtype))
    return dy, x, scale, bias


def test_repeats_give_the_same_bits(backend: Subject, op: str, dtype: str) -> None:
    dy, x, scale, bias = _data(dtype, (17, 130))
    first = [backend.run(op, x, scale, bias), *backend.gradients(op, dy, x, scale, bias)]
    for _ in range(3):
        again = [backend.run(op, x, scale, bias), *backend.gradients(op, dy, x, scale, bias)]
        for a, b in zip(first, again, strict=True):
            assert_same_bits(a, b)


@pytest.mark.parametrize("batch", [1, 2, 3, 16, 64])
def test_batch_size_does_not_matter(backend: Subject, op: str, bits_dtype: str, batch: int) -> None:
    _, x, scale, bias = _data(bits_dtype, (64, 130))
    whole = backend.run(op, x, scale, bias)
    assert_same_bits(backend.run(op, x[:batch], scale, bias), whole[:batch])


@pytest.mark.parametrize("shape", [(20000, 64), (1, 100_001), (300, 1000)], ids=str)
def test_torch_threads_do_not_matter(op: str, bits_dtype: str, shape: tuple[int, int]) -> None:
    """Forward, dx, dscale and dbias; torch's own layer_norm fails this for the last two."""
    torch = pytest.importorskip("torch")
    function = getattr(pytest.importorskip("normkit.torch"), op)
    dy, *inputs = (
        torch.from_numpy(a.astype(np.float32)).to(getattr(torch, bits_dtype))
        for a in _data("float32", shape)
    )
    for a in inputs:
        a.requires_grad_()
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = function(*inputs)
            results.append([y, *torch.autograd.grad(y, inputs, dy)])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


def test_sixteen_threads_at_once(backend: Subject, op: str) -> None:
    """Each with its own rows; nothing is shared, and JAX's float64 scope is each thread's own."""
    if backend.label == "torch:compile":
        pytest.skip("torch's compiler is not made for first calls from several threads")
    _, x, scale, bias = _data("float32", (16, 130))
    expected = [backend.run(op, row[None], scale, bias) for row in x]
    start = threading.Barrier(16)

    def call(i: int) -> None:
        start.wait()
        for _ in range(5):
            assert_same_bits(backend.run(op, x[i : i + 1], scale, bias), expected[i])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(16)))


def test_eager_and_traced_gradients_have_the_same_bits(op: str, bits_dtype: str) -> None:
    jax = pytest.importorskip("jax")
    function = getattr(pytest.importorskip("normkit.jax"), op)
    dy, *inputs = (jax.numpy.asarray(a) for a in _data(bits_dtype, (33, 130)))

    def gradients(dy: Any, *inputs: Any) -> Any:
        return jax.vjp(function, *inputs)[1](dy)

    for a, b in zip(gradients(dy, *inputs), jax.jit(gradients)(dy, *inputs), strict=True):
        assert_same_bits(np.asarray(a), np.asarray(b))
