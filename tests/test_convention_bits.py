"""Every convention gives the same bits in every framework, eager and compiled."""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backends import Subject, subjects

import normkit
from normkit import Convention
from normkit.conventions import PRESETS
from normkit.testing import assert_same_bits, dtype_of

_CONVENTIONS = {
    f"{kind}-{name}": preset.convention
    for kind in ("rms_norm", "layer_norm")
    for name, preset in PRESETS[kind].items()
}
# Fields that no preset has, or that none has together.
_COMPOSED = {
    "exact-offset": Convention(offset=1.0, between="wide", scale="wide", bias="wide"),
    "exact-groups": Convention(groups=4, between="wide", scale="wide", bias="wide"),
    "exact-partial": Convention(partial=0.3, between="wide", scale="wide", bias="wide"),
    "exact-outside": Convention(eps_place="outside", between="x", output=None),
    "exact-sum": Convention(reduction="sum", between="wide", scale="wide", bias="wide"),
    "sum-outside": Convention(reduction="sum", statistics="x", eps_place="outside"),
    "exact-first": Convention(order="scale_first", between="bfloat16", output="float32"),
    "exact-input": Convention(order="scale_input", input="float16"),
    "exact-affine": Convention(kind="layer_norm", order="affine", groups=3, output="bfloat16"),
    "paper-partial": replace(_CONVENTIONS["rms_norm-paper"], partial=0.0625),
    "llama-groups": replace(_CONVENTIONS["rms_norm-llama"], groups=8),
    "flax-groups": replace(_CONVENTIONS["layer_norm-flax"], groups=2),
    "floor-layer": Convention(kind="layer_norm", statistics="float32", eps_place="floor"),
}
_ALL = {**_CONVENTIONS, **_COMPOSED}

_MIXED = ("bfloat16", "float32")
_PAIRS = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    _MIXED,
    ("float32", "bfloat16"),
    ("bfloat16", "float16"),
    ("float16", "float32"),
)
# XLA and torch.compile take up to a second for each convention and pair: they see some pairs.
# What they compile is the same for every pair, up to the casts.
_SEEN = {
    "torch:cpu": _PAIRS,
    "core-torch:cpu": _PAIRS[:1],
    "torch:compile": (_MIXED,),
    "jax:cpu": (_PAIRS[0], _PAIRS[2], _MIXED),
    "flax:nnx-cpu": (_MIXED,),
    "flax:linen-cpu": (_MIXED,),
    "core-strict:cpu": _PAIRS[:1],
    "core-dask:cpu": _PAIRS[:1],
}
_HERE = [s for s in subjects()[0] if s.label in _SEEN]


def _arrays(x_dtype: str, scale_dtype: str, label: str, n: int = 96) -> list[Any]:
    """Rows of many sizes, a zero row, a constant one and a tiny one; scale and bias."""
    rng = np.random.default_rng(zlib.crc32(label.encode()))
    x = (rng.standard_normal((24, n)) + 0.3) * np.exp(rng.uniform(-9, 9, (24, 1)))
    x[0], x[1], x[2] = 0, 3, x[2] * 2.0**-130  # the last is subnormal in float32 and bfloat16
    parameters = rng.standard_normal((2, n))
    return [x.astype(dtype_of(x_dtype)), *parameters.astype(dtype_of(scale_dtype))]


def _cases(label: str, subject: Subject) -> Iterator[tuple[list[Any], Convention]]:
    c = _ALL[label]
    named = {c.input, c.between, c.output} & {"float16", "bfloat16"}
    for pair in _SEEN[subject.label]:
        if not named or set(subject.dtypes) > named:
            yield _arrays(*pair, label), c


@pytest.mark.parametrize("label", _ALL)
def test_bits_and_dtype_are_those_of_numpy(label: str) -> None:
    for subject in _HERE:
        for arrays, c in _cases(label, subject):
            y = subject.run(c.kind, *arrays, convention=c)
            expected = getattr(normkit.numpy, c.kind)(*arrays, convention=c)
            assert y.dtype == expected.dtype, subject.label
            assert_same_bits(y, expected)


@pytest.mark.parametrize("label", _ALL)
def test_bits_of_gradients_in_torch(label: str) -> None:
    """By autograd through the operators; JAX differentiates by itself, to within its rounding."""
    for subject in (s for s in _HERE if s.label == "torch:cpu"):
        for arrays, c in _cases(label, subject):
            y = subject.run(c.kind, *arrays, convention=c)
            dy = np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype)
            found = subject.gradients(c.kind, dy, *arrays, convention=c)
            expected = getattr(normkit.numpy, f"{c.kind}_vjp")(dy, *arrays, convention=c)
            for ours, theirs in zip(found, expected, strict=True):
                assert_same_bits(ours, theirs)


