"""Axes, shapes, layouts and empty input, on every backend."""

import itertools
from typing import Any

import normkit.numpy
import numpy as np
import pytest
from backends import Subject
from oracles import EXACT

from normkit.testing import SHAPES, assert_same_bits, assert_ulp, contract_floor

_SIZES = (2, 3, 4, 5)
_AXES = [
    *range(-4, 4),
    *itertools.permutations((1, 2), 2),
    (-3, -2),
    (-1, 0),
    (3, 0, 1),
    (0, 1, 2, 3),
]


@pytest.mark.parametrize("axis", _AXES, ids=str)
def test_any_axes_in_any_order(backend: Subject, op: str, axis: Any) -> None:
    """scale and bias lie along the normalised axes in ascending order, however axis is written."""
    random = np.random.default_rng(3)
    x = random.standard_normal(_SIZES).astype(np.float32)
    axes = tuple(sorted({a % 4 for a in (axis if isinstance(axis, tuple) else (axis,))}))
    sizes = tuple(_SIZES[a] for a in axes)
    scale, bias = random.standard_normal((2, *sizes)).astype(np.float32)
    exact = EXACT[op](x, scale, bias, axis=axis)
    y = backend.run(op, x, scale, bias, axis=axis)
    assert_ulp(y, exact, floor=contract_floor(x, exact, scale, bias, axis))
    # written out by hand: move the axes to the end, make rows, norm, and move back
    moved = np.moveaxis(x, axes, range(-len(axes), 0))
    rows = moved.reshape(*moved.shape[: -len(axes)], -1)
    flat = getattr(normkit.numpy, op)(rows, scale.ravel(), bias.ravel()).reshape(moved.shape)
    expected = np.moveaxis(flat, range(-len(axes), 0), axes)
    if backend.exact_bits:
        assert_same_bits(y, np.ascontiguousarray(expected))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4)], ids=str)
def test_empty_batch_gives_an_empty_result(
    backend: Subject, op: str, shape: tuple[int, ...]
) -> None:
    x, scale = np.empty(shape, np.float32), np.ones(4, np.float32)
    y = backend.run(op, x, scale, scale)
    assert y.shape == shape
    assert y.dtype == np.float32
    dx, dscale, dbias = backend.gradients(op, x, x, scale, scale)
    assert dx.shape == shape
    assert dscale.tolist() == dbias.tolist() == [0, 0, 0, 0]


def test_one_row_without_a_batch(backend: Subject, op: str) -> None:
    x = np.float32([1, 2, 3, 4])
    assert_same_bits(backend.run(op, x), backend.run(op, x[None])[0])


def test_size_one_axis(backend: Subject, op: str) -> None:
    """LayerNorm of one element is exactly bias, RMSNorm at eps 0 its sign: both have no slope."""
    x = np.float32([[3.0], [-1e20], [1e-30]])
    two = np.float32([2.0])
    y = backend.run(op, x, two, two, eps=0.0)
    expected = [[2], [2], [2]] if op == "layer_norm" else [[4], [0], [4]]
    assert_same_bits(y, np.float32(expected))
    dx, _, _ = backend.gradients(op, np.ones_like(x), x, two, two, eps=0.0)
    # RMSNorm's is 2 r (1 - h^2), where h = 1 up to the rounding of a few float64 operations
    bound = 0 if op == "layer_norm" else 2 / np.abs(x) * 2.0**-50
    assert np.all(np.abs(dx) <= bound)


def test_constant_rows_give_exactly_bias(backend: Subject, op: str) -> None:
    """Also at eps 0 and where the mean of n equal numbers is not exact by division with 1 / n."""
    if op == "rms_norm":
        pytest.skip("a constant row is an ordinary one to RMSNorm")
    # 49 (1 / 49) is less than 1 in float64, as XLA divides
    for width, eps in itertools.product((3, 7, 10, 49, 129, 1000), (0.0, 1e-12)):
        values = np.float32([1.0, 1.1, -777.7, 3e-39, 1e-45, 2.7e38])[:, None]
        x = np.repeat(values, width, axis=1)
        bias = np.linspace(-1, 1, width, dtype=np.float32)
        assert_same_bits(
            backend.run(op, x, None, bias, eps=eps), np.broadcast_to(bias, x.shape).copy()
        )
        dx, _, _ = backend.gradients(op, np.ones_like(x), x, None, bias, eps=eps)
        assert np.all(np.isfinite(dx))


def test_zero_rows(backend: Subject, op: str, dtype: str) -> None:
    """A zero row gives bias, and finite gradients, also at eps 0."""
    from normkit.testing import dtype_of

    x = np.zeros((2, 5), dtype_of(dtype))
    bias = np.arange(5).astype(dtype_of(dtype))
    for eps in (0.0, 1e-6):
        assert_same_bits(
            backend.run(op, x, None, bias, eps=eps), np.broadcast_to(bias, x.shape).copy()
        )
        gradients = backend.gradients(op, np.ones_like(x), x, bias, bias, eps=eps)
        assert all(np.all(np.isfinite(g)) for g in gradients)


