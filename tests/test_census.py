"""The norms of whole models."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nk = pytest.importorskip("normkit.torch")
nn = torch.nn


class _Gemma(nn.Module):
    """Named like no norm: it must not be listed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(32))

    def forward(self, x: Any) -> Any:
        return x


class GemmaNorm(_Gemma):
    def forward(self, x: Any) -> Any:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (h * (1.0 + self.weight.float())).type_as(x)


class PreNormBlock(nn.Module):
    """A container: its norm is listed, not itself."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        return x + self.linear(self.norm(x))


class TwoInputNorm(nn.Module):
    def forward(self, x: Any, y: Any, z: Any) -> Any:
        return x + y + z


def test_a_model_of_one_convention_has_no_warning() -> None:
    model = nn.Sequential(*(PreNormBlock(nn.RMSNorm(32, eps=1e-6)) for _ in range(3)))
    found = nk.census(model)
    assert [row.name for row in found.rows] == ["0.norm", "1.norm", "2.norm"]
    assert {row.convention for row in found.rows} == {"rms_norm/torch"}
    assert {(row.width, row.parameters) for row in found.rows} == {(32, 32)}
    assert {row.found.eps for row in found.rows if row.found} == {1e-6}
    assert found.warnings == ()
    assert "3  RMSNorm" in str(found)


def test_mixed_conventions_eps_and_kinds_are_named() -> None:
    model = nn.Sequential(
        nn.RMSNorm(32, eps=1e-6),
        GemmaNorm(),
        _Gemma(),
        nn.RMSNorm(32, eps=1e-5),
        nn.LayerNorm(32),
        nn.BatchNorm1d(32),
        TwoInputNorm(),
    )
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = nk.census(model)
    assert [row.name for row in found.rows] == ["0", "1", "3", "4", "5", "6"]
    assert [row.convention for row in found.rows] == [
        "rms_norm/torch",
        "rms_norm/gemma",
        "rms_norm/torch",
        "layer_norm/torch",
        "none",
        "not callable",
    ]
    assert found.warnings == (
        "norms of two kinds: rms_norm (3: 0, ...), layer_norm (1: 4)",
        "conventions differ among the rms_norm: torch (2: 0, ...), gemma (1: 1)",
        "eps differs among the rms_norm: 1e-06 (2: 0, ...), 1e-05 (1: 3)",
        "5 (BatchNorm1d) follows no preset: statistics",
        "6 (TwoInputNorm) cannot be called with x alone",
    )
    assert found.as_dict()["norms"][1]["presets"][0] == "gemma"
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.LayerNorm(48), GemmaNorm())
    found = nk.census(model)
    assert [row.convention for row in found.rows] == ["layer_norm/torch", "rms_norm/gemma"]
    assert model[0].weight.is_meta


def test_no_model() -> None:
    with pytest.raises(TypeError, match=r"a model must be a torch.nn.Module; got type; pass"):
        nk.census(nn.LayerNorm)


def test_a_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        config = transformers.Gemma3TextConfig(num_hidden_layers=2, hidden_size=64, head_dim=16)
        model = transformers.Gemma3ForCausalLM(config)
    found = nk.census(model)
    assert len(found.rows) == 13  # 4 and two of query and key a layer, and a last one
    assert {row.convention for row in found.rows} == {"rms_norm/gemma"}
    assert {row.width for row in found.rows} == {16, 64}
    assert found.warnings == ()
