"""`normkit.identify` on originals, on formulas written out here, and on things that are no norm."""

import importlib.util
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normkit
from normkit.conventions import LAYER_NORM, RMS_NORM
from normkit.testing import dtype_of

_NO_FLOAT64 = ("float32", "bfloat16", "float16")


def _mean_square(x: Any) -> Any:
    return (x * x).mean(-1, keepdims=True)


# ---- originals, and formulas as their sources have them -------------------------------------------


def _llama(x: Any, weight: Any) -> Any:
    import torch

    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * h.to(x.dtype)


def _gemma(x: Any, weight: Any) -> Any:
    import torch

    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h * (1.0 + weight.float())).type_as(x)


def _t5(x: Any, weight: Any) -> Any:
    import torch

    h = x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)
    if weight.dtype in (torch.float16, torch.bfloat16):
        h = h.to(weight.dtype)
    return weight * h


def _olmo(x: Any, weight: Any) -> Any:
    import torch

    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (weight * h).to(x.dtype)


def _torch(x: Any, weight: Any) -> Any:
    import torch

    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def _paper(x: Any, weight: Any) -> Any:
    norm = x.norm(2, dim=-1, keepdim=True)
    rms = norm * x.shape[-1] ** (-1.0 / 2)
    return weight * (x / (rms + 1e-8))


def _flax_nnx() -> Any:
    nnx = pytest.importorskip("flax.nnx")
    return nnx.RMSNorm(64, epsilon=1e-6, rngs=nnx.Rngs(0))


def _keras() -> Any:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.result_type(x.dtype, jnp.float32))
        h = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-6)
        return (h * scale.astype(wide.dtype)).astype(x.dtype)

    return norm


def _original(name: str) -> Any:
    made = {"flax_nnx": _flax_nnx, "keras": _keras}
    if name in made:
        return made[name]()
    pytest.importorskip("torch")
    torch_ones = {
        "llama": _llama,
        "gemma": _gemma,
        "t5": _t5,
        "olmo": _olmo,
        "torch": _torch,
        "paper": _paper,
    }
    return torch_ones[name]


def _documented() -> Any:
    path = Path(__file__).parent.parent / "docs" / "_identify.py"
    spec = importlib.util.spec_from_file_location("identify_page", path)
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    return page


