"""Gated RMSNorm: values, bits in every framework, derivatives, refusals (originals: test_parity)."""

import importlib
from dataclasses import replace
from typing import Any

import normkit.numpy as nk
import numpy as np
import pytest
from backends import Subject, subjects

import normkit
from normkit import Convention
from normkit.conventions import GATED_RMS_NORM, RMS_NORM
from normkit.testing import assert_same_bits, assert_ulp, dtype_of

_HERE = {s.label: s for s in subjects()[0] if not s.label.startswith("flax")}
_ALL = {
    **GATED_RMS_NORM,
    "before": replace(GATED_RMS_NORM["standard"], gate="before"),
    "groups": replace(GATED_RMS_NORM["gated_pre"], groups=3),
    "half": replace(GATED_RMS_NORM["gated_post"], input=None, statistics="x", output=None),
    "scale_input": Convention("gated_rms_norm", gate="before", order="scale_input", offset=1.0),
    "sum": replace(GATED_RMS_NORM["standard"], reduction="sum", partial=0.5),
}


def _arrays(x_dtype: str, scale_dtype: str, shape: tuple[int, int] = (12, 24)) -> list[Any]:
    """x, gate, scale, bias; the last gates are huge."""
    rng = np.random.default_rng(11)
    x, gate = rng.standard_normal((2, *shape))
    gate[-1] *= 1e3
    parameters = rng.standard_normal((2, shape[1]))
    return [
        *(a.astype(dtype_of(x_dtype)) for a in (x, gate)),
        *parameters.astype(dtype_of(scale_dtype)),
    ]


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", ["standard", "before"])
def test_standard_is_within_half_an_ulp(name: str, dtype: str) -> None:
    """Of the formula in long double, whose own error is 2^-10 of a float64 ULP."""
    x, gate, scale, bias = _arrays(dtype, dtype, (64, 48))
    y = nk.gated_rms_norm(x, gate, scale, bias, convention=_ALL[name])
    wide, g, s, b = (a.astype(np.longdouble) for a in (x, gate, scale, bias))
    with np.errstate(over="ignore"):
        a = g / (1 + np.exp(-g))
    z = wide * a if name == "before" else wide
    n = z / np.sqrt((z * z).mean(-1, keepdims=True) + np.longdouble(1e-6)) * s + b
    exact = n if name == "before" else n * a
    # where the bias cancels the norm, the float32 products of a half dtype, or float64's, show
    floor = {"float32": 2.0**-50, "float16": 2.0**-21, "bfloat16": 2.0**-21}[dtype]
    found = y.astype(np.longdouble)
    spacing = normkit.testing.ulp(np.abs(exact).astype(np.float64), dtype)
    size = np.abs(n * 1 if name == "before" else a) * 8 + 8
    assert (np.abs(found - exact) <= 0.501 * spacing + floor * size).all()


def test_worked_by_hand() -> None:
    """silu(0) = 0 with slope 1/2, sigmoid(0) = 1/2; the row (3, 4) has mean square 12.5."""
    x, gate = np.array([[3.0, 4.0]]), np.zeros((1, 2))
    norm = x / np.sqrt(12.5)
    assert (nk.gated_rms_norm(x, gate, eps=0.0) == 0).all()
    sigmoid = replace(_ALL["standard"], activation="sigmoid", eps=0.0)
    np.testing.assert_allclose(nk.gated_rms_norm(x, gate, convention=sigmoid), norm / 2)
    # multiplied before the norm, one gate for a whole row drops out
    before = replace(sigmoid, gate="before")
    np.testing.assert_allclose(nk.gated_rms_norm(x, gate + 3, convention=before), norm)


def test_a_closed_gate_before_the_norm_gives_a_finite_row() -> None:
    """silu(-1000) is 0 in float64: z is 0 along the row, and so is y, also at eps 0."""
    x, gate = np.ones((1, 4), np.float32), np.full((1, 4), -1000, np.float32)
    c = _ALL["before"]
    assert (nk.gated_rms_norm(x, gate, eps=0.0, convention=c) == 0).all()
    gradients = nk.gated_rms_norm_vjp(x, x, gate, eps=0.0, convention=c)
    assert all(np.isfinite(g).all() for g in gradients[:2])


# ---- bits --------------------------------------------------------------------------------------

