"""Against the hosts' own layers, on moderate inputs, where they are right.

They work in float32: their error is theirs, some ULPs of the row's largest element, so normkit is
asked to lie within that. And where they are wrong, in ULPs, so that the claim stands on a test.
"""

from typing import Any

import numpy as np
import pytest
from peers import PEERS, ours, scenarios, theirs

from normkit.testing import MAX_ULP

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


_SCENARIOS = [f"{s.op}, {s.name}" for s in scenarios()]


@pytest.mark.parametrize("index", range(len(_SCENARIOS)), ids=_SCENARIOS)
def test_ours_is_right_where_peers_are_off(index: int) -> None:
    """Every backend of the CPU."""
    found = ours(index)
    assert max(found.values()) <= MAX_ULP, found


@pytest.mark.parametrize("peer", range(len(PEERS)), ids=[peer.name for peer in PEERS])
@pytest.mark.parametrize("index", range(len(_SCENARIOS)), ids=_SCENARIOS)
def test_peers_are_off(index: int, peer: int) -> None:
    """Or right, where the table says so: then the documentation must say something else."""
    pytest.importorskip(PEERS[peer].name.split(".")[0])
    error = theirs(index, PEERS[peer])
    least = scenarios()[index].exceeds[peer]
    if least is None:
        assert error <= MAX_ULP
    else:
        assert error > least


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
