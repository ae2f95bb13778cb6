"""Derivatives of any order and mode, against the plain formula in float64."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends import Subject
from oracles import EXACT, EXACT_VJP

from normkit.testing import assert_same_bits, assert_ulp, dtype_of, worked_example

_EPS = 0.25
# (scale given, bias given)
_AFFINE = [(True, True), (True, False), (False, True), (False, False)]


def _inputs(scale: bool, bias: bool, shape: tuple[int, ...] = (3, 5)) -> list[Any]:
    random = np.random.default_rng(12)
    x, w, b = random.standard_normal(shape), *random.standard_normal((2, shape[-1]))
    return [x, w if scale else None, b if bias else None]


def test_gradients_of_the_worked_example_against_finite_differences(
    backend: Subject, op: str
) -> None:
    """Central differences of the exact oracle at step 2^-17.

    Their truncation error is step^2 / 6 times the third derivative, below 2^-34 times 60 here,
    and float64 rounding of the differences adds 2^-53 / step = 2^-36.
    """
    case = worked_example("float64")[op]
    x, scale, bias = case.x[:2], np.float64([1, 2, -1, 0.5]), np.float64([0.5, 0, 1, -2])
    dy = np.float64([[1, -2, 0.5, 1], [0.25, 1, -1, 2]])
    step = 2.0**-17
    inputs = [x, scale, bias]
    gradients = backend.gradients(op, dy, x, scale, bias, eps=0.0)
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            losses = []
            for sign in (1, -1):
                moved = [a.copy() for a in inputs]
                moved[which][index] += sign * step
                losses.append((EXACT[op](*moved, eps=0.0).values * dy).sum())
            slope = (losses[0] - losses[1]) / (2 * step)
            assert abs(gradient[index] - slope) < 60 * 2.0**-34


@pytest.mark.parametrize(("scale", "bias"), _AFFINE)
def test_first_derivative_equals_the_oracle(
    backend: Subject, op: str, scale: bool, bias: bool
) -> None:
    x, w, b = _inputs(scale, bias)
    dy = np.random.default_rng(13).standard_normal(x.shape)
    found = backend.gradients(op, dy, x, w, b, eps=_EPS)
    expected = EXACT_VJP[op](dy, x, w, b, eps=_EPS)
    for actual, wanted in zip(found, expected, strict=True):
        if wanted is None:
            assert actual is None
        else:  # float64 sums of 5 numbers near 1: a few roundings of 2^-53 of sums below 16
            assert_ulp(actual, wanted, 1, floor=2.0**-47)


def test_vjp_function_has_the_bits_of_autograd(backend: Subject, op: str, dtype: str) -> None:
    """Where the bits are promised, the core's vjp and the host's differentiation agree."""
    if backend.vjp is None or f"add_{op}" not in backend.ops:
        pytest.skip("the gradients here are the vjp function's own")
    random = np.random.default_rng(14)
    dy, x = random.standard_normal((2, 16, 64)).astype(dtype_of(dtype))
    w, b = random.standard_normal((2, 64)).astype(dtype_of(dtype))
    found = backend.gradients(op, dy, x, w, b)
    direct = backend.run(f"{op}_vjp", dy, x, w, b)
    exact = EXACT_VJP[op](dy, x, w, b)
    for actual, other, wanted in zip(found, direct, exact, strict=True):
        # float64 in different orders, so that near a rounding tie they may part: 2^-42 of sums
        # below 2^7 (dbias of 16 rows); in float64 itself 2^-44 of them
        floor = 2.0**-35 if dtype != "float64" else 2.0**-40
        assert_ulp(actual, wanted, floor=floor)
        assert_ulp(other, wanted, floor=floor)


def test_half_gradients_are_rounded_by_way_of_float32(backend: Subject, op: str) -> None:
    """1 + 2^-11 + 2^-40 is above a tie of float16, and in float32 on it: the even side is 1.

    NumPy could round it directly, PyTorch and XLA cannot, so this is the rule for all.
    """
    if "float16" not in backend.dtypes or f"add_{op}" not in backend.ops:
        pytest.skip("needs float16 and the vjp function")
    x = np.float16([[1, 2]])
    dy = np.array([[1 + 2.0**-11 + 2.0**-40, 0]])
    _, _, dbias = backend.run(f"{op}_vjp", dy, x, None, x[0])
    assert dbias.tolist() == [1, 0]


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_gradients_of_huge_and_tiny_float64_rows(backend: Subject, op: str, size: float) -> None:
    """dx is 1 / size of what it is at size 1: at eps 0 both norms ignore the size of a row."""
    x, scale, _ = _inputs(True, False)
    dy = np.random.default_rng(18).standard_normal(x.shape)
    found = backend.gradients(op, dy, x * size, scale, None, eps=0.0)
    ordinary = EXACT_VJP[op](dy, x, scale, eps=0.0)
    # x size is rounded, at 2^-53 of the row's largest element, and dx follows it
    largest = np.abs(ordinary[0].values).max()
    assert np.abs(found[0] * size - ordinary[0].values).max() <= 2.0**-46 * largest
    assert np.abs(found[1] - ordinary[1].values).max() <= 2.0**-46 * np.abs(dy).sum()


def test_gradients_are_the_same_for_strided_and_expanded_dy() -> None:
    """What ``y.sum().backward()`` sends is an expanded scalar."""
    torch = pytest.importorskip("torch")
    layers = pytest.importorskip("normkit.torch")
    for name in ("rms_norm", "layer_norm"):
        function = getattr(layers, name)
        x = torch.linspace(-1, 3, 24).reshape(4, 6).requires_grad_()
        w = torch.linspace(1, 2, 6).requires_grad_()
        dense = torch.autograd.grad(function(x, w), (x, w), torch.ones(4, 6))
        expanded = torch.autograd.grad(function(x, w).sum(), (x, w))
        strided = torch.autograd.grad(function(x, w), (x, w), torch.ones(6, 4).T)
        for a, b, c in zip(dense, expanded, strided, strict=True):
            assert_same_bits(a.numpy(), b.numpy())
            assert_same_bits(a.numpy(), c.numpy())


# The plain formulas, in the two frameworks' own operations.


def _plain_torch(op: str) -> Callable[..., Any]:
    def formula(x: Any, w: Any, b: Any) -> Any:
        d = x - x.mean(-1, keepdim=True) if op == "layer_norm" else x
        y = d / ((d * d).mean(-1, keepdim=True) + _EPS).sqrt()
        y = y if w is None else y * w
        return y if b is None else y + b

    return formula


def _plain_jax(op: str) -> Callable[..., Any]:
    import jax.numpy as jnp

    def formula(x: Any, w: Any, b: Any) -> Any:
        d = x - x.mean(-1, keepdims=True) if op == "layer_norm" else x
        y = d / jnp.sqrt((d * d).mean(-1, keepdims=True) + _EPS)
        y = y if w is None else y * w
        return y if b is None else y + b

    return formula


@pytest.mark.parametrize(("scale", "bias"), _AFFINE)
def test_torch_gradcheck(op: str, scale: bool, bias: bool) -> None:
    torch = pytest.importorskip("torch")
    function = getattr(pytest.importorskip("normkit.torch"), op)
    inputs = [
        None if a is None else torch.from_numpy(a).requires_grad_() for a in _inputs(scale, bias)
    ]

    def run(x: Any, w: Any, b: Any) -> Any:
        return function(x, w, b, eps=_EPS)

    assert torch.autograd.gradcheck(
        run, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(
        run, inputs, check_fwd_over_rev=True, check_rev_over_rev=True
    )


def _close(actual: Any, expected: Any) -> None:
    """Equal in float64 up to the rounding of some hundred operations on the largest element."""
    a, b = np.asarray(actual), np.asarray(expected)
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= 2.0**-44 * np.abs(b).max()


def test_torch_higher_derivatives(op: str) -> None:
    """jvp of jvp, third-order reverse, forward over reverse, vmap of gradients: as the formula."""
    torch = pytest.importorskip("torch")
    function = getattr(pytest.importorskip("normkit.torch"), op)
    x, w, b = (torch.from_numpy(a) for a in _inputs(True, True))
    v = torch.from_numpy(np.random.default_rng(15).standard_normal((3, 5)))
    plain = _plain_torch(op)

    def ours(x: Any, w: Any, b: Any) -> Any:
        return function(x, w, b, eps=_EPS)

    def jvp_of_jvp(f: Any) -> Any:
        def slope(x: Any) -> Any:
            return torch.func.jvp(lambda x: f(x, w, b), (x,), (v,))[1]

        return torch.func.jvp(slope, (x,), (v.flip(0),))[1]

    def third(f: Any) -> Any:
        point = x.clone().requires_grad_()
        (g,) = torch.autograd.grad((f(point, w, b) ** 3).sum(), point, create_graph=True)
        (g,) = torch.autograd.grad((g**2).sum(), point, create_graph=True)
        return torch.autograd.grad((g * v).sum(), point)[0]

    def hessian_in_scale(f: Any) -> Any:
        return torch.func.hessian(lambda w: (f(x, w, b) ** 3).sum())(w)

    def per_sample(f: Any) -> Any:
        grad = torch.func.grad(lambda w, x: (f(x, w, b) ** 3).sum())
        return torch.func.vmap(grad, (None, 0))(w, x)

    for derivative in (jvp_of_jvp, third, hessian_in_scale, per_sample):
        _close(derivative(ours), derivative(plain))
    loop = [torch.func.grad(lambda w, x: (ours(x, w, b) ** 3).sum())(w, row) for row in x]
    _close(per_sample(ours), torch.stack(loop))


def test_torch_second_jvp_at_a_known_point() -> None:
    """f(t) = sum(layer_norm([t, 1]) * [3, -1]), eps 0.5: f(t) = 2 (t-1) / sqrt((t-1)^2 / 4 + 0.5).

    f'' = -3 (t-1) (s^2/4 + 1/2)^(-5/2) / 4 with s = t - 1, which is 1.682994 at t = 0.4. Peers
    that take the saved mean and variance for constants give 1.654940.
    """
    torch = pytest.importorskip("torch")
    layer_norm = pytest.importorskip("normkit.torch").layer_norm
    w = torch.tensor([3.0, -1.0], dtype=torch.float64)

    def f(t: Any) -> Any:
        return layer_norm(torch.stack([t, torch.ones_like(t)]), w, eps=0.5).sum()

    t, one = torch.tensor(0.4, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)

    def slope(t: Any) -> Any:
        return torch.func.jvp(f, (t,), (one,))[1]

    s = -0.6
    expected = -3 * s * (s**2 / 4 + 0.5) ** -2.5 / 4
    assert abs(expected - 1.682994) < 1e-6
    for second in (torch.func.jvp(slope, (t,), (one,))[1], torch.func.grad(torch.func.grad(f))(t)):
        assert abs(float(second) - expected) < 2.0**-48


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("x64", [False, True])
def test_jax_higher_derivatives(op: str, x64: bool, jit: bool) -> None:
    """The same in JAX, with float64 arrays under a flag that is off or on."""
    jax = pytest.importorskip("jax")
    function = getattr(pytest.importorskip("normkit.jax"), op)
    plain = _plain_jax(op)
    dtype = np.float64 if x64 else np.float32
    inputs = [a.astype(dtype) for a in _inputs(True, True)]
    direction = np.random.default_rng(15).standard_normal((3, 5)).astype(dtype)

    def ours(x: Any, w: Any, b: Any) -> Any:
        return function(x, w, b, eps=_EPS)

    def derivatives(f: Any, x: Any, w: Any, b: Any, v: Any) -> dict[str, Any]:
        def loss(x: Any, w: Any, b: Any) -> Any:
            return (f(x, w, b) ** 3).sum()

        def slope(x: Any) -> Any:
            return jax.jvp(lambda x: f(x, w, b), (x,), (v,))[1]

        first = jax.grad(loss)
        second = jax.grad(lambda x: (first(x, w, b) ** 2).sum())
        return {
            "jvp of jvp": jax.jvp(slope, (x,), (v[::-1],))[1],
            "third": jax.grad(lambda x: (second(x) * v).sum())(x),
            "hessian": jax.hessian(loss, 1)(x, w, b),
            "per sample": jax.vmap(jax.grad(loss, 1), (0, None, None))(x, w, b),
            "scan": jax.grad(
                lambda x: jax.lax.scan(lambda h, _: (f(h, w, b), None), x, None, 3)[0].sum()
            )(x),
            "remat": jax.grad(lambda x: (jax.checkpoint(f)(x, w, b) ** 3).sum())(x),
        }

    with jax.enable_x64(x64):
        x, w, b, v = (jax.numpy.asarray(a) for a in (*inputs, direction))
        run = functools.partial(derivatives, ours)
        found = (jax.jit(run) if jit else run)(x, w, b, v)
    with jax.enable_x64(True):
        wide = [jax.numpy.asarray(a.astype(np.float64)) for a in (*inputs, direction)]
        expected = {k: np.asarray(v) for k, v in derivatives(plain, *wide).items()}
    # each level of differentiation passes its cotangents through float32, at 2^-24 each
    share = 2.0**-44 if x64 else 2.0**-20
    for name, value in found.items():
        assert value.dtype == dtype, name
        error = np.abs(np.asarray(value, np.float64) - expected[name]).max()
        assert error <= share * np.abs(expected[name]).max(), name


def test_jax_vmap_of_gradients_equals_a_loop(op: str) -> None:
    jax = pytest.importorskip("jax")
    function = getattr(pytest.importorskip("normkit.jax"), op)
    with jax.enable_x64(True):
        x = jax.numpy.asarray(np.random.default_rng(16).standard_normal((5, 3, 4)))
        w = jax.numpy.asarray(np.random.default_rng(17).standard_normal((5, 4)))
        grad = jax.grad(lambda x, w: (function(x, w, eps=_EPS) ** 2).sum(), (0, 1))
        for in_axes, moved in ((0, x), (1, x.transpose(1, 0, 2))):
            mapped = jax.vmap(grad, (in_axes, 0))(moved, w)
            loop = [grad(row, weights) for row, weights in zip(x, w, strict=True)]
            for i in (0, 1):
                _close(mapped[i], np.stack([g[i] for g in loop]))
