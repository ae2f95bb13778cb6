"""Where the frameworks' own layers are off, and by how much, beside normkit on every backend.

`make contract` writes the figures to data/peers.json and docs/contract.md; tests/test_peers.py
asserts that they are so.
"""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from backends import subjects
from oracles import EXACT

from normkit.testing import Exact, contract_floor, worst_ulp

PATH = Path(__file__).parent / "data" / "peers.json"


class Peer(NamedTuple):
    """A framework's own layer: called with (op, x, eps), without scale and bias."""

    name: str
    run: Callable[[str, Any, float], Any]


class Scenario(NamedTuple):
    """Rows of float32, and the ULPs by which each of `PEERS` is off, at least; None: it is right."""

    op: str
    name: str
    x: Any
    eps: float
    exceeds: tuple[float | None, float | None, float | None]


def _torch(op: str, x: Any, eps: float) -> Any:
    import torch

    return getattr(torch.nn.functional, op)(torch.from_numpy(x), x.shape[-1:], eps=eps).numpy()


def _nnx(op: str, x: Any, eps: float, *, fast: bool) -> Any:
    from flax import nnx

    layer = getattr(nnx, {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm"}[op])
    module = layer(x.shape[-1], epsilon=eps, use_fast_variance=fast, rngs=nnx.Rngs(0))
    return np.asarray(module(x))


PEERS = (
    Peer("torch.nn.functional", _torch),
    Peer("flax.nnx", functools.partial(_nnx, fast=True)),
    Peer("flax.nnx, slow variance", functools.partial(_nnx, fast=False)),
)


def scenarios() -> list[Scenario]:
    """Bounds well below what was measured, as sums differ by processor; 2^23 is no digit right."""
    random = np.random.default_rng(30)
    x = random.standard_normal((8, 768))
    constant = np.repeat(random.standard_normal((64, 1)) * 100, 129, axis=1)
    rows = [
        ("layer_norm", "mean 1e7", x + 1e7, 1e-6, (1e6, 1e6, 1e6)),
        ("layer_norm", "size 1e25", x * 1e25, 1e-6, (1e6, 1e6, 1e6)),
        ("layer_norm", "constant rows", constant, 1e-6, (None, 1e6, 1e6)),
        ("layer_norm", "n = 2", random.standard_normal((4096, 2)), 1e-6, (100, 100, 100)),
        ("layer_norm", "n = 10^6", random.standard_normal((1, 10**6)), 1e-6, (2, 2, 2)),
        ("rms_norm", "size 1e20", x * 1e20, 1e-6, (1e6, 1e6, 1e6)),
        ("rms_norm", "size 1e-30, eps 0", x * 1e-30, 0.0, (1e6, 1e6, 1e6)),
    ]
    return [Scenario(op, name, x.astype(np.float32), *rest) for op, name, x, *rest in rows]


@functools.cache
def _expected(index: int) -> tuple[Any, Exact, Any]:
    """(elements looked at, exact result there, floor); 10 000 of them where a row is long."""
    scenario = scenarios()[index]
    at = np.linspace(0, scenario.x.shape[-1] - 1, min(scenario.x.shape[-1], 10_000)).astype(int)
    exact = EXACT[scenario.op](scenario.x, eps=scenario.eps, at=at)
    return at, exact, contract_floor(scenario.x[:, at], exact)


def ours(index: int) -> dict[str, float]:
    """Label: worst ULP beyond the floor, on every backend of the CPU."""
    at, exact, floor = _expected(index)
    scenario = scenarios()[index]
    return {
        s.label: worst_ulp(s.run(scenario.op, scenario.x, eps=scenario.eps)[:, at], exact, floor)
        for s in subjects()[0]
        if s.exact_bits
    }


def theirs(index: int, peer: Peer) -> float:
    """The peer's worst ULP, infinite where it gives NaN or infinity."""
    at, exact, _ = _expected(index)
    scenario = scenarios()[index]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        return worst_ulp(peer.run(scenario.op, scenario.x, scenario.eps)[:, at], exact)


def measure_peers() -> list[dict[str, Any]]:
    """Everything, in the form of data/peers.json; infinity is null there, as JSON has none."""
    return [
        {
            "op": scenario.op,
            "name": scenario.name,
            "normkit": max(ours(i).values()),
            **{peer.name: _finite(theirs(i, peer)) for peer in PEERS},
        }
        for i, scenario in enumerate(scenarios())
    ]


def _finite(error: float) -> float | None:
    return error if np.isfinite(error) else None