_PAIRS = [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
# What compiles anew for each convention and pair sees some; it is the same up to the casts.
_SLOW = {
    "torch:compile": ("gated_pre",),
    "jax:jit-cpu": ("gated_post",),
    "core-jax:cpu": ("gated_post",),
    "core-dask:cpu": ("gated_post", "groups"),
}


@pytest.mark.parametrize("label", [k for k in _HERE if k != "numpy:cpu"])
def test_bits_are_those_of_numpy(label: str) -> None:
    subject = _HERE[label]
    for name in _SLOW.get(label, _ALL):
        _compare_bits(subject, _ALL[name])


def _compare_bits(subject: Subject, c: Convention) -> None:
    pairs = _PAIRS[:1] if subject.label.startswith("core") else _PAIRS
    for pair in pairs[-1:] if subject.label in (*_SLOW, "jax:cpu") else pairs:
        arrays = _arrays(*pair)
        y = subject.run("gated_rms_norm", *arrays, convention=c)
        expected = nk.gated_rms_norm(*arrays, convention=c)
        assert y.dtype == expected.dtype
        assert_same_bits(y, expected)


@pytest.mark.parametrize(
    ("label", "name"),
    [("torch:cpu", n) for n in _ALL] + [("jax:cpu", n) for n in ("gated_pre", "gated_sigmoid")],
)
def test_gradients_of_torch_and_jax_are_those_of_numpy(label: str, name: str) -> None:
    """In JAX to within half an ULP of the largest element: it differentiates by itself."""
    if label not in _HERE:
        pytest.skip(f"{label} is not here")
    c = _ALL[name]
    for pair in _PAIRS if label == "torch:cpu" else _PAIRS[-1:]:
        arrays = _arrays(*pair)
        y = nk.gated_rms_norm(*arrays, convention=c)
        dy = np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype)
        expected = nk.gated_rms_norm_vjp(dy, *arrays, convention=c)
        by_hand = _HERE[label].run("gated_rms_norm_vjp", dy, *arrays, convention=c)
        for ours, hand, theirs in zip(
            _gradients(_HERE[label], dy, arrays, c), by_hand, expected, strict=True
        ):
            assert_same_bits(hand, theirs)
            if label == "torch:cpu":
                assert_same_bits(ours, theirs)
            else:
                assert ours.dtype == theirs.dtype
                ulp = 2.0**-8 if theirs.dtype.name == "bfloat16" else 2.0**-23
                largest = np.abs(theirs.astype(np.float64)).max()
                assert np.abs(ours.astype(np.float64) - theirs).max() <= ulp * largest


def _gradients(subject: Subject, dy: Any, arrays: list[Any], c: Convention) -> Any:
    function, backend = subject.backend.functions.gated_rms_norm, subject.backend
    put = [backend.put(a) for a in (dy, *arrays)]
    if subject.label.startswith("jax"):
        import jax

        found = jax.vjp(lambda *inputs: function(*inputs, convention=c), *put[1:])[1](put[0])
    else:
        import torch

        inputs = [a.requires_grad_() for a in put[1:]]
        found = torch.autograd.grad(function(*inputs, convention=c), inputs, put[0])
    return [backend.get(g) for g in found]


# ---- derivatives -------------------------------------------------------------------------------


def _smooth(c: Convention) -> Convention:
    casts = dict.fromkeys(("input", "between", "scale", "bias", "output"))
    return replace(c, statistics="x", offset_added="after_cast", **casts)


@pytest.mark.parametrize("name", _ALL)
def test_gradients_are_those_of_differences(name: str) -> None:
    """Central differences of the float64 forward, whose error is about h^2 + 2^-52 / h."""
    c, h = _smooth(_ALL[name]), 1e-5
    arrays = _arrays("float64", "float64", (3, 6))
    arrays[1][-1] /= 1e3
    dy = np.random.default_rng(2).standard_normal((3, 6))
    options: dict[str, Any] = {"eps": 0.3, "convention": c}
    for k, gradient in enumerate(nk.gated_rms_norm_vjp(dy, *arrays, **options)):
        for i in np.ndindex(gradient.shape):
            values = []
            for step in (h, -h):
                moved = [a.copy() for a in arrays]
                moved[k][i] += step
                values.append((dy * nk.gated_rms_norm(*moved, **options)).sum())
            # curvature of these rows is below 1e3: h^2 1e3 = 1e-7
            assert abs((values[0] - values[1]) / (2 * h) - gradient[i]) < 1e-7, (k, i)


@pytest.mark.parametrize("name", ["gated_pre", "gated_sigmoid", "groups"])
def test_second_derivatives_in_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    import normkit.torch

    c = _smooth(_ALL[name])
    torch.manual_seed(0)
    sizes = ((2, 6), (2, 6), (6,))
    arguments = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in sizes]
    assert torch.autograd.gradgradcheck(
        lambda x, gate, weight: normkit.torch.gated_rms_norm(
            x, gate, weight, eps=0.3, convention=c
        ),
        arguments,
    )


