"""What writes to the residual stream of a transformer, what reads it, and what follows each norm."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from normkit import _checks


class Stream(NamedTuple):
    """A residual stream, by names from the root of a model; "*" stands for one step of a name.

    Attributes:
        writers: Modules or parameters whose output is added to it.
        norms: The norms that read it.
        readers: For each norm, the linear layers that read its output, and nothing else does.
        refuse: Why a configuration has no such stream, or None.
        sample: Arguments to try the model with.
    """

    writers: tuple[str, ...]
    norms: tuple[str, ...]
    readers: Mapping[str, tuple[str, ...]] = {}
    refuse: Callable[[Any], str | None] = lambda config: None
    sample: Callable[[Any], dict[str, Any]] = lambda config: tokens(config)


def tokens(config: Any) -> dict[str, Any]:
    """Random token numbers."""
    length = min(16, getattr(config, "max_position_embeddings", 16))
    generator = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(config.vocab_size, (2, length), generator=generator)}


def images(config: Any) -> dict[str, Any]:
    """Random images."""
    size = config.image_size
    height, width = size if isinstance(size, tuple | list) else (size, size)
    generator = torch.Generator().manual_seed(0)
    shape = (2, config.num_channels, height, width)
    return {"pixel_values": torch.randn(shape, generator=generator)}


def _opt(config: Any) -> str | None:
    if not config.do_layer_norm_before:
        return "it normalises after the addition (post-norm), so that norms write to the stream"
    if config._remove_final_layer_norm:
        return "it has no last norm, so that the output reads the stream without one"
    return None


_LLAMA = Stream(
    writers=(),
    norms=(),
    readers={
        "layers.*.input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "layers.*.post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    },
    refuse=lambda config: "its norms are RMSNorms: there is no mean to take out",
)

# By the class of transformers that holds the stream.
STREAMS = {
    **dict.fromkeys(("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"), _LLAMA),
    "GPT2Model": Stream(
        writers=("wte", "wpe", "h.*.attn.c_proj", "h.*.crossattention.c_proj", "h.*.mlp.c_proj"),
        norms=("h.*.ln_1", "h.*.ln_2", "h.*.ln_cross_attn", "ln_f"),
        readers={"h.*.ln_1": ("attn.c_attn",), "h.*.ln_2": ("mlp.c_fc",)},
    ),
    "GPTNeoXModel": Stream(
        writers=("embed_in", "layers.*.attention.dense", "layers.*.mlp.dense_4h_to_h"),
        norms=("layers.*.input_layernorm", "layers.*.post_attention_layernorm", "final_layer_norm"),
        readers={
            "layers.*.input_layernorm": ("attention.query_key_value",),
            "layers.*.post_attention_layernorm": ("mlp.dense_h_to_4h",),
        },
    ),
    "OPTDecoder": Stream(
        # with a projection of the embeddings it is that which writes
        writers=(
            "project_in|embed_tokens",
            "embed_positions",
            "layers.*.self_attn.out_proj",
            "layers.*.fc2",
        ),
        norms=("layers.*.self_attn_layer_norm", "layers.*.final_layer_norm", "final_layer_norm"),
        readers={
            "layers.*.self_attn_layer_norm": (
                "self_attn.q_proj",
                "self_attn.k_proj",
                "self_attn.v_proj",
            ),
            "layers.*.final_layer_norm": ("fc1",),
        },
        refuse=_opt,
    ),
    "ViTModel": Stream(
        writers=(
            "embeddings.cls_token",
            "embeddings.mask_token",
            "embeddings.position_embeddings",
            "embeddings.patch_embeddings.projection",
            "layers.*.attention.o_proj",
            "layers.*.mlp.fc2",
        ),
        norms=("layers.*.layernorm_before", "layers.*.layernorm_after", "layernorm"),
        readers={
            "layers.*.layernorm_before": (
                "attention.q_proj",
                "attention.k_proj",
                "attention.v_proj",
            ),
            "layers.*.layernorm_after": ("mlp.fc1",),
        },
        sample=images,
    ),
}


def described(model: nn.Module) -> Iterator[tuple[str, nn.Module, Stream]]:
    """Prefix, module and stream of every class of transformers in the model that is known."""
    for name, module in model.named_modules():
        stream = STREAMS.get(type(module).__name__)
        if stream is not None and type(module).__module__.startswith("transformers."):
            yield (f"{name}." if name else ""), module, stream


def matching(model: nn.Module, pattern: str) -> list[str]:
    """Names of modules and parameters that fit; of alternatives with "|", the first that is there."""
    names = [n for n, _ in model.named_modules(remove_duplicate=False)]
    names += [n for n, _ in model.named_parameters(remove_duplicate=False)]
    *parent, last = pattern.split(".")
    for choice in last.split("|"):
        steps = [*parent, choice]
        expression = r"\.".join(re.escape(step).replace(r"\*", "[^.]+") for step in steps)
        found = [name for name in names if re.fullmatch(expression, name)]
        if found:
            return found
    return []


def readers_of(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """For each norm of a known model, the names of the layers that read it."""
    found = {}
    for prefix, module, stream in described(model):
        for pattern, layers in stream.readers.items():
            for name in matching(module, pattern):
                parent = prefix + name.rpartition(".")[0]
                found[prefix + name] = tuple(f"{parent}.{layer}" for layer in layers)
    return found


def features(model: nn.Module, name: str, side: str) -> Iterator[tuple[nn.Module, str, int]]:
    """Owner, parameter and axis of the features that a layer puts "out" or takes "in"."""
    owner, _, leaf = name.rpartition(".")
    parent = model.get_submodule(owner)
    if parent._parameters.get(leaf) is not None:
        if side == "in":
            raise _checks.no_linear_layer(name, "a parameter", side)
        yield parent, leaf, -1
        return
    layer = model.get_submodule(name)
    axis = _axis(layer, side)
    if axis is None:
        raise _checks.no_linear_layer(name, type(layer).__name__, side)
    yield layer, "weight", axis
    if side == "out" and layer._parameters.get("bias") is not None:
        yield layer, "bias", 0


def _axis(layer: nn.Module, side: str) -> int | None:
    """Where the features lie in a layer's weight; None if it is not known to be linear."""
    weight = layer._parameters.get("weight")
    if weight is None or not weight.is_floating_point():
        return None
    if isinstance(layer, nn.Linear):
        return 0 if side == "out" else 1
    if type(layer).__name__ == "Conv1D" and type(layer).__module__.startswith("transformers."):
        return 1 if side == "out" else 0
    if side == "out" and isinstance(layer, nn.Embedding) and layer.max_norm is None:
        return 1
    if side == "out" and isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return 0
    return None