_PAGE = _documented()
_EIGHT = _PAGE.EIGHT
_TOLD_APART = _PAGE.told_apart(_PAGE.PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("column", _PAGE.DTYPES)
@pytest.mark.parametrize("name", _EIGHT)
def test_eight_originals_are_told_apart_as_far_as_they_differ(name: str, column: str) -> None:
    """What is left together is what does not differ on other inputs either, and is documented."""
    dtypes = _PAGE.DTYPES[column]
    found = normkit.identify(_original(name), dtypes=dtypes)
    together = set(found.presets) & set(_EIGHT)
    assert together == _TOLD_APART[name, column]
    assert together == {other for other in _EIGHT if _alike(name, other, dtypes)}
    assert found.kind == "rms_norm"
    assert found.eps == RMS_NORM["paper" if name == "paper" else "llama"].eps
    assert found.agreed == found.probes


def _alike(name: str, other: str, dtypes: tuple[str, ...]) -> bool:
    """Whether two presets give the same on inputs of these dtypes, up to the noise of a sum."""
    for x, scale in _held_out(dtypes):
        with np.errstate(all="ignore"):
            a, b = (normkit.rms_norm(x, scale, eps=3e-5, convention=c) for c in (name, other))
            if a.dtype != b.dtype:
                return False
            unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
            noise = 6 * unit.get(a.dtype.name, 2.0**-52)
            a, b = a.astype(np.float64), b.astype(np.float64)
            largest = np.where(np.isfinite(b), np.abs(b), 0).max(-1, keepdims=True)
            off = np.abs(a - b) > (noise * largest if noise < 2.0**-16 else 0)
            if (off | (np.isfinite(a) != np.isfinite(b))).mean() > 0.005:
                return False
    return True


def _held_out(dtypes: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """Rows of many sizes down to eps, and tiny rows under a huge scale."""
    rng = np.random.default_rng(12)
    x = rng.standard_normal((64, 48)) * np.exp(rng.uniform(-10, 3, (64, 1)))
    scale = 1 + 0.3 * rng.standard_normal(48)
    for x_dtype, scale_dtype in itertools.product(dtypes, repeat=2):
        yield x.astype(dtype_of(x_dtype)), scale.astype(dtype_of(scale_dtype))
        if "float16" not in (x_dtype, scale_dtype):
            tiny, huge = np.ones((2, 48)) * 2.0**-59, np.full(48, 2.0**126)
            yield tiny.astype(dtype_of(x_dtype)), huge.astype(dtype_of(scale_dtype))


def test_fields_are_read_off() -> None:
    pytest.importorskip("torch")
    found = normkit.identify(_llama)
    assert found.presets == ("llama", "olmo1")
    assert found.fields["between"] == "x"
    assert "between" not in found.open_fields
    assert found.fields["root"] == "reciprocal"
    assert "rsqrt" in found.open_fields["root"]
    assert found.outputs["bfloat16, float32"] == "float32"
    assert found.outputs["bfloat16, bfloat16"] == "bfloat16"
    gemma = normkit.identify(_gemma)
    assert (gemma.fields["offset"], gemma.fields["offset_added"]) == (1.0, "after_cast")
    lowp = next(miss for miss in gemma.misses if miss.preset == "gemma_lowp")
    assert lowp.fields == ("offset_added",)


def test_the_nearest_miss_is_a_true_statement() -> None:
    """x, theirs and ours are what both give there."""
    pytest.importorskip("torch")
    found = normkit.identify(_olmo)
    miss = found.misses[0]
    assert miss.departs >= 1
    assert miss.preset not in found.presets
    assert miss.fields
    if miss.how == "dtype":
        assert miss.dtypes[2] != miss.dtypes[3]
    else:
        assert miss.theirs != miss.ours


# ---- every preset -----------------------------------------------------------------------------------


def _follows(convention: Any) -> Callable[..., Any]:
    function = getattr(normkit, convention.kind)
    return lambda x, scale=None, bias=None: function(x, scale, bias, convention=convention)


_KINDS = (("rms_norm", RMS_NORM), ("layer_norm", LAYER_NORM))
_PRESETS = [(k, n) for k, p in _KINDS for n, c in p.items() if c.reduction == "mean"]


@pytest.mark.parametrize(("kind", "name"), _PRESETS)
def test_every_preset_is_recognised_with_its_eps(kind: str, name: str) -> None:
    convention = (RMS_NORM if kind == "rms_norm" else LAYER_NORM)[name]
    found = normkit.identify(_follows(convention))
    assert found.kind == kind
    assert name in found.presets
    assert found.eps == (2.0**-23 if convention.eps == "machine" else convention.eps)
    assert found.eps_place == convention.eps_place
    assert found.equal_bits == found.probes


def test_one_rounding_more_tells_two_presets_apart() -> None:
    """llama_x rounds twice where olmo rounds once; both give the dtype of x."""
    assert "olmo" not in normkit.identify(_follows(RMS_NORM["llama_x"])).presets
    assert "llama_x" not in normkit.identify(_follows(RMS_NORM["olmo"])).presets


def test_the_dtype_of_the_result_counts_where_the_numbers_are_equal() -> None:
    rounded = _follows(RMS_NORM["llama_x"])
    found = normkit.identify(lambda x, scale: rounded(x, scale).astype(np.float32))
    assert "llama_x" not in found.presets
    assert found.outputs["bfloat16, bfloat16"] == "float32"


@pytest.mark.parametrize("eps", [1e-12, 3e-8, 1e-5, 1e-3, 0.25])
@pytest.mark.parametrize("name", ["torch", "paper", "l2max"])
def test_eps_is_read_off(name: str, eps: float) -> None:
    found = normkit.identify(_follows(replace(RMS_NORM[name], eps=eps)))
    assert found.eps == pytest.approx(eps, rel=1e-5)
    assert name in found.presets


@pytest.mark.parametrize("width", [16, 33, 64, 300])
def test_width_partial_and_groups(width: int) -> None:
    half = replace(RMS_NORM["llama"], partial=0.5)
    found = normkit.identify(_follows(half), width=width)
    assert "llama" in found.presets
    assert found.fields["partial"] == pytest.approx(0.5, abs=1 / width)
    groups = 3 if width % 3 == 0 else 4
    grouped = replace(LAYER_NORM["torch"], groups=groups)
    found = normkit.identify(_follows(grouped), width=width)
    assert "torch" in found.presets
    assert found.fields["groups"] == groups


def test_a_convention_without_a_name_is_found_field_by_field() -> None:
    mine = replace(RMS_NORM["gemma"], between="x", eps=1e-5)
    assert mine not in RMS_NORM.values()
    found = normkit.identify(_follows(mine))
    assert found.presets == ()
    assert "between" in found.departs
    assert found.convention is not None
    assert found.agreed == found.probes
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
    scale = np.linspace(-0.5, 0.5, 64, dtype=np.float32)
    np.testing.assert_array_equal(
        normkit.rms_norm(x, scale, convention=found.convention),
        normkit.rms_norm(x, scale, convention=mine),
    )


# ---- no norm, or a norm with a fault ----------------------------------------------------------------


def _like(x: Any, y: Any, weight: Any) -> Any:
    return (y if weight is None else y * weight).astype(x.dtype)


def _softmax(x: Any) -> Any:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return _like(x, e / e.sum(-1, keepdims=True), None)


def _l2(x: Any, weight: Any = None) -> Any:
    w = x.astype(np.float64)
    return _like(x, w / np.sqrt((w * w).sum(-1, keepdims=True) + 1e-6), weight)


def _batch_norm(x: Any, weight: Any = None) -> Any:
    w, axes = x.astype(np.float64), tuple(range(x.ndim - 1))
    return _like(x, (w - w.mean(axes)) / np.sqrt(w.var(axes) + 1e-5), weight)


def _outside(x: Any, weight: Any = None) -> Any:
    w = x.astype(np.float64)
    return _like(x, w / (np.sqrt(_mean_square(w)) + 1e-6), weight)


def _unbiased(x: Any, weight: Any = None) -> Any:
    w = x.astype(np.float64)
    d = w - w.mean(-1, keepdims=True)
    return _like(x, d / np.sqrt(w.var(-1, ddof=1, keepdims=True) + 1e-5), weight)


def _wrong_axis(x: Any, weight: Any = None) -> Any:
    w = x.astype(np.float64)
    return _like(x, w / np.sqrt((w * w).mean(0, keepdims=True) + 1e-6), weight)


def _variance_without_centring(x: Any, weight: Any = None) -> Any:
    w = x.astype(np.float64)
    return _like(x, w / np.sqrt(w.var(-1, keepdims=True) + 1e-6), weight)


def _clipped(x: Any) -> Any:
    w = x.astype(np.float64)
    return _like(x, np.clip(w / np.sqrt(_mean_square(w) + 1e-6), -2.5, 2.5), None)


_STRANGERS = [
    (_softmax, "statistics", "four times as large"),
    (_l2, "reduction", "'sum': divided by the root of the sum of squares"),
    (_batch_norm, "axis", "a row of the batch"),
    (lambda x: x, "statistics", "four times as large"),
    (lambda x, weight: x * weight, "statistics", "four times as large"),
    (lambda x: np.sign(x), "axis", "no feature of a row depends"),
    (_outside, "eps_place", "'outside'"),
    (_unbiased, "variance", "divided by n - 1 = 63"),
    (_wrong_axis, "axis", "a row of the batch"),
    (_variance_without_centring, "statistics", "no mean is subtracted"),
    (_clipped, "probe", "departs at"),
]


@pytest.mark.parametrize(
    ("thing", "field", "text"), _STRANGERS, ids=lambda v: getattr(v, "__name__", None)
)
def test_what_follows_no_preset_gets_none_and_the_field(thing: Any, field: str, text: str) -> None:
    with np.errstate(all="ignore"):
        found = normkit.identify(thing)
    assert found.presets == ()
    assert found.preset is None
    assert field in found.departs
    assert any(text in finding.found for finding in found.findings)
    assert found.misses[0].departs > 0


def test_rows_of_length_1_are_no_norm_and_the_field_is_named() -> None:
    found = normkit.identify(_follows(RMS_NORM["l2sum"]))
    assert (found.presets, found.departs) == ((), ("reduction",))


def test_torch_things_that_are_no_norm() -> None:
    torch = pytest.importorskip("torch")
    for module in (
        torch.nn.BatchNorm1d(64),
        torch.nn.BatchNorm1d(64).eval(),
        torch.nn.Identity(),
        torch.nn.Linear(64, 64),
        torch.nn.Softmax(-1),
    ):
        assert normkit.identify(module).presets == ()


# ---- modules ----------------------------------------------------------------------------------------


def _torch_state(module: Any) -> Any:
    return {name: (value.dtype, value.clone()) for name, value in module.state_dict().items()}


def test_torch_modules_stay_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.LayerNorm(48, dtype=torch.bfloat16)
    torch.nn.init.normal_(module.weight)
    weight, before = module.weight, _torch_state(module)
    found = normkit.identify(module)
    assert found.presets[:1] == ("torch",)
    assert found.width == 48
    assert found.parameters == {"weight": "scale", "bias": "bias"}
    assert module.weight is weight
    assert module.training
    assert module.weight.requires_grad
    for name, (dtype, value) in before.items():
        assert module.state_dict()[name].dtype == dtype
        assert torch.equal(module.state_dict()[name], value)


def test_torch_module_forms() -> None:
    torch = pytest.importorskip("torch")

    class ChannelsFirst(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64))
            self.bias = torch.nn.Parameter(torch.zeros(64))

        def forward(self, x: Any) -> Any:
            y = torch.nn.functional.layer_norm(x.movedim(1, -1), (64,), self.weight, self.bias)
            return y.movedim(-1, 1)

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64))

        def forward(self, x: Any, gate: Any) -> Any:
            return _llama(x, self.weight) * torch.nn.functional.silu(gate).to(x.dtype)

    class Unused(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64))

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.rms_norm(x, (64,)), None

    first = normkit.identify(ChannelsFirst())
    assert (first.preset, first.axis) == ("torch", 1)
    gated = normkit.identify(Gated())
    assert "gate" in gated.call
    assert gated.eps == 1e-6
    unused = normkit.identify(Unused())
    assert unused.parameters == {"weight": "unused"}
    assert "torch" in unused.presets