def test_second_derivatives_in_jax_are_those_in_torch() -> None:
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    import normkit.jax
    import normkit.torch

    x, gate, _, _ = _arrays("float32", "float32", (2, 6))
    t = np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)

    def loss(gate: Any) -> Any:
        return (
            normkit.jax.gated_rms_norm(x_jax, gate, eps=0.3, convention="gated_post") ** 3
        ).sum()

    x_jax = jax.numpy.asarray(x)
    product = jax.jvp(jax.grad(loss), (jax.numpy.asarray(gate),), (jax.numpy.asarray(t),))[1]
    a = torch.tensor(gate, requires_grad=True)
    y = normkit.torch.gated_rms_norm(torch.tensor(x), a, eps=0.3, convention="gated_post")
    (first,) = torch.autograd.grad((y**3).sum(), a, create_graph=True)
    (expected,) = torch.autograd.grad((first * torch.tensor(t)).sum(), a)
    # float32 roundings of y^3 and its derivatives, some tens of operations
    largest = np.abs(product).max()
    np.testing.assert_allclose(product, expected, rtol=2.0**-16, atol=2.0**-16 * largest)


@pytest.mark.parametrize("name", ["gated_pre", "gated_post"])
def test_transforms_of_torch_give_the_bits_and_gradients_of_the_operator(name: str) -> None:
    torch = pytest.importorskip("torch")
    import normkit.torch

    torch.manual_seed(0)
    x, gate, weight = (torch.randn(s) for s in ((4, 12), (4, 12), (12,)))

    def norm(x: Any, gate: Any) -> Any:
        return normkit.torch.gated_rms_norm(x, gate, weight, convention=name)

    y = norm(x, gate)
    assert torch.equal(torch.func.vmap(norm)(x, gate), y)
    a, b = x.clone().requires_grad_(), gate.clone().requires_grad_()
    norm(a, b).square().sum().backward()
    found = torch.func.grad(lambda x, gate: norm(x, gate).square().sum(), (0, 1))(x, gate)
    for ours, theirs in zip(found, (a.grad, b.grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2.0**-20, atol=2.0**-20)
    assert torch.equal(torch.func.jvp(norm, (x, gate), (x, gate))[0], y)


@pytest.mark.parametrize("name", ["gated_pre", "gated_post"])
def test_operators_keep_their_promises(name: str) -> None:
    """opcheck: schema, fake tensors, autograd and AOT registration."""
    torch = pytest.importorskip("torch")
    importlib.import_module("normkit.torch")  # which defines them
    convention = GATED_RMS_NORM[name].text
    for dtype in (torch.float32, torch.bfloat16):
        x, gate = torch.randn(2, 3, 4, dtype=dtype), torch.randn(4, 3, 2, dtype=dtype).mT.mT
        gate = gate.permute(2, 1, 0)
        for w in (None, torch.rand(4, requires_grad=True)):
            options = (w, None, 1e-6, [2], convention)
            operator = torch.ops.normkit.gated_rms_norm
            torch.library.opcheck(operator, (x.requires_grad_(), gate, *options))
            plain = (torch.randn_like(x).detach(), x.detach(), gate)
            weight = None if w is None else w.detach()
            torch.library.opcheck(
                torch.ops.normkit.gated_rms_norm_vjp, (*plain, weight, *options[1:])
            )


# ---- refusals ----------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    x = np.ones((2, 4), np.float32)
    with pytest.raises(ValueError, match=r"gate must have the shape of x"):
        nk.gated_rms_norm(x, x[:1])
    with pytest.raises(TypeError, match=r"gate must be .*floating"):
        nk.gated_rms_norm(x, x.astype(int))
    with pytest.raises(ValueError, match="'llama', which is one of rms_norm only; pass one of"):
        nk.gated_rms_norm(x, x, convention="llama")
    with pytest.raises(ValueError, match="'gated_pre', which is one of gated_rms_norm only"):
        nk.rms_norm(x, convention="gated_pre")
    with pytest.raises(ValueError, match="must be one of gated_rms_norm, as gate, order"):
        nk.gated_rms_norm(x, x, convention=RMS_NORM["llama"])


def test_a_hand_made_row_of_length_1() -> None:
    """reduction='sum': (3, 4) has length 5."""
    c = Convention(reduction="sum", eps=0.0, between="wide", scale="wide", bias="wide")
    y = nk.rms_norm(np.float32([[3, 4]]), convention=c)
    assert_ulp(y, np.float32([[0.6, 0.8]]), max_ulp=0.0)
    y = nk.rms_norm(np.float32([[3, 4]]), convention="l2sum", eps=75.0)
    assert_ulp(y, np.float32([[0.3, 0.4]]), max_ulp=1.0)
