"""A dozen classes of transformers, where it is installed, and the table of all of them."""

import json
from pathlib import Path

import pytest

import normkit

_TABLE = Path(__file__).parent / "data" / "identify_transformers.json"
_SAMPLE = [
    ("llama.modeling_llama:LlamaRMSNorm", "rms_norm", "llama"),
    ("gemma.modeling_gemma:GemmaRMSNorm", "rms_norm", "gemma"),
    ("gemma3.modeling_gemma3:Gemma3RMSNorm", "rms_norm", "gemma"),
    ("t5.modeling_t5:T5LayerNorm", "rms_norm", "t5"),
    ("olmo2.modeling_olmo2:Olmo2RMSNorm", "rms_norm", "olmo"),
    ("imagegpt.modeling_imagegpt:ImageGPTLayerNorm", "rms_norm", "imagegpt"),
    ("qwen3_next.modeling_qwen3_next:Qwen3NextRMSNormGated", "rms_norm", "llama_x"),
    ("cohere.modeling_cohere:CohereLayerNorm", "layer_norm", "cohere"),
    ("deberta.modeling_deberta:DebertaLayerNorm", "layer_norm", "deberta"),
    ("nemotron.modeling_nemotron:NemotronLayerNorm1P", "layer_norm", "ln1p"),
    ("olmo.modeling_olmo:OlmoLayerNorm", "layer_norm", "olmo_np"),
    ("vitdet.modeling_vitdet:VitDetLayerNorm", "layer_norm", "vitdet"),
]
_NO_PRESET = "dory.modeling_dory:DoryL2Norm"


@pytest.mark.parametrize(("path", "kind", "preset"), _SAMPLE, ids=[row[0] for row in _SAMPLE])
def test_a_dozen_classes(path: str, kind: str, preset: str) -> None:
    pytest.importorskip("transformers")
    from identify_transformers import judge
    from transformers_norms import NormClass

    module, name = path.split(":")
    norm = NormClass(f"transformers.models.{module}", name)
    found, why = judge(norm)
    assert found.kind == kind
    assert preset in found.presets
    assert why is None


def test_a_class_that_is_no_norm() -> None:
    pytest.importorskip("transformers")
    from transformers_norms import NormClass

    module, name = _NO_PRESET.split(":")
    found = normkit.identify(NormClass(f"transformers.models.{module}", name).build(64))
    assert found.presets == ()
    assert "sum of squares" in found.findings[0].found


def test_the_table_names_at_least_200_and_gives_a_reason_for_each_miss() -> None:
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    assert table["agree_on_held_out_inputs"] >= 200
    assert table["agree_on_held_out_inputs"] == table["named"]
    assert table["classes"] == len(table["rows"])
    assert table["named"] + len(table["misses"]) == table["classes"]
    assert all(table["misses"].values())
