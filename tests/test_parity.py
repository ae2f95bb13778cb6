"""Each preset against the installed original that it follows, at a stated criterion.

What is left between them is the original's own float32 sum: of another order, and so some ULPs
from the exact one. It shows in all float32 results, and in few half ones, where it flips a
rounding. Where the statistics themselves are of a half type, nothing is left: equal bits.
"""

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import normkit.numpy
import numpy as np
import originals
import pytest

from normkit import Convention
from normkit.conventions import GATED_RMS_NORM, LAYER_NORM, RMS_NORM
from normkit.testing import dtype_of, real_activations, ulp

_BF16, _F16, _F32 = "bfloat16", "float16", "float32"
_SAME = ((_F32, _F32), (_BF16, _BF16), (_F16, _F16))
_WITH_FLOAT32 = (*_SAME, (_BF16, _F32), (_F16, _F32))
_ALL = (*_WITH_FLOAT32, (_F32, _BF16), (_F32, _F16), (_BF16, _F16))
_PRECISION = {_BF16: 8, _F16: 11, _F32: 24}


class Criterion(NamedTuple):
    """What may differ.

    Attributes:
        share: Of the elements, where some step rounds to a half type.
        half: ULPs of that type at the row's largest element.
        single: ULPs of float32 at the row's largest element, where every step is float32.
    """

    share: float
    half: float
    single: float


# One flipped rounding is one ULP; measured: at most 4.9e-4 of the elements. The roundings of a
# float32 sum of n <= 384 terms, of the root, its reciprocal and two products: at most 4 measured,
# and 6 leaves room for a machine that sums in another order.
NOISE = Criterion(1e-3, 1.0, 6.0)
EQUAL = Criterion(0.0, 0.0, 6.0)
# MLX adds up a row in float32 by one accumulator after the other: 13 ULP measured.
MLX = Criterion(1e-3, 1.0, 24.0)


class Parity(NamedTuple):
    """One comparison; ``original`` is called only where its package is installed.

    ``own_eps`` is for an original whose eps cannot be set: it is the convention's default.
    """

    label: str
    convention: Convention
    original: Callable[[], originals.Original]
    criterion: Criterion = NOISE
    pairs: tuple[tuple[str, str], ...] = _ALL
    scale: bool = True
    bias: bool = False
    own_eps: bool = False

    @property
    def package(self) -> str:
        """The first word of the label."""
        return self.label.split(" ")[0]


def _transformers(
    name: str, module: str, convention: Convention, *more: Any, **options: Any
) -> Parity:
    build = {k: options.pop(k) for k in ("build", "call", "channel_axis") if k in options}
    module, cls = f"{module}.modeling_{module}", name.split(" ")[0]
    return Parity(
        f"transformers {name}",
        convention,
        lambda: originals.transformers_class(cls, module, **build),
        *more,
        **options,
    )


# Formulas as the sources of google-deepmind/gemma, bzhangGo/rmsnorm and MaxText have them: their
# packages are not installed, or need not be.


def _gemma_flax(x: Any, s: Any, b: Any, eps: float) -> Any:
    import jax

    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * (1 + s)


def _paper_tf(x: Any, s: Any, b: Any, eps: float) -> Any:
    import jax

    return s * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps)


def _in_float32(x: Any, eps: float) -> Any:
    import jax

    x = x.astype("float32")
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps)


def _maxtext(x: Any, s: Any, b: Any, eps: float) -> Any:
    return _in_float32(x, eps).astype(x.dtype) * s.astype(x.dtype)


def _maxtext_offset(x: Any, s: Any, b: Any, eps: float) -> Any:
    return (_in_float32(x, eps) * (s.astype("float32") + 1.0)).astype(x.dtype)


def _bare(cls: Any, n: int) -> Any:
    return cls()


def _falcon(before: bool) -> Any:
    return lambda cls, n: cls(n, n_groups=3, norm_before_gate=not before)


