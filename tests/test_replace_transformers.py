"""Ten architectures of transformers with normkit's norms, and four folded; random and small."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
nk = pytest.importorskip("normkit.torch")
nn = torch.nn

from normkit.torch import fold_centering, fold_scale, replace_norms

_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": 99}
_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_LLAMA = {**_SMALL, **_TOKENS, "num_key_value_heads": 2}
_HEADS = {**_LLAMA, "head_dim": 8}
_GPT2 = {**_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4}
_OPT = {**_SMALL, **_TOKENS, "ffn_dim": 48, "word_embed_proj_dim": 32}
_VIT = {**_SMALL, "image_size": 16, "patch_size": 4}
_T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 99}

# Model, configuration, number of norms, and the convention of each.
_TEN = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _HEADS, 5, "llama"),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _HEADS, 9, "gemma"),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _HEADS, 9, "llama"),
    "Mistral": ("MistralForCausalLM", "MistralConfig", _HEADS, 5, "llama"),
    "T5": ("T5ForConditionalGeneration", "T5Config", _T5, 12, "t5"),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", _GPT2, 5, "torch"),
    "BERT": ("BertForMaskedLM", "BertConfig", {**_SMALL, "vocab_size": 99}, 6, "torch"),
    "OLMo2": ("Olmo2ForCausalLM", "Olmo2Config", _LLAMA, 9, "olmo"),
    "Phi3": ("Phi3ForCausalLM", "Phi3Config", _LLAMA, 5, "llama"),
    "ViT": ("ViTForImageClassification", "ViTConfig", _VIT, 5, "torch"),
}
_IN_HALF = ("Gemma2", "T5", "GPT-2")


def build(model: str, config: str, options: dict[str, Any]) -> Any:
    """Random weights, norms with a scale and a bias that do something."""
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def batch(name: str, dtype: Any = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator).to(dtype)}
    ids = torch.randint(3, 99, (2, 12), generator=generator)
    return {"input_ids": ids, **({"decoder_input_ids": ids} if name == "T5" else {})}


def layer_norms(model: Any) -> int:
    return sum(isinstance(module, nn.LayerNorm) for module in model.modules())


@pytest.mark.parametrize("name", _TEN)
def test_every_norm_of_ten_architectures(name: str) -> None:
    """Each norm's criterion is `replace_norms`' own; a model's outputs to noise of its dtype."""
    model, config, options, count, convention = _TEN[name]
    made = build(model, config, options)
    modules, keys = list(made.modules()), list(made.state_dict())
    for dtype in (torch.float32, torch.bfloat16) if name in _IN_HALF else (torch.float32,):
        made.to(dtype)
        report = replace_norms(made, sample=batch(name, dtype))
        assert len(report.rows) == len(report.replaced) == count, str(report)
        assert {row.convention for row in report.rows} == {convention}
        left = [type(m).__name__ for m in made.modules() if "Norm" in type(m).__name__]
        assert set(left) <= {"RMSNorm", "LayerNorm"}
        assert list(made.state_dict()) == keys
        assert report.output_change is not None
        # float32: a few last bits through some ten layers; bfloat16: single flipped roundings
        assert report.output_change.relative < 50 * torch.finfo(dtype).eps
        report.undo()
        assert all(a is b for a, b in zip(made.modules(), modules, strict=True))


def test_a_class_with_a_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """eps outside of the root in a model of transformers: none is replaced."""
    from transformers.models.llama import modeling_llama

    def outside(self: Any, hidden_states: Any) -> Any:
        h = hidden_states.to(torch.float32)
        h = h / (h.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)
        return self.weight * h.to(hidden_states.dtype)

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", outside)
    made = build("LlamaForCausalLM", "LlamaConfig", _HEADS | {"rms_norm_eps": 1e-3})
    report = replace_norms(made)
    assert len(report.left) == len(report.rows) == 5
    assert all("outside of the root" in str(row.reason) for row in report.left)


