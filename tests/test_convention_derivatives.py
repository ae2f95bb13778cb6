"""Gradients of a convention are those of its formula without roundings, to any order."""

from dataclasses import replace
from typing import Any

import normkit.numpy as nk
import numpy as np
import pytest
from backends import Subject, subjects

from normkit import Convention
from normkit.conventions import PRESETS

_ALL = {
    f"{kind}-{name}": preset.convention
    for kind in ("rms_norm", "layer_norm")
    for name, preset in PRESETS[kind].items()
}
_BY_LABEL = {s.label: s for s in subjects()[0]}
# One of every way to take the statistics, to place eps and to order the products.
_SOME = {
    "gemma": _ALL["rms_norm-gemma"],
    "haiku": _ALL["rms_norm-haiku"],
    "input_scaled": _ALL["rms_norm-input_scaled"],
    "paper": _ALL["rms_norm-paper"],
    "l2max": _ALL["rms_norm-l2max"],
    "flax": _ALL["layer_norm-flax"],
    "vitdet": _ALL["layer_norm-vitdet"],
    "keras": _ALL["layer_norm-keras"],
    "groups": replace(_ALL["rms_norm-llama"], groups=3),
    "partial": replace(_ALL["rms_norm-llama"], partial=0.5),
}


def _smooth(c: Convention) -> Convention:
    """Without casts, and with statistics in the dtype of x: float64 rounds next to nothing."""
    return replace(
        c,
        input=None,
        statistics="x",
        between=None,
        scale=None,
        bias=None,
        output=None,
        offset_added="after_cast",
    )


def _eps(c: Convention) -> float:
    return 1e-3 if c.eps_place == "floor" else 0.3


def _parts(c: Convention) -> list[Convention]:
    partial = [replace(c, partial=0.5)] if c.kind == "rms_norm" else []
    return [c, replace(c, groups=3), *partial]


@pytest.mark.parametrize("label", _ALL)
def test_gradients_are_those_of_differences(label: str) -> None:
    """Central differences of the float64 forward, whose error is about h^2 + 2^-52 / h."""
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 2, 6))
    scale, bias = rng.standard_normal((2, 6))
    arrays, h = [x, scale, bias], 1e-5
    for c in _parts(_smooth(_ALL[label])):
        forward, vjp = getattr(nk, c.kind), getattr(nk, f"{c.kind}_vjp")
        options: dict[str, Any] = {"eps": _eps(c), "convention": c}
        for k, gradient in enumerate(vjp(dy, *arrays, **options)):
            for i in np.ndindex(gradient.shape):
                values = []
                for step in (h, -h):
                    moved = [a.copy() for a in arrays]
                    moved[k][i] += step
                    values.append((dy * forward(*moved, **options)).sum())
                slope = (values[0] - values[1]) / (2 * h)
                # curvature of these rows is below 1e3: h^2 1e3 = 1e-7
                assert abs(slope - gradient[i]) < 1e-7, (c, k, i)


@pytest.mark.parametrize("name", _SOME)
@pytest.mark.parametrize("backend", ["jax:cpu", "core-jax:cpu", "torch:compile"], indirect=False)
def test_gradients_of_other_backends(backend: str, name: str) -> None:
    """By their own differentiation, on the rounded formula with bfloat16 x and float32 scale."""
    if backend not in _BY_LABEL:
        pytest.skip(f"{backend} is not here")
    c, subject = _SOME[name], _BY_LABEL[backend]
    if backend == "core-jax:cpu" and name not in ("gemma", "flax", "groups"):
        pytest.skip("compiled anew for each, by the same rules")
    _compare_gradients(subject, c, 24)


@pytest.mark.parametrize("name", ["paper", "flax"])
def test_forward_mode_of_jax(name: str) -> None:
    """The derivative by scale is h, without a rounding: not even that of eps, which 0.3 would show.

    Of one row and dy = 1 dscale is h too. Both are rounded to float32 once.
    """
    jax, functions = pytest.importorskip("jax"), pytest.importorskip("normkit.jax")
    import ml_dtypes

    c, rng = _SOME[name], np.random.default_rng(5)
    x = rng.standard_normal((1, 24)).astype(ml_dtypes.bfloat16)
    scale, options = np.ones(24, np.float32), {"convention": c, "eps": 0.3}

    def of_scale(scale: Any) -> Any:
        return getattr(functions, c.kind)(jax.numpy.asarray(x), scale, **options)

    y, h = jax.jvp(of_scale, (jax.numpy.asarray(scale),), (jax.numpy.asarray(scale),))
    assert y.dtype == np.float32
    dscale = getattr(nk, f"{c.kind}_vjp")(np.ones(y.shape, np.float32), x, scale, **options)[1]
    np.testing.assert_allclose(np.asarray(h)[0], dscale, rtol=2.0**-23)