def test_rows_do_not_touch_each_other(backend: Subject, op: str) -> None:
    """NaN and infinity stay in their row, and a row's bits do not depend on its company."""
    random = np.random.default_rng(4)
    x = random.standard_normal((6, 33)).astype(np.float32)
    alone = np.concatenate([backend.run(op, x[i : i + 1]) for i in range(6)])
    x[1, 3], x[4, 5] = np.nan, np.inf
    y = backend.run(op, x)
    kept = [0, 2, 3, 5]
    assert_same_bits(y[kept], alone[kept])
    assert np.isnan(y[1]).all()
    if op == "layer_norm":
        assert np.isnan(y[4]).all()
    else:  # x / inf = 0, and inf / inf
        assert np.isnan(y[4, 5])
        assert np.all(np.delete(y[4], 5) == 0)


def test_input_is_not_changed(backend: Subject, op: str, dtype: str) -> None:
    from normkit.testing import dtype_of

    x = np.random.default_rng(0).standard_normal((3, 7)).astype(dtype_of(dtype))
    scale = np.linspace(1, 2, 7).astype(x.dtype)
    kept = [x.copy(), scale.copy()]
    dy = x[::-1].copy()
    result = backend.run(op, x, scale)
    gradients = backend.gradients(op, dy, x, scale, None)
    assert not any(np.shares_memory(a, x) for a in (result, gradients[0]))
    assert_same_bits(x, kept[0])
    assert_same_bits(scale, kept[1])
    assert_same_bits(dy, kept[0][::-1])


def test_gradient_of_one_row_is_not_the_callers_dy(backend: Subject, op: str) -> None:
    """dbias of a single float64 row equals dy, but must not be dy."""
    if backend.backend.framework in ("jax", "flax"):
        # JAX may hold a NumPy array in place, where its address allows
        pytest.skip("JAX's arrays cannot be written to: it may give one back, and does")
    dy, x, bias = np.float64([[1, 2], [3, 5], [0, 0]])
    gradients = backend.gradients(op, dy, x, None, bias)
    assert gradients[1] is None
    assert_same_bits(gradients[2], dy)
    assert not np.shares_memory(gradients[2], dy)


@pytest.mark.parametrize("layout", ["transposed", "strided", "reversed", "offset", "fortran"])
def test_layout_does_not_matter(backend: Subject, op: str, dtype: str, layout: str) -> None:
    """The adapters get a view of the same values; here NumPy's strides are the backend's too."""
    from normkit.testing import dtype_of

    random = np.random.default_rng(9)
    base = random.standard_normal((64, 130)).astype(dtype_of(dtype))
    x = {
        "transposed": base[:, :64].T,
        "strided": base[::2, ::2],
        "reversed": base[::-1, ::-1],
        "offset": base[1:, 1:],
        "fortran": np.asfortranarray(base),
    }[layout]
    expected = getattr(normkit.numpy, op)(np.ascontiguousarray(x))
    if backend.label in ("numpy:cpu", "numpy:array_api"):
        function = getattr(backend.backend.functions, op)
        assert_same_bits(function(x), function(np.ascontiguousarray(x)))
    y = backend.run(op, x)
    if backend.exact_bits and dtype != "float64":
        assert_same_bits(np.ascontiguousarray(y), expected)
    else:
        exact = EXACT[op](x)
        assert_ulp(y, exact, floor=contract_floor(x, exact))


def test_residual_sum_and_norm(backend: Subject, op: str, dtype: str) -> None:
    """The sum is rounded once, and y is the norm of that sum, bit for bit."""
    if f"add_{op}" not in backend.ops:
        pytest.skip("Flax layers have no residual")
    from normkit.testing import dtype_of

    random = np.random.default_rng(10)
    x, residual = (random.standard_normal((2, 4, 65)) * 3).astype(dtype_of(dtype))
    x[0, :3] = residual[0, :3] = np.finfo(np.float32).tiny / 4 if dtype != "float16" else 2**-24
    scale = np.linspace(1, 2, 65).astype(x.dtype)
    y, total = backend.run(f"add_{op}", x, residual, scale, scale)
    # NumPy adds float16, float32 and float64 as IEEE 754 does, and ml_dtypes by way of float32
    assert_same_bits(total, x + residual)
    assert_same_bits(y, backend.run(op, total, scale, scale))


@pytest.mark.parametrize("shape", [s for s in SHAPES.values() if s[0] * s[1] < 300_000], ids=str)
def test_named_shapes(backend: Subject, op: str, shape: tuple[int, int]) -> None:
    if not backend.exact_bits:
        pytest.skip("equal bits are promised on the CPU")
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    assert_same_bits(backend.run(op, x), getattr(normkit.numpy, op)(x))