def test_a_factory_and_a_class() -> None:
    torch = pytest.importorskip("torch")
    assert normkit.identify(torch.nn.RMSNorm).width == 64
    found = normkit.identify(torch.nn.RMSNorm, args=(32,), options={"eps": 1e-4})
    assert (found.preset, found.width, found.eps) == ("torch", 32, 1e-4)
    assert normkit.identify(lambda: torch.nn.RMSNorm(16), args=()).width == 16


def test_machine_eps() -> None:
    torch = pytest.importorskip("torch")
    found = normkit.identify(torch.nn.RMSNorm(64))
    assert found.convention is not None
    assert found.convention.eps == "machine"
    assert found.eps == 2.0**-23


def test_flax_modules() -> None:
    nnx = pytest.importorskip("flax.nnx")
    linen = pytest.importorskip("flax.linen")
    module = nnx.LayerNorm(64, rngs=nnx.Rngs(0))
    scale = module.scale
    before = np.asarray(module.scale[...])
    found = normkit.identify(module)
    assert set(found.presets) == {"flax", "flax_nnx"}
    assert found.eps == 1e-6
    assert found.fields["variance"] == "fast_clamped"
    assert module.scale is scale
    np.testing.assert_array_equal(np.asarray(module.scale[...]), before)
    assert normkit.identify(linen.LayerNorm(use_fast_variance=False)).presets == ("flax_slow",)
    assert "flax" in normkit.identify(linen.RMSNorm()).presets


