"""Against the hosts' own layers, on moderate inputs, where they are right.

They work in float32: their error is theirs, some ULPs of the row's largest element, so normkit is
asked to lie within that. And once where they are wrong, so that the claim stands on a test.
"""

from typing import Any

import numpy as np
import pytest
from oracles import EXACT

from normkit.testing import worst_ulp

_X = np.random.default_rng(30).standard_normal((32, 768)).astype(np.float32)
_SCALE, _BIAS = np.random.default_rng(31).standard_normal((2, 768)).astype(np.float32)
# float32 sums of 768 terms: about sqrt(768) roundings of 2^-24, on values below 16
_NOISE = 16 * 28 * 2.0**-24


def test_torch(op: str) -> None:
    torch = pytest.importorskip("torch")
    ours = getattr(pytest.importorskip("normkit.torch"), op)
    x, w, b = (torch.from_numpy(a) for a in (_X, _SCALE, _BIAS))
    theirs = (
        torch.nn.functional.rms_norm(x, (768,), w, 1e-6) + b
        if op == "rms_norm"
        else torch.nn.functional.layer_norm(x, (768,), w, b, 1e-6)
    )
    assert (ours(x, w, b, eps=1e-6) - theirs).abs().max() < _NOISE


def test_nnx(op: str) -> None:
    nnx = pytest.importorskip("flax.nnx")
    jnp = pytest.importorskip("jax.numpy")
    ours = getattr(pytest.importorskip("normkit.jax"), op)
    name = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm"}[op]
    layer = getattr(nnx, name)(768, use_fast_variance=False, rngs=nnx.Rngs(0))
    layer.scale[...] = jnp.asarray(_SCALE)
    x = jnp.asarray(_X)
    assert abs(ours(x, jnp.asarray(_SCALE), eps=1e-6) - layer(x)).max() < _NOISE


def _torch_result(op: str, x: Any) -> Any:
    torch = pytest.importorskip("torch")
    function = getattr(torch.nn.functional, op)
    return function(torch.from_numpy(x), x.shape[-1:], eps=1e-6).numpy()


def _nnx_result(op: str, x: Any) -> Any:
    nnx = pytest.importorskip("flax.nnx")
    name = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm"}[op]
    return np.asarray(getattr(nnx, name)(x.shape[-1], epsilon=1e-6, rngs=nnx.Rngs(0))(x))


@pytest.mark.parametrize("peer", [_torch_result, _nnx_result], ids=["torch", "nnx"])
@pytest.mark.parametrize(("size", "mean"), [(1e20, 0), (1, 1e6)], ids=["size 1e20", "mean 1e6"])
def test_where_peers_fail(op: str, peer: Any, size: float, mean: float) -> None:
    """At 1e20 both give zeros; at mean 1e6 their LayerNorm loses digits, Flax's all of them."""
    x = (_X[:4] * size + mean).astype(np.float32)
    exact = EXACT[op](x, eps=1e-6)
    error = worst_ulp(peer(op, x), exact)
    if op == "rms_norm" and mean:
        assert error < 10  # an ordinary row to RMSNorm
    else:
        assert error > 1000


def test_third_derivative_of_torch_layer_norm_is_wrong_and_ours_is_right() -> None:
    """torch 2.13 takes its saved statistics for constants at the third order."""
    torch = pytest.importorskip("torch")
    ours = pytest.importorskip("normkit.torch").layer_norm
    x = torch.from_numpy(_X[:3, :4].astype(np.float64)).requires_grad_()

    def plain(x: Any) -> Any:
        d = x - x.mean(-1, keepdim=True)
        return d / ((d * d).mean(-1, keepdim=True) + 0.3).sqrt()

    def third(f: Any) -> Any:
        (g,) = torch.autograd.grad((f(x) ** 3).sum(), x, create_graph=True)
        (g,) = torch.autograd.grad((g**2).sum(), x, create_graph=True)
        return torch.autograd.grad((g**2).sum(), x)[0]

    expected = third(plain)
    largest = expected.abs().max()
    assert (third(lambda x: ours(x, eps=0.3)) - expected).abs().max() < 2.0**-44 * largest
    theirs = third(lambda x: torch.nn.functional.layer_norm(x, (4,), eps=0.3))
    assert (theirs - expected).abs().max() > 0.01 * largest
