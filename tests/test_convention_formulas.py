"""Presets against the same formula written by hand in the framework that it comes from.

The bits are equal. They could differ only where the framework's own float32 sum, of another order,
rounds to another side; so the inputs are small integers times a power of two, whose squares add up
to the same number in every order.
"""

from collections.abc import Callable
from typing import Any

import normkit.numpy as nk
import numpy as np
import pytest
from backends import HALF

from normkit.cli.backends import find_backends
from normkit.conventions import PRESETS
from normkit.testing import assert_same_bits, dtype_of

torch = pytest.importorskip("torch")
F = torch.nn.functional

_TORCH = next(b for b in find_backends()[0] if b.label == "torch:cpu")


def _up(x: Any, eps: float) -> Any:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _raw(x: Any, eps: float) -> Any:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _t5(x: Any, s: Any, b: Any, eps: float) -> Any:
    y = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return s * (y.to(s.dtype) if s.dtype in (torch.float16, torch.bfloat16) else y)


def _paper(x: Any, s: Any, b: Any, eps: float) -> Any:
    return s * (x / (x.norm(2, dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + eps))


def _deberta(x: Any, s: Any, b: Any, eps: float) -> Any:
    d = x.float() - x.float().mean(-1, keepdim=True)
    y = d / torch.sqrt(d.pow(2).mean(-1, keepdim=True) + eps)
    return s * y.to(x.dtype) + b


def _cohere(x: Any, s: Any, b: Any, eps: float) -> Any:
    d = x.float() - x.float().mean(-1, keepdim=True)
    return (s.float() * (d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + eps))).to(x.dtype)


def _vitdet(x: Any, s: Any, b: Any, eps: float) -> Any:
    d = x - x.mean(-1, keepdim=True)
    return s * (d / torch.sqrt(d.pow(2).mean(-1, keepdim=True) + eps)) + b


def _apex_layer(x: Any, s: Any, b: Any, eps: float) -> Any:
    d = x.float() - x.float().mean(-1, keepdim=True)
    return (d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + eps) * s + b).to(s.dtype)


# (kind, preset, whether there is a bias, the formula)
_Formula = Callable[[Any, Any, Any, float], Any]
_FORMULAS: list[tuple[str, str, bool, _Formula]] = [
    ("rms_norm", "torch", False, lambda x, s, b, e: F.rms_norm(x, x.shape[-1:], s, e)),
    ("rms_norm", "llama", False, lambda x, s, b, e: s * _up(x, e).to(x.dtype)),
    ("rms_norm", "llama_x", False, lambda x, s, b, e: (s * _up(x, e).to(x.dtype)).to(x.dtype)),
    ("rms_norm", "llama_w", False, lambda x, s, b, e: (_up(x, e).to(s.dtype) * s).to(x.dtype)),
    ("rms_norm", "olmo", False, lambda x, s, b, e: (s * _up(x, e)).to(x.dtype)),
    ("rms_norm", "gemma", False, lambda x, s, b, e: (_up(x, e) * (1.0 + s.float())).to(x.dtype)),
    ("rms_norm", "gemma_lowp", False, lambda x, s, b, e: (_up(x, e) * (1 + s).float()).to(x.dtype)),
    ("rms_norm", "gemma4", False, lambda x, s, b, e: (_up(x, e) * s.float()).to(x.dtype)),
    ("rms_norm", "t5", False, _t5),
    ("rms_norm", "timestep", False, lambda x, s, b, e: s * x * _raw(x, e)),
    ("rms_norm", "liger_none", False, lambda x, s, b, e: (x * _raw(x, e) * s).to(x.dtype)),
    ("rms_norm", "paper", False, _paper),
    (
        "rms_norm",
        "l2max",
        False,
        lambda x, s, b, e: F.normalize(x, dim=-1, eps=e) * x.shape[-1] ** 0.5 * s,
    ),
    (
        "rms_norm",
        "l2sum",
        False,
        lambda x, s, b, e: (
            x.float() * torch.rsqrt(x.float().pow(2).sum(-1, keepdim=True) + e) * s
        ).to(x.dtype),
    ),
    (
        "rms_norm",
        "qwen_olmo_core",
        False,
        lambda x, s, b, e: _up(x, e).to(x.dtype) * s.to(x.dtype),
    ),
    ("rms_norm", "olmo1", True, lambda x, s, b, e: s * _up(x, e).to(x.dtype) + b),
    (
        "rms_norm",
        "te",
        False,
        lambda x, s, b, e: (_up(x.to(s.dtype), e) * s.float()).to(s.dtype),
    ),
    (
        "rms_norm",
        "te_zero_centered",
        False,
        lambda x, s, b, e: (_up(x.to(s.dtype), e) * (1.0 + s.float())).to(s.dtype),
    ),
    ("rms_norm", "apex_mixed", False, lambda x, s, b, e: (_up(x, e) * s).to(s.dtype)),
    (
        "rms_norm",
        "ds4_unweighted",
        False,
        lambda x, s, b, e: (
            x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + e).to(x.dtype)
        ),
    ),
    ("layer_norm", "deberta", True, _deberta),
    ("layer_norm", "cohere", False, _cohere),
    ("layer_norm", "vitdet", True, _vitdet),
    (
        "layer_norm",
        "apex_mixed",
        True,
        _apex_layer,
    ),
]