def test_a_compute_dtype_is_named() -> None:
    nnx = pytest.importorskip("flax.nnx")
    found = normkit.identify(nnx.RMSNorm(64, dtype="bfloat16", rngs=nnx.Rngs(0)))
    assert found.presets == ("flax_nnx, dtype=bfloat16",)


def test_equinox_modules() -> None:
    equinox = pytest.importorskip("equinox")
    module = equinox.nn.LayerNorm(64)
    found = normkit.identify(module)
    assert "equinox" in found.presets
    assert found.parameters == {"weight": "scale", "bias": "bias"}
    assert "equinox" in normkit.identify(equinox.nn.RMSNorm(32)).presets
    bare = normkit.identify(equinox.nn.LayerNorm(64, use_weight=False, use_bias=False))
    assert "equinox" in bare.presets
    assert bare.parameters == {}


def test_compiled_functions() -> None:
    """A compiler that fuses and contracts is asked as it runs."""
    jax = pytest.importorskip("jax")
    found = normkit.identify(jax.jit(_keras()))
    assert "keras" in found.presets
    assert found.eps == 1e-6


def test_keras_layers() -> None:
    keras = pytest.importorskip("keras")
    layer = keras.layers.LayerNormalization()
    layer.build((2, 32))
    layer.gamma.assign(np.full(32, 3.0))
    found = normkit.identify(layer)
    assert found.eps == 1e-3
    assert found.width == 32
    backend = keras.backend.backend()
    expected = {"jax": "keras", "numpy": "keras_fast", "tensorflow": "keras", "torch": "torch"}
    assert expected[backend] in found.presets
    np.testing.assert_array_equal(np.asarray(layer.gamma), 3.0)
    assert normkit.identify(keras.layers.UnitNormalization()).presets == ()


