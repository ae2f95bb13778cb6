"""The examples of docs/examples: each runs, and does what its formula says."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import graph_attention
import lstm
import resnet_block


def _rms(x: np.ndarray, axis: int, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis, keepdims=True) + eps)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _close(found: Any, wanted: np.ndarray) -> None:
    # float32 in torch, some dozen operations on numbers of about 1
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=2e-5, atol=2e-5)


def test_lstm() -> None:
    torch.manual_seed(1)
    cell = lstm.NormalisedLSTMCell(3, 5)
    x, h, c = torch.randn(4, 3), torch.randn(4, 5), 10 * torch.randn(4, 5)
    w, b = (p.detach().numpy().astype(np.float64) for p in cell.gates.parameters())
    i, f, g, o = np.split(np.concatenate([x.numpy(), h.numpy()], 1) @ w.T + b, 4, axis=1)
    state = _sigmoid(f) * c.numpy() + _sigmoid(i) * np.tanh(g)
    new_h, new_c = cell(x, (h, c))
    _close(new_c, state)
    _close(new_h, _sigmoid(o) * np.tanh(_rms(state, 1)))

    result = lstm.main(steps=40)
    assert result["last loss"] < 0.5 * result["first loss"]
    assert result["largest"] < 1 + 2**-20


def test_resnet_block() -> None:
    torch.manual_seed(1)
    block = resnet_block.Block(8, groups=2)
    x = torch.randn(2, 8, 3, 4)
    groups = block.first(x).detach().numpy().astype(np.float64).reshape(2, 2, -1)
    centred = groups - groups.mean(-1, keepdims=True)
    grouped = (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    _close(block.norms(block.first(x)), _rms(grouped, 1))
    assert block(x).shape == x.shape

    result = resnet_block.main(steps=15)
    assert result["last loss"] < 0.5 * result["first loss"]


def test_graph_attention() -> None:
    torch.manual_seed(1)
    layer = graph_attention.GraphAttention(6)
    x = torch.randn(5, 6)
    adjacent = torch.rand(5, 5) < 0.5
    adjacent.fill_diagonal_(True)
    edges = adjacent.nonzero().T
    h = _rms(x.double().numpy(), 1) @ layer.value.weight.detach().numpy().T
    a = layer.score.weight.detach().numpy()[0]
    scores = (h @ a[:6])[:, None] + (h @ a[6:])[None]  # from, to
    weights = np.exp(np.where(scores > 0, scores, 0.2 * scores)) * adjacent.numpy()
    _close(layer(x, edges), x.numpy() + (weights / weights.sum(0)).T @ h)

    assert graph_attention.main(steps=30)["share"] > 0.8


@pytest.fixture(scope="module")
def training() -> Any:
    pytest.importorskip("flax")
    pytest.importorskip("rich")
    import train_gpt

    return train_gpt


def test_gpt_trains_alike_in_torch_and_flax(training: Any) -> None:
    size = training.gpt_torch.Size(vocabulary=128, context=16, width=16, heads=2, blocks=1)
    runs = training.train(size, steps=8, seed=0)
    for norm in training.NORMS:
        # sums in another order: up to some 2^-20 in a loss, and as much again from each step
        assert training.apart(runs, norm, 8) < 2.0**-17
        losses = runs[f"torch {norm}"]["loss"]
        assert abs(losses[0] - np.log(128)) < 0.1  # knows nothing yet
        assert losses[-1] < losses[0]
    assert runs["torch LayerNorm"]["loss"] != runs["torch RMSNorm"]["loss"]


def test_the_committed_training_keeps_its_bars_and_is_what_the_page_says(training: Any) -> None:
    result = json.loads(training.RESULT.read_text(encoding="utf-8"))
    for of in result["norms"].values():
        one, two = (np.array(of["loss"][host]) for host in ("torch", "flax"))
        assert one.shape == two.shape == (3, 300)
        assert (abs(one - two) / one)[:, :50].max() < 1e-4
        assert (one[:, -20:].mean(1) < 0.7 * one[:, 0]).all()
    seeds = {n: np.array(of["loss"]["torch"])[:, -20:].mean(1) for n, of in result["norms"].items()}
    apart = abs(seeds["LayerNorm"].mean() - seeds["RMSNorm"].mean())
    assert apart < min(np.ptp(losses) for losses in seeds.values())
    page = training.PAGE.read_text(encoding="utf-8")
    assert training.with_table(page, result) == page
    assert training.table(result) in page


def test_the_pictures_are_drawn(training: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    training.draw(json.loads(training.RESULT.read_text(encoding="utf-8")), tmp_path / "train.png")
    path = Path(__file__).parent.parent / "docs" / "_pictures.py"
    spec = importlib.util.spec_from_file_location("pictures", path)
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    pictures.geometry(tmp_path / "geometry.png")
    for drawn in tmp_path.iterdir():
        assert drawn.stat().st_size > 10_000


def test_the_page_shows_every_example(training: Any) -> None:
    page = training.PAGE.read_text(encoding="utf-8")
    for path in training.HERE.glob("*.py"):
        assert path.stem == "train_gpt" or f'--8<-- "docs/examples/{path.name}"\n' in page


def test_llama_in_flax_is_transformers_llama() -> None:
    transformers = pytest.importorskip("transformers")
    nnx = pytest.importorskip("flax.nnx")
    import jax.numpy as jnp
    import llama_flax
    import port

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.3 if parameter.ndim == 2 else 1))
    twin = llama_flax.Llama(config, rngs=nnx.Rngs(0))
    port.load(twin, model.state_dict())
    tokens = torch.randint(64, (2, 12))
    wanted = model(tokens).logits.detach().numpy()
    found = np.asarray(twin(jnp.asarray(tokens.numpy())))
    # some ULPs of float32 in each of two layers
    assert abs(found - wanted).max() < 1e-5 * abs(wanted).max()

    half = llama_flax.Llama(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    port.load(half, model.to(torch.bfloat16).state_dict())
    assert half(jnp.asarray(tokens.numpy())).dtype == jnp.bfloat16
