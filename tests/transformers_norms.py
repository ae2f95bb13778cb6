"""The norm classes of the installed transformers: found by their syntax, built from a width.

Nothing is imported to find them, so that a class whose module needs something else is listed too.
"""

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

# Containers of a norm (a convolution and a norm, attention and a norm, whole models), and the
# batch and group norms, which are other things.
_OTHERS = re.compile(
    r"BatchNorm|Batchnorm|ConvNorm|NormConvLayer|GroupNorm|PreLayerNorm|NormedEmbedding"
    r"|NormAttentionNorm|Normaliz|Normal[A-Z]|^_|SpatialNorm|PatchTSMixerNormLayer|StableLayerNorm"
    r"|Unnormed|ConvDropout"
)
_WIDTH_NAMES = (
    "hidden_size",
    "dim",
    "normalized_shape",
    "size",
    "c_in",
    "num_channels",
    "feat_size",
)
_WIDTH = object()
# Classes that are built from a configuration: the attributes that they read.
_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "AXK2GatedRMSNorm": {
        "hidden_size": _WIDTH,
        "rms_norm_eps": 1e-6,
        "gate_rank": 8,
        "gated_norm_rank": 8,
        "hidden_act": "silu",
    },
    "AutoformerLayernorm": {"d_model": _WIDTH},
    "CpmAntLayerNorm": {"hidden_size": _WIDTH, "eps": 1e-6},
    "Phi4MultimodalAudioMeanVarianceNormLayer": {"input_size": _WIDTH},
    "VoxtralRealtimeTextAdaRmsNorm": {"hidden_size": _WIDTH},
    "ZayaQKNorm": {"head_dim": _WIDTH, "num_key_value_heads": 1},
}
# Constructor arguments beside the width.
_OPTIONS: dict[str, dict[str, Any]] = {
    "IntLayerNorm": {"eps": 1e-5},
    "StableLmLayerNormPerHead": {"num_heads": 2},
}
_TUPLE_OF_WIDTH = ("ChameleonLayerNorm",)
_WIDTH_WITHOUT_A_NAME = ("DINOv3ConvNextLayerNorm",)


class NormClass(NamedTuple):
    """A class by module and name."""

    module: str
    name: str

    def build(self, width: int) -> Any:
        """An instance for rows of this width; TypeError if no recipe fits."""
        found = getattr(importlib.import_module(self.module), self.name)
        arguments, options = _recipe(found, width)
        return found(*arguments, **options)


def norm_classes() -> Iterator[NormClass]:
    """All norm classes, in the order of their files."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        if path.name.startswith("modular_") or "dummy" in path.name:
            continue
        source = path.read_text(encoding="utf-8")
        if "norm" not in source.lower():
            continue
        module = ".".join(("transformers", *path.relative_to(root).with_suffix("").parts))
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and _is_norm(node):
                yield NormClass(module, node.name)


def _is_norm(node: ast.ClassDef) -> bool:
    methods = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
    named = "norm" in node.name.lower() and not _OTHERS.search(node.name)
    return named and bool(methods & {"forward", "_norm"})


def _recipe(found: type, width: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parameters = inspect.signature(found).parameters
    required = [n for n, p in parameters.items() if p.default is p.empty]
    options = dict(_OPTIONS.get(found.__name__, {}))
    if "group_size" in required:
        options["group_size"] = width
    if "config" in parameters:
        if found.__name__ not in _CONFIGURATIONS:
            raise TypeError("made from a configuration, and no recipe says which")
        attributes = _CONFIGURATIONS[found.__name__]
        given = {k: width if v is _WIDTH else v for k, v in attributes.items()}
        return (SimpleNamespace(**given),), {}
    if found.__name__ in _TUPLE_OF_WIDTH:
        return ((width,),), options
    takes_width = any(n in parameters for n in _WIDTH_NAMES) or "LayerNorm" in [
        base.__name__ for base in found.__mro__[1:]
    ]
    if takes_width or found.__name__ in _WIDTH_WITHOUT_A_NAME:
        return (width,), options
    return (), options
