"""A convention as data: its fields, what it refuses, its names and its eps."""

import importlib
import pickle
import re
from dataclasses import replace
from typing import Any

import normkit.numpy as nk
import numpy as np
import pytest

import normkit
from normkit import Convention
from normkit.conventions import LAYER_NORM, PRESETS, RMS_NORM
from normkit.testing import assert_same_bits, dtype_of

_X = np.float32([[1, 2, 3, 6], [2, 0, 1, 5]])

# (changed fields, the beginning of the text)
_REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"kind": "batch_norm"},
        "a convention's kind must be one of 'rms_norm', 'layer_norm', 'gated_rms_norm'; got",
    ),
    ({"statistics": "float8"}, "a convention's statistics must be one of 'exact', 'x',"),
    ({"statistics": "x", "variance": "fast"}, "a convention's variance='fast' must go with a mean"),
    ({"order": "affine"}, "a convention's order='affine' must have a mean to fold into the bias"),
    ({"kind": "layer_norm", "partial": 0.5}, "a convention's partial=0.5 must go with kind='rms"),
    (
        {"kind": "layer_norm", "order": "scale_input"},
        "a convention's order='scale_input' must go with kind='rms_norm'",
    ),
    (
        {"kind": "layer_norm", "variance": "fast"},
        "a convention's variance='fast' must go with rounded statistics, and 'exact' rounds none",
    ),
    ({"root": "divide"}, "a convention's root='divide' must go with rounded statistics"),
    ({"eps_place": "floor"}, "a convention's eps_place='floor' must go with rounded statistics"),
    (
        {"statistics": "x", "root": "divide", "order": "scale_first"},
        "a convention's root='divide' must go with order='normalize_first'",
    ),
    (
        {"statistics": "x", "eps_place": "floor", "root": "rsqrt"},
        "a convention's root='rsqrt' must go with eps_place='inside'",
    ),
    ({"offset_added": "before_cast"}, "a convention's offset_added='before_cast' must go with"),
    (
        {"offset_added": "before_cast", "offset": 1.0},
        "a convention's offset_added='before_cast' must go with an offset and a cast of scale",
    ),
    (
        {"kind": "layer_norm", "reduction": "sum"},
        "a convention's reduction='sum' must go with kind='rms_norm', as a variance is a mean",
    ),
    (
        {"kind": "gated_rms_norm"},
        "a convention's gate=None must go with kind='rms_norm', got kind='gated_rms_norm'; pass gate",
    ),
    ({"gate": "after"}, "a convention's gate='after' must go with kind='gated_rms_norm'"),
    ({"activation": "sigmoid"}, "a convention's activation='sigmoid' must go with a gate"),
    ({"partial": 0.5, "groups": 2}, "a convention's partial=0.5 must go with groups=1"),
    ({"partial": 0}, "a convention's partial must lie in 0 < p <= 1; got 0.0"),
    ({"groups": 0}, "a convention's groups must be at least 1; got 0"),
    ({"eps": -1.0}, "eps must be finite and at least 0, in units of x squared; got -1.0"),
    ({"eps": float("nan")}, "eps must be finite and at least 0, in units of x squared; got nan"),
    ({"offset": float("inf")}, "a convention's offset must be finite; got inf"),
]


@pytest.mark.parametrize(("fields", "text"), _REFUSED, ids=lambda v: str(v)[:40])
def test_what_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        Convention(**fields)


@pytest.mark.parametrize("field", ["eps", "offset", "partial", "groups"])
def test_a_number_is_a_number(field: str) -> None:
    with pytest.raises(TypeError, match=f"{field} must be an? .*; got str"):
        Convention(**{field: "1e-6"})
    with pytest.raises(TypeError, match=f"{field} must be an? .*; got bool"):
        Convention(**{field: True})


@pytest.mark.parametrize("kind", PRESETS)
def test_text_and_pickle_keep_a_convention(kind: str) -> None:
    for preset in PRESETS[kind].values():
        c = preset.convention
        assert c.kind == kind
        assert Convention.from_text(c.text) == pickle.loads(pickle.dumps(c)) == c
        assert eval(repr(c)) == c


def test_registries_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        RMS_NORM["mine"] = Convention()  # type: ignore[index]


def test_numpy_numbers_become_pythons() -> None:
    c = Convention(eps=np.float32(0.5), groups=np.int64(2), offset=1)
    assert c == Convention(eps=0.5, groups=2, offset=1.0)
    assert Convention.from_text(c.text) == c


def test_flax_dtype_takes_the_place_of_the_promoted_one() -> None:
    c = RMS_NORM["flax_nnx"].with_dtype("bfloat16")
    assert (c.input, c.scale, c.output, c.between) == ("bfloat16",) * 3 + (None,)
    assert RMS_NORM["llama"].with_dtype("bfloat16") is RMS_NORM["llama"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="got 'lama'; pass one of 'standard', 'torch', 'llama',"):
        normkit.rms_norm(_X, convention="lama")
    with pytest.raises(ValueError, match="got 'gemma', which is one of rms_norm only; pass one of"):
        normkit.layer_norm(_X, convention="gemma")


