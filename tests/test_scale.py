"""Folding an offset into a scale, on every backend; names of states."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backends import Subject

import normkit
from normkit.conventions import RMS_NORM

_BF16 = np.dtype(ml_dtypes.bfloat16)


def _weights(dtype: str) -> Any:
    rng = np.random.default_rng(8)
    w = np.concatenate([rng.standard_normal(500) * 0.1, [0.0, 2.0**-20, -1.0, 3.0]])
    return w.astype(_BF16 if dtype == "bfloat16" else dtype)


def _converted(backend: Subject, w: Any, *arguments: Any, **options: Any) -> tuple[Any, int]:
    if w.dtype.name not in backend.dtypes:
        pytest.skip(f"{backend.label} holds no {w.dtype.name}")
    host = backend.backend
    result = normkit.convert_scale(host.put(w), *arguments, **options)
    return host.get(result.weights), result.changed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_folding_in_float32_keeps_every_factor(backend: Subject, dtype: str) -> None:
    w = _weights(dtype)
    folded, changed = _converted(backend, w, "gemma", "llama", dtype="float32")
    np.testing.assert_array_equal(folded, 1 + w.astype(np.float32))
    assert folded.dtype == np.float32
    assert changed == 0


def test_folding_into_bfloat16_counts_the_factors_that_change(backend: Subject) -> None:
    w = _weights("bfloat16")
    folded, changed = _converted(backend, w, "gemma", "llama")
    exact = 1 + w.astype(np.float32)
    np.testing.assert_array_equal(folded, exact.astype(_BF16))
    assert changed == int((folded.astype(np.float32) != exact).sum())
    assert changed > 100


def test_an_offset_added_in_bfloat16_is_folded_without_loss(backend: Subject) -> None:
    """gemma_lowp multiplies by a bfloat16 number already."""
    folded, changed = _converted(backend, _weights("bfloat16"), "gemma_lowp", "llama")
    assert changed == 0
    assert folded.dtype == _BF16


def test_taking_an_offset_off_and_the_norms_agree(backend: Subject) -> None:
    scale = (1 + _weights("float32")).astype(np.float32)
    stored, changed = _converted(backend, scale, "olmo", "gemma")
    np.testing.assert_array_equal(stored, scale - 1)
    assert changed == int((np.float32(1) + stored != scale).sum())
    x = np.random.default_rng(9).standard_normal((4, len(scale))).astype(np.float32)
    kept = np.float32(1) + stored == scale
    olmo = normkit.rms_norm(x, scale, convention="olmo")
    gemma = normkit.rms_norm(x, stored, convention="gemma")
    np.testing.assert_array_equal(olmo[:, kept], gemma[:, kept])


def test_same_offset_is_the_same_array(backend: Subject) -> None:
    w = _weights("float32")
    same, changed = _converted(backend, w, RMS_NORM["llama"], "olmo")
    np.testing.assert_array_equal(same, w)
    assert changed == 0


def test_layer_norm_conventions() -> None:
    folded, changed = normkit.convert_scale(
        np.zeros(3, np.float32), "ln1p", "torch", kind="layer_norm"
    )
    np.testing.assert_array_equal(folded, 1)
    assert changed == 0


@pytest.mark.parametrize(
    ("source", "kind", "scale", "bias"),
    [
        ("torch", "layer_norm", "block.norm.weight", "block.norm.bias"),
        ("nnx", "layer_norm", "block.norm.scale", "block.norm.bias"),
        ("linen", "layer_norm", "block/norm/scale", "block/norm/bias"),
        ("keras", "layer_norm", "block/norm/gamma", "block/norm/beta"),
        ("keras", "rms_norm", "block/norm/scale", "block/norm/bias"),
    ],
)
def test_names(source: str, kind: str, scale: str, bias: str) -> None:
    separator = "/" if "/" in scale else "."
    kernel = separator.join(("block", "dense", "weight"))
    state = {scale: np.ones(3), bias: np.zeros(3), kernel: np.ones((3, 3))}
    norms = [separator.join(("block", "norm"))]
    there = normkit.rename_state(state, source, "torch", norms=norms, kind=kind)
    assert list(there) == ["block.norm.weight", "block.norm.bias", "block.dense.weight"]
    back = normkit.rename_state(there, "torch", source, norms=["block.norm"], kind=kind)
    assert back.keys() == state.keys()
    steps = {tuple(path.split(separator)): array for path, array in state.items()}
    there = normkit.rename_state(steps, source, "torch", norms=[("block", "norm")], kind=kind)
    assert next(iter(there)) == ("block", "norm", "weight")


def test_names_are_those_of_the_hosts_own_layers() -> None:
    torch = pytest.importorskip("torch")
    nnx = pytest.importorskip("flax.nnx")
    state = dict(torch.nn.LayerNorm(4).state_dict())
    layer = nnx.LayerNorm(4, rngs=nnx.Rngs(0))
    for name in normkit.rename_state(state, "torch", "nnx", norms=[""], kind="layer_norm"):
        assert isinstance(getattr(layer, name), nnx.Param)


def test_errors() -> None:
    w = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"library must be one of torch, nnx, linen, keras"):
        normkit.rename_state({}, "torch", "caffe", norms=[])
    with pytest.raises(ValueError, match=r"norms must be paths of modules .* got \['a.norm'\]"):
        normkit.rename_state({"norm.weight": w}, "torch", "nnx", norms=["a.norm"])
    with pytest.raises(ValueError, match=r"parameter must be one of weight, bias; got 'norm.mean'"):
        normkit.rename_state({"norm.mean": w}, "torch", "nnx", norms=["norm"])
    with pytest.raises(ValueError, match=r"kind must be one of rms_norm, layer_norm"):
        normkit.convert_scale(w, "gemma", "llama", kind="group_norm")
    with pytest.raises(TypeError, match=r"weights must be real floating"):
        normkit.convert_scale(w.astype(int), "gemma", "llama")
    with pytest.raises(ValueError, match=r"convention must be a name known"):
        normkit.convert_scale(w, "gemma", "nothing")