def test_normkits_own_modules_are_standard() -> None:
    torch = pytest.importorskip("normkit.torch")
    assert normkit.identify(torch.RMSNorm(64)).presets == ("standard",)
    gemma = torch.RMSNorm(64, convention="gemma")
    assert "gemma" in normkit.identify(gemma).presets


# ---- the result, and errors ---------------------------------------------------------------------------


def test_the_result_is_plain_data_and_text() -> None:
    with np.errstate(all="ignore"):
        found = normkit.identify(_outside)
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["presets"] == []
    assert data["findings"][0]["field"] == "eps_place"
    text = str(found)
    assert "none of the presets" in text
    assert "eps_place" in text
    with pytest.raises(AttributeError):
        found.eps = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("thing", "options", "error", "text"),
    [
        (3, {}, TypeError, "a norm must be a function or a module; got int; pass what is called"),
        (
            lambda x, a, b, c: x,
            {},
            TypeError,
            "got one with the argument 'c' too; wrap it, for example in",
        ),
        (lambda x: x[0], {}, ValueError, "a norm must give a result of the shape of x"),
        (lambda x: x, {"width": 2}, ValueError, "width must be at least 8"),
        (lambda x: x, {"width": 2.5}, TypeError, "width must be an int; got 2.5"),
        (lambda x: x, {"kind": "batch"}, ValueError, "kind must be one of rms_norm, layer_norm"),
        (lambda x: x, {"dtypes": ("float8",)}, ValueError, "dtypes must be some of float16, bfl"),
        (lambda x: x, {"dtypes": ()}, ValueError, "dtypes must be some of float16, bfl"),
    ],
)
def test_errors(thing: Any, options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        normkit.identify(thing, **options)
    assert text in str(caught.value)