def _compare_gradients(subject: Subject, c: Convention, n: int) -> None:
    import ml_dtypes

    rng = np.random.default_rng(4)
    x = rng.standard_normal((8, n)).astype(ml_dtypes.bfloat16)
    scale, bias = rng.standard_normal((2, n)).astype(np.float32)
    y = getattr(nk, c.kind)(x, scale, bias, convention=c)
    dy = rng.standard_normal(y.shape).astype(y.dtype)
    found = subject.gradients(c.kind, dy, x, scale, bias, convention=c)
    expected = getattr(nk, f"{c.kind}_vjp")(dy, x, scale, bias, convention=c)
    core = subject.label.startswith("core")
    for ours, theirs, dtype in zip(
        found, expected, ("bfloat16", "float32", "float32"), strict=True
    ):
        assert ours.dtype.name == dtype
        # Smooth derivatives are exact to float64, then rounded once: half an ULP of the largest
        # element apart. The core's own function follows the rounded values: one rounding of each
        # of the three products in bfloat16.
        ulp = 2.0**-8 if dtype == "bfloat16" or core else 2.0**-24
        largest = np.abs(theirs.astype(np.float64)).max()
        assert np.abs(ours.astype(np.float64) - theirs).max() <= (8 if core else 1) * ulp * largest


@pytest.mark.parametrize("name", _SOME)
def test_transforms_of_torch_give_the_gradient_of_the_operator(name: str) -> None:
    """torch.func works on ordinary operations: bfloat16 would be rounded at each of them."""
    torch = pytest.importorskip("torch")
    import normkit.torch

    c = _SOME[name]
    function = getattr(normkit.torch, c.kind)
    torch.manual_seed(0)
    x, scale = torch.randn(4, 24).bfloat16(), torch.randn(24).bfloat16()
    dy = torch.randn(4, 24, dtype=torch.float64)

    def loss(x: Any, scale: Any) -> Any:
        return (function(x, scale, convention=c).double() * dy).sum()

    in_x, in_scale = torch.func.grad(loss, (0, 1))(x, scale)
    a, b = x.clone().requires_grad_(), scale.clone().requires_grad_()
    loss(a, b).backward()
    torch.testing.assert_close(in_x, a.grad, rtol=2.0**-7, atol=2.0**-8 * float(in_x.abs().max()))
    torch.testing.assert_close(in_scale, b.grad, rtol=2.0**-7, atol=2.0**-8)
    value = torch.func.vmap(lambda row: function(row, scale, convention=c))(x)
    assert torch.equal(value, function(x, scale, convention=c))
    tangent = torch.randn(4, 24).bfloat16()
    y, dot = torch.func.jvp(lambda x: function(x, scale, convention=c), (x,), (tangent,))
    assert torch.equal(y, value)
    # <dy, J t> = <J^T dy, t>, J t and J^T dy each rounded to bfloat16
    left, right = (dot.double() * dy).sum(), (in_x.double() * tangent.double()).sum()
    size = (dot.double() * dy).abs().sum() + (in_x.double() * tangent.double()).abs().sum()
    assert abs(left - right) <= 2.0**-8 * size


@pytest.mark.parametrize("name", ["gemma", "paper", "input_scaled", "flax", "groups", "partial"])
def test_second_derivatives_in_torch(name: str) -> None:
    """gradgradcheck of the smooth formula: PyTorch's own differences of the first derivative."""
    torch = pytest.importorskip("torch")
    import normkit.torch

    c = _smooth(_SOME[name])
    function = getattr(normkit.torch, c.kind)
    torch.manual_seed(0)
    arguments = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 6), (6,))]
    assert torch.autograd.gradgradcheck(
        lambda x, scale: function(x, scale, eps=_eps(c), convention=c), arguments
    )


@pytest.mark.parametrize("name", ["gemma", "paper", "flax", "partial"])
def test_second_derivatives_in_jax_are_those_in_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    import normkit.jax
    import normkit.torch

    c = _SOME[name]
    rng = np.random.default_rng(5)
    x, scale, t = (rng.standard_normal(s).astype(np.float32) for s in ((2, 6), (6,), (2, 6)))
    in_jax = getattr(normkit.jax, c.kind)

    def loss(x: Any) -> Any:
        return (in_jax(x, jax.numpy.asarray(scale), eps=_eps(c), convention=c) ** 3).sum()

    product = jax.jvp(jax.grad(loss), (x,), (t,))[1]
    a = torch.tensor(x, requires_grad=True)
    y = getattr(normkit.torch, c.kind)(a, torch.tensor(scale), eps=_eps(c), convention=c)
    (first,) = torch.autograd.grad((y**3).sum(), a, create_graph=True)
    (expected,) = torch.autograd.grad((first * torch.tensor(t)).sum(), a)
    # float32 roundings of y^3 and its derivatives, some tens of operations
    np.testing.assert_allclose(
        product, expected, rtol=2.0**-16, atol=2.0**-16 * np.abs(product).max()
    )


@pytest.mark.parametrize("label", ["torch:cpu", "jax:cpu"])
@pytest.mark.parametrize("name", ["paper", "l2max", "flax", "gemma", "haiku"])
def test_a_row_of_zeros_has_a_finite_gradient(label: str, name: str) -> None:
    """Padding: eps is positive, so the norm of 0 is 0 and its slope scale / sqrt(eps)."""
    if label not in _BY_LABEL:
        pytest.skip(f"{label} is not here")
    c = _SOME[name]
    x, scale = np.zeros((2, 8), np.float32), np.full(8, 0.5, np.float32)
    dx, dscale, _ = _BY_LABEL[label].gradients(
        c.kind, np.ones_like(x), x, scale, None, eps=1e-2, convention=c
    )
    assert np.isfinite(dx).all()
    assert (dscale == 0).all()
    if c.kind == "rms_norm":
        slope = {"paper": 1e2, "l2max": np.sqrt(8) * 1e2}.get(name, 10.0)
        np.testing.assert_allclose(dx, slope * (0.5 + c.offset), rtol=2.0**-20)
