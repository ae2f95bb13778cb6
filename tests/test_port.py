"""Norms carried from torch to Flax and back: same bits, on disk as safetensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flax")

import jax
import jax.numpy as jnp
import normkit.flax as nk
import normkit.flax.linen as nkl
import normkit.torch as nkt
from flax import linen, nnx

from normkit.testing import assert_same_bits

_X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


class TorchBlock(torch.nn.Module):
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.ln_1 = nkt.LayerNorm(8, dtype=dtype)
        self.mlp = torch.nn.Linear(8, 8)
        self.ln_2 = nkt.RMSNorm(8, dtype=dtype)


class NnxBlock(nnx.Module):
    def __init__(self) -> None:
        self.first = nk.LayerNorm(8, rngs=nnx.Rngs(0))
        self.mlp = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        self.second = nk.RMSNorm(8, rngs=nnx.Rngs(0))


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        return nkl.LayerNorm(name="first")(x), nkl.RMSNorm(name="second")(x)


_TORCH = {"first": "h.0.ln_1", "second": "h.0.ln_2"}


def _model(dtype: Any = None) -> Any:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"h": torch.nn.ModuleList([TorchBlock(dtype)])})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return model


def _numpy(tensor: Any) -> np.ndarray:
    return np.asarray(jnp.from_dlpack(tensor.detach()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nnx_there_and_back_through_a_file(dtype: Any, tmp_path: Path) -> None:
    save = pytest.importorskip("safetensors.torch").save_file
    load = pytest.importorskip("safetensors.flax").load_file
    model, block = _model(dtype), NnxBlock()
    kernel = np.asarray(block.mlp.kernel[...])
    save(model.state_dict(), tmp_path / "model.safetensors")
    nk.load_torch_norms(block, load(tmp_path / "model.safetensors"), names=_TORCH)

    theirs, x = model["h"][0], torch.from_numpy(_X).to(dtype)
    for mine, their in ((block.first, theirs.ln_1), (block.second, theirs.ln_2)):
        assert_same_bits(np.asarray(mine(jnp.asarray(_numpy(x)))), _numpy(their(x)))
    assert_same_bits(np.asarray(block.mlp.kernel[...]), kernel)

    back = pytest.importorskip("safetensors.flax").save_file
    back(nk.torch_norms(block, names=_TORCH), tmp_path / "norms.safetensors")
    other = _model(dtype)
    for norm in (other["h"][0].ln_1, other["h"][0].ln_2):
        torch.nn.init.zeros_(norm.weight)
    loaded = pytest.importorskip("safetensors.torch").load_file(tmp_path / "norms.safetensors")
    missing = other.load_state_dict(loaded, strict=False)
    assert missing.missing_keys == ["h.0.mlp.weight", "h.0.mlp.bias"]
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_linen_there_and_back() -> None:
    state, module = _model().state_dict(), LinenBlock()
    params = module.init(jax.random.key(0), _X)["params"]
    loaded = nkl.load_torch_norms(params, state, names=_TORCH)
    assert (params["first"]["scale"] == 1).all()
    theirs, x = _model()["h"][0], torch.from_numpy(_X)
    for mine, their in zip(
        module.apply({"params": loaded}, _X), (theirs.ln_1(x), theirs.ln_2(x)), strict=True
    ):
        assert_same_bits(np.asarray(mine), _numpy(their))
    back = nkl.torch_norms(loaded, names=_TORCH)
    assert back.keys() == {"h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.ln_2.weight"}
    for name, array in back.items():
        assert torch.equal(torch.from_dlpack(array), state[name])


def test_a_single_layer_and_the_paths_of_the_model_itself() -> None:
    layer = nk.RMSNorm(8, rngs=nnx.Rngs(0))
    nk.load_torch_norms(layer, {"weight": torch.arange(8.0)})
    assert layer.scale[...].tolist() == list(range(8))
    assert list(nk.torch_norms(layer)) == ["weight"]
    assert list(nkl.torch_norms({"scale": jnp.ones(8)}, names={"": ""})) == ["weight"]

    stack = nnx.List([nk.RMSNorm(8, rngs=nnx.Rngs(0)) for _ in range(2)])
    nk.load_torch_norms(stack, {f"{i}.weight": np.full(8, i, np.float32) for i in range(2)})
    assert stack[1].scale[...].tolist() == [1] * 8


def test_the_arrays_are_copies() -> None:
    layer, weight = nk.RMSNorm(8, rngs=nnx.Rngs(0)), torch.ones(8, requires_grad=True)
    nk.load_torch_norms(layer, {"weight": weight})
    with torch.no_grad():
        weight.zero_()
    assert (layer.scale[...] == 1).all()


def test_another_eps_is_told() -> None:
    layer = nk.RMSNorm(8, epsilon=1e-5, rngs=nnx.Rngs(0))
    state = torch.nn.ModuleDict({"a": nkt.RMSNorm(8)}).state_dict()
    with pytest.warns(UserWarning, match=r"'a' should have the eps .* 1e-06; it has 1e-05"):
        nk.load_torch_norms(layer, state, names={"": "a"})


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    block, state = NnxBlock(), _model().state_dict()

    def refused(error: type[Exception], match: str, **changed: Any) -> None:
        names = changed.pop("names", _TORCH)
        with pytest.raises(error, match=match):
            nk.load_torch_norms(block, {**state, **changed}, names=names)
        params = nnx.to_pure_dict(nnx.state(block))
        with pytest.raises(error, match=match):
            nkl.load_torch_norms(params, {**state, **changed}, names=names)
        assert (block.first.scale[...] == 1).all()

    refused(ValueError, r"'mlp', which is none; the norms are ", names={"mlp": "h.0.mlp"})
    refused(ValueError, r"norms must be paths .* got \[\('x',\)\]", names={"first": "x"})
    refused(
        ValueError,
        r"the parameters of the norm 'second', scale; got scale, bias; build",
        names={"second": "h.0.ln_1"},
    )
    refused(
        ValueError,
        r"an array for second.scale must have its shape \(8,\); got \(3,\)",
        **{"h.0.ln_2.weight": torch.ones(3)},
    )
    refused(
        TypeError,
        r"scale \(weight in torch\) must be real floating .* got int64",
        **{"h.0.ln_2.weight": torch.ones(8, dtype=torch.int64)},
    )
    refused(
        TypeError,
        r"a dtype that JAX keeps; got float64, which becomes float32",
        **{"h.0.ln_2.weight": np.ones(8)},
    )