_R, _L, _G = RMS_NORM, LAYER_NORM, GATED_RMS_NORM
_BF16_ONLY = ((_BF16, _F32), (_BF16, _BF16), (_F32, _F32))
_ROWS = [
    Parity("torch rms_norm", _R["torch"], lambda: originals.torch_function("rms_norm")),
    Parity(
        "torch layer_norm",
        _L["torch"],
        lambda: originals.torch_function("layer_norm"),
        pairs=_WITH_FLOAT32,
        bias=True,
    ),
    Parity("flax linen.RMSNorm", _R["flax"], lambda: originals.linen("rms_norm")),
    Parity("flax nnx.RMSNorm", _R["flax_nnx"], lambda: originals.nnx("rms_norm")),
    Parity("flax linen.LayerNorm", _L["flax"], lambda: originals.linen("layer_norm"), bias=True),
    Parity("flax nnx.LayerNorm", _L["flax_nnx"], lambda: originals.nnx("layer_norm"), bias=True),
    Parity(
        "flax linen.LayerNorm slow",
        _L["flax_slow"],
        lambda: originals.linen("layer_norm", use_fast_variance=False),
        bias=True,
    ),
    Parity(
        "flax linen.RMSNorm dtype=bfloat16",
        _R["flax"].with_dtype(_BF16),
        lambda: originals.linen("rms_norm", _BF16),
        pairs=_BF16_ONLY,
    ),
    Parity(
        "flax nnx.RMSNorm dtype=bfloat16",
        _R["flax_nnx"].with_dtype(_BF16),
        lambda: originals.nnx("rms_norm", _BF16),
        pairs=_BF16_ONLY,
    ),
    Parity("equinox RMSNorm", _R["equinox"], lambda: originals.equinox("rms_norm"), bias=True),
    Parity("equinox LayerNorm", _L["equinox"], lambda: originals.equinox("layer_norm"), bias=True),
    Parity("haiku RMSNorm", _R["haiku"], lambda: originals.haiku("rms_norm"), EQUAL, _SAME),
    Parity("haiku LayerNorm", _L["haiku"], lambda: originals.haiku("layer_norm"), EQUAL, bias=True),
    Parity(
        "haiku LayerNorm fast",
        _L["haiku_fast"],
        lambda: originals.haiku("layer_norm", use_fast_variance=True),
        EQUAL,
        _SAME,
        bias=True,
    ),
    Parity("jax of gemma", _R["gemma_flax"], lambda: originals.on_jax(_gemma_flax), EQUAL),
    Parity("jax of paper_tf", _R["paper_tf"], lambda: originals.on_jax(_paper_tf), EQUAL, _SAME),
    Parity("jax of maxtext", _R["maxtext"], lambda: originals.on_jax(_maxtext)),
    Parity(
        "jax of maxtext_offset",
        _R["maxtext_offset"],
        lambda: originals.on_jax(_maxtext_offset),
    ),
    Parity("mlx rms_norm", _R["mlx"], lambda: originals.mlx("rms_norm"), MLX),
    Parity("mlx layer_norm", _L["mlx"], lambda: originals.mlx("layer_norm"), MLX, bias=True),
    Parity("onnx RMSNormalization", _R["onnx"], lambda: originals.onnx("rms_norm"), NOISE, _SAME),
    Parity(
        "onnx LayerNormalization",
        _L["onnx"],
        lambda: originals.onnx("layer_norm"),
        NOISE,
        _SAME,
        bias=True,
    ),
    _transformers("LlamaRMSNorm", "llama", _R["llama"]),
    _transformers("GemmaRMSNorm", "gemma", _R["gemma"]),
    _transformers("Gemma2RMSNorm", "gemma2", _R["gemma"]),
    _transformers("Gemma3RMSNorm", "gemma3", _R["gemma"]),
    _transformers("Gemma3nRMSNorm", "gemma3n", _R["gemma4"]),
    _transformers("Gemma4RMSNorm", "gemma4", _R["gemma4"]),
    _transformers("T5LayerNorm", "t5", _R["t5"]),
    _transformers("Olmo2RMSNorm", "olmo2", _R["olmo"]),
    _transformers("DeepseekV4RMSNorm", "deepseek_v4", _R["olmo"]),
    _transformers("GptOssRMSNorm", "gpt_oss", _R["olmo"]),
    _transformers("HeliumRMSNorm", "helium", _R["gemma4"]),
    _transformers("MuseSparkTextCenteredRMSNorm", "muse_spark", _R["gemma_lowp"]),
    _transformers("MuseSparkTextInputScaledRMSNorm", "muse_spark", _R["input_scaled"]),
    _transformers(
        "DeepseekV4UnweightedRMSNorm",
        "deepseek_v4",
        _R["ds4_unweighted"],
        NOISE,
        _SAME,
        scale=False,
        build=_bare,
    ),
    _transformers(
        "NanoChatRMSNorm", "nanochat", _R["weightless"], NOISE, _SAME, scale=False, build=_bare
    ),
    _transformers("ImageGPTLayerNorm", "imagegpt", _R["imagegpt"], EQUAL),
    _transformers("GradiumPhononTTSTimestepNorm", "gradium_phonon_tts", _R["timestep"], EQUAL),
    _transformers("Qwen3NextRMSNormGated", "qwen3_next", _G["gated_post"]),
    _transformers(
        "Qwen3NextRMSNormGated open", "qwen3_next", _R["llama_x"], call=originals.open_gate
    ),
    _transformers("OlmoHybridRMSNormGated", "olmo_hybrid", _G["gated_post"]),
    _transformers("KimiLinearRMSNormGated", "kimi_linear", _G["gated_sigmoid"]),
    _transformers(
        "MambaRMSNormGated",
        "mamba2",
        replace(_G["gated_pre"], groups=3),
        build=lambda cls, n: cls(n, n // 3),
    ),
    _transformers(
        "BambaRMSNormGated",
        "bamba",
        _G["gated_pre"],
        build=lambda cls, n: cls(n, n),
    ),
    _transformers(
        "FalconH1RMSNormGated",
        "falcon_h1",
        replace(_R["olmo"], kind="gated_rms_norm", gate="after", groups=3),
        build=_falcon(before=False),
    ),
    _transformers(
        "FalconH1RMSNormGated before",
        "falcon_h1",
        replace(_R["olmo"], kind="gated_rms_norm", gate="before", groups=3),
        build=_falcon(before=True),
    ),
    _transformers(
        "MambaRMSNormGated without gate",
        "mamba2",
        replace(_R["llama"], groups=3),
        build=lambda cls, n: cls(n, n // 3),
    ),
    Parity(
        "transformers ZayaQKNorm",
        _R["l2max_factor"],
        originals.query_of_zaya,
        EQUAL,
        _SAME,
        scale=False,
        own_eps=True,
    ),
    _transformers("CohereLayerNorm", "cohere", _L["cohere"]),
    _transformers("DebertaLayerNorm", "deberta", _L["deberta"], bias=True),
    _transformers("OlmoLayerNorm", "olmo", _L["olmo_np"], NOISE, _SAME, scale=False),
    _transformers("NemotronLayerNorm1P", "nemotron", _L["ln1p"], NOISE, _WITH_FLOAT32, bias=True),
    _transformers("VitDetLayerNorm", "vitdet", _L["vitdet"], EQUAL, bias=True, channel_axis=True),
    _transformers(
        "ChameleonLayerNorm",
        "chameleon",
        _L["rounded_torch"],
        bias=True,
        build=lambda cls, n: cls((n,)),
    ),
    _transformers("MoonshineStreamingLayerNorm", "moonshine_streaming", _L["rounded_torch_1p"]),
    _transformers("PocketTTSFlowLayerNorm", "pocket_tts", _L["flow"], EQUAL, bias=True),
]


def _installed(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install --group originals")


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row.label)
def test_parity(row: Parity) -> None:
    _installed(row.package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an original's imports are its own affair
        original = row.original()
    _compare(row, original)


def _compare(row: Parity, original: originals.Original) -> None:
    c = row.convention
    eps = float(c.eps) if c.eps != "machine" else 1e-6
    ours_eps = None if row.own_eps else eps
    for pair in row.pairs:
        elements = differing = 0
        for x, scale, bias in _inputs(row, *pair):
            gate = () if c.gate is None else (_gate(x),)
            theirs = original(x, scale, bias, eps, *gate)
            ours = getattr(normkit.numpy, c.kind)(x, *gate, scale, bias, eps=ours_eps, convention=c)
            assert ours.dtype == theirs.dtype, pair
            unit = _unit(c, x, scale, bias, ours)
            a, b = ours.astype(np.float64), theirs.astype(np.float64)
            assert (np.isfinite(a) == np.isfinite(b)).all(), pair
            finite = np.isfinite(a)
            largest = np.abs(np.where(finite, b, 0)).max(axis=-1, keepdims=True)
            distance = np.where(finite, np.abs(a - b), 0) / ulp(np.maximum(largest, 1e-30), unit)
            allowed = row.criterion.single if unit == _F32 else row.criterion.half
            assert distance.max() <= allowed, (pair, unit, distance.max())
            elements += a.size
            differing += np.count_nonzero(finite & (a != b))
        if unit != _F32:
            assert differing / elements <= row.criterion.share, (pair, differing, elements)


def _inputs(row: Parity, x_dtype: str, scale_dtype: str) -> Iterator[tuple[Any, Any, Any]]:
    """Random rows, rows of many sizes, and recorded activations; 96 rows of each.

    A multiple of 32 rows: PyTorch rounds the rsqrt of a bfloat16 tensor twice in its tail.
    """
    c, rng = row.convention, np.random.default_rng(7)
    centre = 0.5 if c.kind == "layer_norm" else 0.0
    cases = []
    for n, spread in ((384, 0), (129, 0), (255, 8)):
        x = rng.standard_normal((96, n)) + centre
        x = x * np.exp(rng.uniform(-spread, spread, (96, 1)))
        cases.append((x, 1 + 0.3 * rng.standard_normal(n), 0.2 * rng.standard_normal(n)))
    for case in real_activations("float32"):
        if case.op == c.kind.removeprefix("gated_"):
            bias = np.linspace(-1, 1, case.x.shape[-1]) if case.bias is None else case.bias
            cases.append((np.tile(case.x, (6, 1))[:96], case.scale, bias))
    for x, scale, bias in cases:
        parameters = [(p).astype(dtype_of(scale_dtype)) for p in (scale - c.offset, bias)]
        wanted = (row.scale, row.bias)
        yield (
            x.astype(dtype_of(x_dtype)),
            *(p if w else None for p, w in zip(parameters, wanted, strict=True)),
        )


def _gate(x: Any) -> Any:
    return (2 * np.random.default_rng(8).standard_normal(x.shape)).astype(x.dtype)


def _unit(c: Convention, x: Any, scale: Any, bias: Any, y: Any) -> str:
    """The narrowest dtype that is rounded to on the way: what one flipped rounding moves."""
    from normkit._values import dtypes_of

    dtypes = dtypes_of(x, scale, bias)
    found = (y.dtype.name, dtypes.of_statistics(c), dtypes.of(c.between))
    return min((d for d in found if d), key=lambda d: _PRECISION[d])


# ---- Keras, whose backend is chosen when it is imported ------------------------------------------

_KERAS_VARIABLE = "KERAS_BACKEND"
_KERAS = {
    ("rms_norm", None): {
        "jax": _R["keras"],
        "numpy": _R["keras"],
        "torch": replace(_R["keras"], root="reciprocal"),
    },
    ("layer_norm", None): {
        "jax": _L["keras"],
        "numpy": _L["keras_fast"],
        "torch": replace(_L["torch"], scale="at_least_float32", bias="at_least_float32", eps=1e-3),
    },
    ("rms_norm", "mixed_bfloat16"): {
        "jax": _R["keras_mixed"],
        "torch": replace(_R["keras_mixed"], root="reciprocal"),
    },
}


@pytest.mark.parametrize(("kind", "policy"), _KERAS, ids=str)
def test_keras(kind: str, policy: str | None) -> None:
    _installed("keras")
    os.environ.setdefault(_KERAS_VARIABLE, "jax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = importlib.import_module("keras").backend.backend()
        original = originals.keras(kind, policy)
    conventions = _KERAS[kind, policy]
    if backend not in conventions:
        pytest.skip(f"Keras has no such policy on {backend}")
    pairs = ((_BF16, _F32),) if policy else _ALL
    row = Parity(
        "keras", conventions[backend], lambda: original, NOISE, pairs, True, kind != "rms_norm"
    )
    _compare(row, original)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_keras_on_another_backend(backend: str) -> None:
    """The test above once more, in a process of its own."""
    _installed("keras")
    if _KERAS_VARIABLE in os.environ and os.environ[_KERAS_VARIABLE] != "jax":
        pytest.skip("this is that process")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        str(Path(__file__)),
        "-k",
        "test_keras and not backend",
    ]
    environment = {**os.environ, _KERAS_VARIABLE: backend, "PYTHONSAFEPATH": "1"}
    run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stdout[-2000:]
    assert "2 passed" in run.stdout or "3 passed" in run.stdout


def test_every_preset_that_claims_an_original_has_one() -> None:
    from normkit.conventions import PRESETS

    compared = [row.convention for row in _ROWS]
    compared += [c for rows in _KERAS.values() for c in rows.values()]
    compared = [replace(c, groups=1) for c in compared]
    for kind, presets in PRESETS.items():
        for name, preset in presets.items():
            found = preset.convention in compared
            claims = preset.checked == "original" and name != "standard"
            assert found or not claims, (kind, name)