_FOUR = {
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", _GPT2, ("transformer.wte.weight",)),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**_SMALL, **_TOKENS}, ()),
    "OPT": ("OPTForCausalLM", "OPTConfig", _OPT, ("model.decoder.embed_tokens.weight",)),
    "OPT with a projection": (
        "OPTForCausalLM",
        "OPTConfig",
        _OPT | {"word_embed_proj_dim": 16},
        (),
    ),
    "ViT": ("ViTForImageClassification", "ViTConfig", _VIT, ()),
}


@pytest.mark.parametrize("name", _FOUR)
def test_fold_centering_and_fold_scale_of_known_models(name: str) -> None:
    model, config, options, untied = _FOUR[name]
    made, sample = build(model, config, options), batch(name)
    saved = {k: v.clone() for k, v in made.state_dict().items()}
    before = made(**sample).logits
    report = fold_centering(made)
    assert layer_norms(made) == 0
    assert tuple(text.split(" from ")[0] for text in report.untied) == untied
    assert report.proof is not None
    assert report.proof.relative <= 1e-12
    # 2^-24 of each weight once, and float32's own noise
    assert (made(**sample).logits - before).abs().max() <= 1e-5 * before.abs().max()
    scaled = fold_scale(made)
    assert len(scaled.norms) == len(report.norms) - 1  # all but the last
    assert scaled.proof is not None
    assert scaled.proof.relative <= 1e-12
    assert (made(**sample).logits - before).abs().max() <= 1e-5 * before.abs().max()
    scaled.undo()
    report.undo()
    assert layer_norms(made) == len(report.norms)
    assert all(torch.equal(v, saved[k]) for k, v in made.state_dict().items())
    assert torch.equal(made(**sample).logits, before)


def test_a_folded_model_is_saved_and_loaded(tmp_path: Path) -> None:
    """LayerNorm on a centred stream is RMSNorm: the file serves transformers' own class as well."""
    made, sample = build("GPT2LMHeadModel", "GPT2Config", _GPT2), batch("GPT-2")
    report = fold_centering(made)
    assert not made.config.tie_word_embeddings
    expected = made(**sample).logits
    made.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert layer_norms(loaded) == 5
    torch.testing.assert_close(loaded(**sample).logits, expected, rtol=0, atol=1e-5)
    report.undo()
    assert made.config.tie_word_embeddings
    made.tie_weights()
    assert made.lm_head.weight is made.transformer.wte.weight


def test_fold_scale_of_a_llama() -> None:
    made, sample = build("LlamaForCausalLM", "LlamaConfig", _HEADS), batch("Llama")
    before = made(**sample).logits
    report = fold_scale(made)
    assert len(report.norms) == 4
    assert (made(**sample).logits - before).abs().max() <= 1e-5 * before.abs().max()


def test_folds_are_refused() -> None:
    post = build("OPTForCausalLM", "OPTConfig", _OPT | {"do_layer_norm_before": False})
    with pytest.raises(ValueError, match=r"OPTDecoder: it normalises after the addition"):
        fold_centering(post)
    open_end = build("OPTForCausalLM", "OPTConfig", _OPT | {"_remove_final_layer_norm": True})
    with pytest.raises(ValueError, match="no last norm"):
        fold_centering(open_end)
    llama = build("LlamaForCausalLM", "LlamaConfig", _HEADS)
    with pytest.raises(ValueError, match="norms are RMSNorms"):
        fold_centering(llama)
    bert = build("BertForMaskedLM", "BertConfig", {**_SMALL, "vocab_size": 99})
    with pytest.raises(ValueError, match="got BertForMaskedLM, which has none inside"):
        fold_centering(bert)
    with pytest.raises(ValueError, match="post-norm"):
        fold_centering(
            bert,
            writers=[
                "bert.embeddings.*_embeddings",
                "bert.encoder.layer.*.attention.output.dense",
                "bert.encoder.layer.*.output.dense",
            ],
            norms=[
                "bert.embeddings.LayerNorm",
                "bert.encoder.layer.*.attention.output.LayerNorm",
                "bert.encoder.layer.*.output.LayerNorm",
            ],
            sample=batch("BERT"),
        )