@pytest.mark.parametrize("function", ["rms_norm", "add_rms_norm", "rms_norm_vjp"])
def test_a_convention_of_the_other_norm_is_refused(function: str) -> None:
    arrays = (_X,) if function == "rms_norm" else (_X, _X)
    with pytest.raises(
        ValueError, match="must be one of rms_norm, as gate, order, root and eps differ"
    ):
        getattr(normkit, function)(*arrays, convention=LAYER_NORM["torch"])


def test_parts_must_fit_the_row() -> None:
    with pytest.raises(ValueError, match="divisible into the convention's groups=3; got 4"):
        normkit.rms_norm(_X, convention=replace(RMS_NORM["llama"], groups=3))
    with pytest.raises(ValueError, match=r"partial=0.1 must leave at least one element"):
        normkit.rms_norm(_X, convention=replace(RMS_NORM["llama"], partial=0.1))


def test_groups_of_a_row_that_devices_share_are_refused() -> None:
    jax = pytest.importorskip("jax")
    rms_norm = importlib.import_module("normkit.jax").rms_norm
    grouped = replace(RMS_NORM["llama"], groups=2)
    with pytest.raises(ValueError, match="split over axis_name='i' must be one group"):
        jax.vmap(lambda x: rms_norm(x, axis_name="i", convention=grouped), axis_name="i")(_X)


def test_pairs_serve_no_other_convention() -> None:
    with pytest.raises(ValueError, match="pairs: pairs only round as convention 'standard' does"):
        normkit.rms_norm(_X, convention="llama", kernel="pairs")
    same = replace(RMS_NORM["standard"], eps=1e-3)
    assert_same_bits(nk.rms_norm(_X, convention=same, kernel="pairs"), nk.rms_norm(_X, eps=1e-3))


@pytest.mark.parametrize("function", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_standard_is_a_convention_like_others(function: str, dtype: str) -> None:
    """By name, by object, from scratch; and the reader of fields gives the bits of the formula."""
    x = np.random.default_rng(0).standard_normal((64, 48)).astype(dtype_of(dtype))
    scale, bias = x[0] + 1, x[1]
    run = getattr(nk, function)
    by_name = run(x, scale, bias)
    standard = PRESETS[function]["standard"].convention
    assert_same_bits(run(x, scale, bias, convention=standard), by_name)
    eps = 1e-6 if function == "rms_norm" else 1e-5
    wide: Any = {"between": "wide", "scale": "wide", "bias": "wide"}
    assert_same_bits(
        run(x, scale, bias, convention=Convention(kind=function, eps=eps, **wide)), by_name
    )
    if dtype != "float64":  # whose squares the formula sums twice, and the reader too, in parts
        read = replace(standard, output=dtype)
        assert not read.rounds_once
        assert_same_bits(run(x, scale, bias, convention=read), by_name)


def test_eps_of_a_convention() -> None:
    """Worked by hand: a row of two elements x has mean square x^2."""
    x = np.full((1, 2), 1e-3)
    for name, eps in {"llama": 1e-6, "haiku": 1e-5, "keras": 1e-6, "torch": 2.0**-52}.items():
        y = nk.rms_norm(x, convention=name)
        assert abs(y[0, 0] - 1e-3 / np.sqrt(1e-6 + eps)) < 1e-6
    # torch's None is the spacing at 1 of the dtype of the statistics
    narrow = np.float32(x * 1e-1)
    y = nk.rms_norm(narrow, convention="torch")
    assert abs(y[0, 0] - 1e-4 / np.sqrt(1e-8 + 2.0**-23)) < 1e-6
    raw = replace(RMS_NORM["haiku"], eps="machine")  # statistics in the dtype of x
    y = nk.rms_norm(np.float16([[1, 1]]), convention=raw)
    assert abs(float(y[0, 0]) - 1 / np.sqrt(1 + 2.0**-10)) < 2.0**-10
    y = nk.layer_norm(np.float64([[-1e-2, 1e-2]]), convention="keras")
    assert abs(y[0, 1] - 1e-2 / np.sqrt(1e-4 + 1e-3)) < 1e-6


def test_modules_take_the_eps_of_their_convention() -> None:
    torch = pytest.importorskip("torch")
    layers = importlib.import_module("normkit.torch")
    x = torch.full((1, 2), 1e-3)
    for layer, eps in (
        (layers.RMSNorm(2, convention="haiku"), 1e-5),
        (layers.RMSNorm(2, 1e-2, convention="haiku"), 1e-2),
    ):
        assert abs(float(layer(x).detach()[0, 0]) - 1e-3 / (1e-6 + eps) ** 0.5) < 1e-5
    layer = layers.LayerNorm(2, None, convention="keras")
    assert (
        repr(layer)
        == "LayerNorm((2,), eps=None, elementwise_affine=True, bias=True, convention='keras')"
    )
    y = layer(torch.tensor([[-1e-2, 1e-2]])).detach()
    assert abs(float(y[0, 1]) - 1e-2 / (1e-4 + 1e-3) ** 0.5) < 1e-5