def test_every_preset_is_compared_with_something() -> None:
    """With an original or a JAX formula in test_parity, or with a formula here."""
    compared = {(kind, name) for kind, name, _, _ in _FORMULAS}
    elsewhere = {"gemma_flax", "paper_tf", "maxtext", "maxtext_offset"}
    for kind, presets in PRESETS.items():
        for name, preset in presets.items():
            here = (kind, name) in compared or name in elsewhere
            assert preset.checked == "original" or here, (kind, name)


@pytest.mark.parametrize("formula", _FORMULAS, ids=lambda f: f"{f[0]}-{f[1]}")
@pytest.mark.parametrize("x_dtype", [*HALF, "float32"])
@pytest.mark.parametrize("scale_dtype", [*HALF, "float32"])
def test_bits_are_those_of_the_formula(
    formula: tuple[str, str, bool, _Formula], x_dtype: str, scale_dtype: str
) -> None:
    kind, name, has_bias, written = formula
    rng = np.random.default_rng(0)
    # 64 rows, a multiple of 32: torch rounds the rsqrt of a bfloat16 tensor twice in its tail
    x = rng.integers(-15, 16, (64, 64)) / 4.0 * 2.0 ** rng.integers(-3, 4, (64, 1))
    s, b = rng.standard_normal((2, 64))
    if x_dtype == "float32" and (kind == "layer_norm" or name in ("torch", "paper", "l2max")):
        pytest.skip("PyTorch's own sum of deviations, or of squares in F, is not exact")
    raw = name in ("timestep", "liger_none", "paper", "l2max", "vitdet")
    if (raw or name == "torch") and x_dtype != scale_dtype and name != "paper":
        pytest.skip("its implementation is used with one dtype, or warns of two")
    arrays = [
        x.astype(dtype_of(x_dtype)),
        s.astype(dtype_of(scale_dtype)),
        b.astype(dtype_of(scale_dtype)) if has_bias else None,
    ]
    if name == "ds4_unweighted":
        arrays[1] = None
    ours = getattr(nk, kind)(*arrays, eps=2.0**-10, convention=name)
    tensors = [None if a is None else _TORCH.put(a) for a in arrays]
    assert_same_bits(ours, _TORCH.get(written(*tensors, 2.0**-10)))


def test_presets_differ_where_they_should() -> None:
    """One bfloat16 row under neighbours of "llama": each field that differs shows in the bits."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 64)).astype(dtype_of("bfloat16"))
    s = rng.standard_normal(64).astype(dtype_of("bfloat16"))
    results = {
        name: nk.rms_norm(x, s, convention=name).astype(np.float32)
        for name in ("llama", "olmo", "gemma", "gemma_lowp", "haiku", "paper", "ds4_unweighted")
    }
    for name, y in results.items():
        for other, z in results.items():
            assert name == other or (y != z).mean() > 0.01, (name, other)


def test_eps_is_rounded_to_the_statistics() -> None:
    """1e-5 is no bfloat16 number: a fifth of the results changes where it is not rounded first."""
    eps = float(np.array(1e-5).astype(dtype_of("bfloat16")).astype(np.float64))
    assert eps != 1e-5
    x = (4e-3 * np.random.default_rng(0).standard_normal((256, 32))).astype(dtype_of("bfloat16"))
    assert_same_bits(
        nk.rms_norm(x, eps=1e-5, convention="haiku"), nk.rms_norm(x, eps=eps, convention="haiku")
    )