@pytest.mark.parametrize(
    "label", ["rms_norm-llama", "layer_norm-flax", "exact-groups", "exact-partial"]
)
@pytest.mark.parametrize("axis", [0, (0, 2), (2, 1), (-1, 0, 1)])
def test_several_axes_are_one_flattened_row(label: str, axis: Any) -> None:
    """Against the same numbers laid out as rows, axes in ascending order."""
    c = _ALL[label]
    run = getattr(normkit.numpy, c.kind)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 8, 6)).astype(np.float32)
    axes = sorted(a % 3 for a in ((axis,) if isinstance(axis, int) else axis))
    sizes = [x.shape[a] for a in axes]
    scale, bias = rng.standard_normal((2, *sizes)).astype(np.float32)
    y = run(x, scale, bias, axis=axis, convention=c)
    last = range(-len(axes), 0)
    rows = np.moveaxis(x, axes, last).reshape(-1, np.prod(sizes))
    flat = run(rows, scale.ravel(), bias.ravel(), convention=c)
    assert_same_bits(np.moveaxis(y, axes, last).reshape(rows.shape), flat)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    dx, dscale, _ = getattr(normkit.numpy, f"{c.kind}_vjp")(
        dy, x, scale, bias, axis=axis, convention=c
    )
    flat_dx, flat_dscale, _ = getattr(normkit.numpy, f"{c.kind}_vjp")(
        np.moveaxis(dy, axes, last).reshape(rows.shape), rows, scale.ravel(), None, convention=c
    )
    assert_same_bits(np.moveaxis(dx, axes, last).reshape(rows.shape), flat_dx)
    assert_same_bits(dscale.ravel(), flat_dscale)


def test_groups_are_rows_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x, scale = (rng.standard_normal(s).astype(np.float32) for s in ((5, 12), (12,)))
    grouped = replace(_ALL["rms_norm-gemma"], groups=3)
    y = normkit.numpy.rms_norm(x, scale, convention=grouped)
    for i in range(3):
        part = slice(4 * i, 4 * i + 4)
        alone = normkit.numpy.rms_norm(
            np.ascontiguousarray(x[:, part]), scale[part], convention="gemma"
        )
        assert_same_bits(np.ascontiguousarray(y[:, part]), alone)


def test_first_features_give_the_statistics() -> None:
    """pRMSNorm by hand: half of (3, 4, 5, 6) has mean square 12.5."""
    c = Convention(partial=0.5, eps=0.0)
    y = normkit.numpy.rms_norm(np.float64([[3, 4, 5, 6]]), convention=c)
    np.testing.assert_allclose(y, np.float64([[3, 4, 5, 6]]) / np.sqrt(12.5), rtol=2.0**-50)


@pytest.mark.parametrize("op", ["add_rms_norm", "add_layer_norm"])
def test_residual_and_a_convention(op: str) -> None:
    """y is the norm of the sum that is returned, in the dtype of the convention."""
    x, scale, bias = _arrays(*_MIXED, op)
    kind = op.removeprefix("add_")
    name = "llama" if kind == "rms_norm" else "deberta"
    expected = None
    for subject in (s for s in _HERE if s.label in ("torch:cpu", "jax:cpu")):
        y, total = subject.run(op, x, x[::-1].copy(), scale, bias, convention=name)
        assert (y.dtype.name, total.dtype.name) == ("float32", "bfloat16")
        assert_same_bits(y, getattr(normkit.numpy, kind)(total, scale, bias, convention=name))
        expected = total if expected is None else expected
        assert_same_bits(total, expected)


def test_out_has_the_dtype_of_the_result() -> None:
    x, scale, _ = _arrays(*_MIXED, "out")
    out = np.empty(x.shape, np.float32)
    assert normkit.numpy.rms_norm(x, scale, convention="llama", out=out) is out
    assert_same_bits(out, normkit.numpy.rms_norm(x, scale, convention="llama"))
    text = "out must have the dtype of the result, float32; got bfloat16"
    with pytest.raises(TypeError, match=text):
        normkit.numpy.rms_norm(x, scale, convention="llama", out=np.empty_like(x))


def test_a_dtype_that_a_framework_lacks() -> None:
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="rounds to bfloat16, a dtype that the framework must have"):
        normkit.rms_norm(strict.ones((2, 4)), convention=Convention(output="bfloat16"))


@pytest.mark.parametrize("label", ["rms_norm-llama", "rms_norm-haiku", "layer_norm-flax"])
def test_a_row_split_over_a_mapped_axis(label: str) -> None:
    """In JAX, four parts of each row with the sums taken across them: the bits of whole rows."""
    jax = pytest.importorskip("jax")
    functions = next(s for s in _HERE if s.label == "jax:cpu").backend.functions
    c = _ALL[label]
    x, scale, _ = _arrays("float32", "float32", label)
    function = getattr(functions, c.kind)

    def part(x: Any, scale: Any) -> Any:
        return function(x, scale, axis_name="parts", convention=c)

    whole = getattr(normkit.numpy, c.kind)(x, scale, convention=c)
    parts = (x.reshape(24, 4, 24).transpose(1, 0, 2), scale.reshape(4, 24))
    y = jax.vmap(part, axis_name="parts")(*(jax.numpy.asarray(p) for p in parts))
    assert_same_bits(np.asarray(y).transpose(1, 0, 2).reshape(24, 96), whole)
