"""The named conventions: data only. Nothing reads a name but the lookup at the end."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from normkit import _checks
from normkit._convention import Convention

ORIGINAL = "original"
SOURCE = "source"
FORMULA = "formula"


class Preset(NamedTuple):
    """A convention with a name, and what is known of it.

    Attributes:
        convention: The fields.
        source: The implementations that it follows.
        checked: "original": compared with an installed original (tests/test_parity.py).
            "formula": compared with the published formula in the framework's operations, which
            checks the roundings, not the claim about the implementation. "source": that too, and
            the original's own source, of the version named, was run by hand and agrees: it is not
            installed, as it would bring too much.
    """

    convention: Convention
    source: str
    checked: str


def _preset(source: str, checked: str, **fields: Any) -> Preset:
    return Preset(Convention(**fields), source, checked)


def _layer(source: str, checked: str, **fields: Any) -> Preset:
    return _preset(source, checked, kind="layer_norm", **{"eps": 1e-5, **fields})


def _gated(source: str, checked: str, **fields: Any) -> Preset:
    return _preset(source, checked, kind="gated_rms_norm", **fields)


_F32: dict[str, Any] = {"input": "float32", "statistics": "float32"}  # x.to(float32) at the outset
_UP: dict[str, Any] = {"input": "at_least_float32", "statistics": "at_least_float32"}
_RAW: dict[str, Any] = {"statistics": "x"}  # no upcast
_WIDE: dict[str, Any] = {"between": "wide", "scale": "wide", "bias": "wide"}
_OFFSET_BEFORE: dict[str, Any] = {"offset": 1.0, "offset_added": "before_cast"}
_MLX: dict[str, Any] = {
    "eps": 1e-5,
    "input": "promote",
    "statistics": "float32",
    "between": "promote",
    "scale": "promote",
    "bias": "promote",
    "output": "promote",
}
_FLAX: dict[str, Any] = {
    "eps": 1e-6,
    "statistics": "at_least_float32",
    "root": "rsqrt",
    "order": "scale_statistic",
    "output": "promote",
}
_NNX: dict[str, Any] = {**_FLAX, "input": "promote", "scale": "promote", "bias": "promote"}
_EQUINOX: dict[str, Any] = {
    **_UP,
    "eps": 1e-5,
    "root": "rsqrt",
    "scale": "at_least_float32",
    "bias": "at_least_float32",
}
_KERAS: dict[str, Any] = {**_EQUINOX, "eps": 1e-3, "order": "affine"}
_TE: dict[str, Any] = {
    "eps": 1e-5,
    "input": "scale",
    "statistics": "float32",
    "scale": "float32",
    "output": "scale",
}

_RMS_NORM = {
    "standard": _preset("normkit: exact statistics, rounded once", ORIGINAL, **_WIDE),
    "torch": _preset(
        "torch.nn.RMSNorm, F.rms_norm; apex fused, DeepSeek-V3, quack, FlashInfer",
        ORIGINAL,
        eps="machine",
        **_UP,
    ),
    "llama": _preset(
        "transformers LlamaRMSNorm and 141 classes alike (Mistral, Qwen2, Qwen3, Phi3, GLM4 ...)",
        ORIGINAL,
        **_F32,
        between="x",
        output=None,
    ),
    "llama_x": _preset(
        "Liger's llama mode; the norm inside transformers Qwen3NextRMSNormGated",
        ORIGINAL,
        **_F32,
        between="x",
    ),
    "llama_w": _preset("vLLM's native RMSNorm, unsloth", FORMULA, **_F32, between="scale"),
    "qwen_olmo_core": _preset(
        "OLMo-core 3.0.0 QwenRMSNorm", SOURCE, **_F32, between="x", scale="x", bias="x"
    ),
    "mlx": _preset("mlx.core.fast.rms_norm", ORIGINAL, **_MLX),
    "t5": _preset(
        "transformers T5LayerNorm, MT5, Idefics, Pix2Struct; apex manual_rms_norm",
        ORIGINAL,
        statistics="float32",
        between="scale_if_half",
        output=None,
    ),
    "olmo": _preset(
        "transformers Olmo2RMSNorm, Olmo3, GptOss, DeepseekV4 and 8 more; OLMo-core RMSNorm",
        ORIGINAL,
        **_F32,
    ),
    "olmo1": _preset(
        "ai2-olmo 0.6.0 RMSLayerNorm", SOURCE, **_F32, eps=1e-5, between="x", output=None
    ),
    "gemma": _preset(
        "transformers GemmaRMSNorm, Gemma2, Gemma3, Qwen3Next, T5Gemma; scale is stored less 1",
        ORIGINAL,
        **_F32,
        scale="float32",
        offset=1.0,
    ),
    "gemma_lowp": _preset(
        "transformers MuseSparkTextCenteredRMSNorm: 1 + scale in scale's dtype",
        ORIGINAL,
        **_F32,
        scale="float32",
        **_OFFSET_BEFORE,
    ),
    "gemma4": _preset(
        "transformers Gemma3nRMSNorm, Gemma4, Helium, Moshi", ORIGINAL, **_F32, scale="float32"
    ),
    "gemma_flax": _preset(
        "gemma 3.3.0 (google-deepmind) RMSNorm, eager",
        SOURCE,
        **_RAW,
        root="rsqrt",
        offset=1.0,
        output=None,
    ),
    "flax": _preset("flax.linen.RMSNorm", ORIGINAL, **_FLAX),
    "flax_nnx": _preset("flax.nnx.RMSNorm", ORIGINAL, **_NNX),
    "keras": _preset(
        "Keras 3 RMSNormalization on JAX and NumPy (on torch the same with root='reciprocal')",
        ORIGINAL,
        **_UP,
        root="rsqrt",
        scale="at_least_float32",
    ),
    "keras_mixed": _preset(
        "Keras 3 RMSNormalization under the policy mixed_bfloat16",
        ORIGINAL,
        **_UP,
        root="rsqrt",
        scale="x",
    ),
    "equinox": _preset("equinox.nn.RMSNorm", ORIGINAL, **_EQUINOX),
    "haiku": _preset(
        "haiku.RMSNorm, eager",
        ORIGINAL,
        **_RAW,
        eps=1e-5,
        root="rsqrt",
        order="scale_first",
        output=None,
    ),
    "maxtext": _preset(
        "MaxText RMSNorm without offset", FORMULA, **_F32, root="rsqrt", between="x", scale="x"
    ),
    "maxtext_offset": _preset(
        "MaxText RMSNorm with scale_offset 1 (up to 2025: maxtext with offset=1.0)",
        FORMULA,
        **_F32,
        root="rsqrt",
        scale="float32",
        offset=1.0,
    ),
    "paper": _preset(
        "bzhangGo/rmsnorm in torch, by the paper's author; old OLMo",
        FORMULA,
        **_RAW,
        eps=1e-8,
        eps_place="outside",
        root="divide",
        output=None,
    ),
    "paper_tf": _preset(
        "bzhangGo/rmsnorm in TensorFlow",
        FORMULA,
        **_RAW,
        eps=1e-8,
        root="rsqrt",
        order="scale_first",
    ),
    "l2max": _preset(
        "norms made of torch F.normalize: x-transformers 2.31.10 RMSNorm, Wan VAE",
        SOURCE,
        **_RAW,
        eps=1e-12,
        eps_place="floor",
        root="divide",
        output=None,
    ),
    "l2max_factor": _preset(
        "the query part of transformers ZayaQKNorm",
        ORIGINAL,
        **_RAW,
        eps="machine",
        eps_place="floor",
        output=None,
    ),
    "l2sum": _preset(
        "xformers rms_norm by its docstring (its kernel divides by n): rows of length 1",
        FORMULA,
        **_F32,
        reduction="sum",
    ),
    "imagegpt": _preset(
        "transformers ImageGPTLayerNorm", ORIGINAL, **_RAW, eps=1e-5, root="divide", output=None
    ),
    "timestep": _preset(
        "transformers GradiumPhononTTSTimestepNorm",
        ORIGINAL,
        **_RAW,
        eps=1e-5,
        order="scale_first",
        output=None,
    ),
    "onnx": _preset(
        "ONNX RMSNormalization-23, as its specification spells it out",
        ORIGINAL,
        **_F32,
        eps=1e-5,
        root="divide",
        between="x",
        output="scale",
    ),
    "liger_none": _preset("Liger's casting mode none", FORMULA, **_RAW),
    "apex_mixed": _preset("apex MixedFusedRMSNorm", FORMULA, **_F32, eps=1e-5, output="scale"),
    "te": _preset("TransformerEngine RMSNorm", FORMULA, **_TE),
    "te_zero_centered": _preset(
        "TransformerEngine RMSNorm, zero_centered_gamma", FORMULA, **_TE, offset=1.0
    ),
    "ds4_unweighted": _preset(
        "transformers DeepseekV4UnweightedRMSNorm",
        ORIGINAL,
        statistics="float32",
        order="scale_statistic",
        between="x",
    ),
    "weightless": _preset("transformers NanoChatRMSNorm, Llama4TextL2Norm", ORIGINAL, **_F32),
    "input_scaled": _preset(
        "transformers MuseSparkTextInputScaledRMSNorm",
        ORIGINAL,
        **_F32,
        order="scale_input",
        between="x",
        scale="float32",
        **_OFFSET_BEFORE,
    ),
}

_LAYER_NORM = {
    "standard": _layer("normkit: exact statistics, rounded once", ORIGINAL, **_WIDE),
    "torch": _layer("torch.nn.LayerNorm, F.layer_norm", ORIGINAL, **_UP, variance="fused"),
    "cohere": _layer("transformers CohereLayerNorm", ORIGINAL, **_F32, scale="float32"),
    "deberta": _layer(
        "transformers DebertaLayerNorm",
        ORIGINAL,
        **_F32,
        eps=1e-7,
        root="divide",
        between="x",
        output=None,
    ),
    "mlx": _layer("mlx.core.fast.layer_norm", ORIGINAL, **_MLX),
    "onnx": _layer(
        "ONNX LayerNormalization-17, as its specification spells it out",
        ORIGINAL,
        **_F32,
        variance="fast",
        root="divide",
        between="x",
        output="scale",
    ),
    "olmo_np": _layer("transformers OlmoLayerNorm", ORIGINAL, **_F32, variance="fused"),
    "ln1p": _layer(
        "transformers NemotronLayerNorm1P, VideoPrism; scale is stored less 1",
        ORIGINAL,
        **_UP,
        variance="fused",
        scale="at_least_float32",
        **_OFFSET_BEFORE,
    ),
    "rounded_torch": _layer(
        "transformers ChameleonLayerNorm",
        ORIGINAL,
        **_UP,
        variance="fused",
        between="x",
        output=None,
    ),
    "rounded_torch_1p": _layer(
        "transformers MoonshineStreamingLayerNorm",
        ORIGINAL,
        **_UP,
        variance="fused",
        between="x",
        offset=1.0,
        output=None,
    ),
    "vitdet": _layer(
        "transformers VitDetLayerNorm, IBert; LayerNorm2d with axis=1",
        ORIGINAL,
        **_RAW,
        eps=1e-6,
        root="divide",
        output=None,
    ),
    "flow": _layer(
        "transformers PocketTTSFlowLayerNorm", ORIGINAL, **_RAW, variance="fused", output=None
    ),
    "flax": _layer("flax.linen.LayerNorm", ORIGINAL, **_FLAX, variance="fast_clamped"),
    "flax_slow": _layer("flax.linen.LayerNorm, use_fast_variance=False", ORIGINAL, **_FLAX),
    "flax_nnx": _layer("flax.nnx.LayerNorm", ORIGINAL, **_NNX, variance="fast_clamped"),
    "keras": _layer("Keras 3 LayerNormalization on JAX", ORIGINAL, **_KERAS),
    "keras_fast": _layer(
        "Keras 3 LayerNormalization on NumPy", ORIGINAL, **_KERAS, variance="fast"
    ),
    "equinox": _layer("equinox.nn.LayerNorm", ORIGINAL, **_EQUINOX),
    "haiku": _layer(
        "haiku.LayerNorm",
        ORIGINAL,
        **_RAW,
        variance="fused",
        root="rsqrt",
        order="scale_statistic",
        output=None,
    ),
    "haiku_fast": _layer(
        "haiku.LayerNorm, use_fast_variance=True",
        ORIGINAL,
        **_RAW,
        variance="fast",
        root="rsqrt",
        order="scale_statistic",
        output=None,
    ),
    "apex_mixed": _layer(
        "apex MixedFusedLayerNorm", FORMULA, **_F32, variance="fused", output="scale"
    ),
}

_GATED_RMS_NORM = {
    "standard": _gated(
        "normkit: exact statistics, rounded once; gate after the norm",
        ORIGINAL,
        **_WIDE,
        gate="after",
    ),
    "gated_pre": _gated(
        "transformers MambaRMSNormGated (Mamba2), Bamba, NemotronH, Zamba2, GraniteMoeHybrid, "
        "each with groups",
        ORIGINAL,
        **_F32,
        between="x",
        output=None,
        gate="before",
    ),
    "gated_post": _gated(
        "transformers Qwen3NextRMSNormGated, Qwen3_5, OlmoHybrid",
        ORIGINAL,
        **_F32,
        between="x",
        gate="after",
    ),
    "gated_sigmoid": _gated(
        "transformers KimiLinearRMSNormGated, BailingHybrid, Glm5Next, LaraMini",
        ORIGINAL,
        **_F32,
        scale="float32",
        gate="after",
        activation="sigmoid",
    ),
}

PRESETS: Mapping[str, Mapping[str, Preset]] = MappingProxyType(
    {
        "rms_norm": MappingProxyType(_RMS_NORM),
        "layer_norm": MappingProxyType(_LAYER_NORM),
        "gated_rms_norm": MappingProxyType(_GATED_RMS_NORM),
    }
)

# Plain dicts, which torch.compile can look into.
_CONVENTIONS = {
    kind: {name: preset.convention for name, preset in presets.items()}
    for kind, presets in PRESETS.items()
}
RMS_NORM: Mapping[str, Convention] = MappingProxyType(_CONVENTIONS["rms_norm"])
LAYER_NORM: Mapping[str, Convention] = MappingProxyType(_CONVENTIONS["layer_norm"])
GATED_RMS_NORM: Mapping[str, Convention] = MappingProxyType(_CONVENTIONS["gated_rms_norm"])


def convention_of(given: Any, kind: str) -> Convention:
    """The convention of ``kind`` that ``given``, a name or a `Convention`, stands for."""
    if isinstance(given, Convention):
        _checks.same_kind(given.kind, kind)
        return given
    _checks.convention_name(given)
    known = _CONVENTIONS[kind]
    if given not in known:
        raise _checks.no_convention(
            given, kind, [k for k in _CONVENTIONS if given in _CONVENTIONS[k]], known
        )
    return known[given]
