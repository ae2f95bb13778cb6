"""Carrying a norm's parameters from one implementation to another: offset, and names."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import array_api_compat

from normkit import _checks
from normkit._arithmetic import Arithmetic, arithmetic_of
from normkit._convention import Convention
from normkit._presets import convention_of
from normkit._values import Dtypes

Array = Any
Path = TypeVar("Path", str, tuple[Any, ...])


class ConvertedScale(NamedTuple):
    """A scale for another convention.

    Attributes:
        weights: What to store.
        changed: Number of elements for which the target multiplies by another number than the
            source did. 0: the conversion loses nothing.
    """

    weights: Array
    changed: int


def convert_scale(
    weights: Array,
    source: str | Convention,
    target: str | Convention,
    *,
    kind: str = "rms_norm",
    dtype: str | None = None,
) -> ConvertedScale:
    """The scale that gives under ``target`` the factor that ``weights`` give under ``source``.

    An implementation multiplies by s = weights + offset, where offset is 1 or 0. The result is
    s - offset of the target. Each addition is rounded as the convention has it: to float32 where
    the weights are cast before the offset is added (Gemma), to their own dtype where they are
    not (gemma_lowp). The subtraction is exact, then rounded once to ``dtype``.

    Args:
        weights: The scale as stored for ``source``, of any framework and shape.
        source, target: Conventions by name or object.
        kind: "rms_norm" or "layer_norm", for conventions given by name.
        dtype: Name of the result's dtype; None is that of ``weights``. 1 + w needs more digits
            than w where w is small: folding an offset into bfloat16 weights keeps their factor
            only in float32.

    Returns:
        A `ConvertedScale`: the array, and how many factors it does not keep.

    Raises:
        TypeError: ``weights`` is no array of a real floating dtype.
        ValueError: a convention or kind has no such name.

    Example:
        >>> import numpy as np
        >>> w = np.array([0.25, 2**-20, -0.5], np.float32)  # as Gemma stores it
        >>> convert_scale(w, "gemma", "llama")
        ConvertedScale(weights=array([1.25    , 1.000001, 0.5     ], dtype=float32), changed=0)
        >>> convert_scale(w, "gemma", "llama", dtype="float16").changed
        1

    Source: Gemma's (1 + weight), in transformers modeling_gemma.py.
    """
    _checks.norm_kind(kind, ("rms_norm", "layer_norm"))
    _checks.same_framework(None, weights=weights)
    _checks.real_floating(weights=weights)
    before, after = convention_of(source, kind), convention_of(target, kind)
    arithmetic = arithmetic_of(weights)
    own = _checks.dtype_name(weights.dtype)
    with arithmetic.scope():
        factor = _factor(arithmetic, arithmetic.widen(weights), own, before)
        result_dtype = arithmetic.dtype_called(dtype or own)
        result = arithmetic.narrow(factor - after.offset, result_dtype)
        kept = _factor(arithmetic, arithmetic.widen(result), dtype or own, after)
        xp = array_api_compat.array_namespace(weights)
        changed = int(xp.sum(xp.astype(kept != factor, xp.int64)))
    return ConvertedScale(result, changed)


def _factor(arithmetic: Arithmetic, wide: Array, own: str, convention: Convention) -> Array:
    """What the convention multiplies by: weights of dtype ``own`` and the offset, added there."""
    if not convention.offset:
        return wide
    added_in = own
    if convention.offset_added == "after_cast":
        added_in = Dtypes(own, own, None).of(convention.scale) or own
    return arithmetic.round_to(arithmetic.round_to(wide, added_in) + convention.offset, added_in)


class _Names(NamedTuple):
    """What a library calls scale and bias, and what is between the steps of a path."""

    scale: str
    bias: str
    separator: str


_NAMES = {
    ("torch", "rms_norm"): _Names("weight", "bias", "."),
    ("torch", "layer_norm"): _Names("weight", "bias", "."),
    ("nnx", "rms_norm"): _Names("scale", "bias", "."),
    ("nnx", "layer_norm"): _Names("scale", "bias", "."),
    ("linen", "rms_norm"): _Names("scale", "bias", "/"),
    ("linen", "layer_norm"): _Names("scale", "bias", "/"),
    ("keras", "rms_norm"): _Names("scale", "bias", "/"),
    ("keras", "layer_norm"): _Names("gamma", "beta", "/"),
}
_LIBRARIES = ("torch", "nnx", "linen", "keras")


def rename_state(
    state: Mapping[Path, Array],
    source: str,
    target: str,
    *,
    norms: Iterable[Path],
    kind: str = "rms_norm",
) -> dict[Path, Array]:
    """A state with the names that another library gives to the parameters of its norms.

    The last step of a path inside one of ``norms`` becomes the target's word for scale or bias:
    weight and bias in torch, scale and bias in NNX and Linen, gamma and beta in Keras
    (LayerNormalization; scale in RMSNormalization). Everything else keeps its last step: other
    layers have a weight, a bias or a gamma, too.

    Args:
        state: Arrays by path: a string with "." (torch, nnx) or "/" (linen, keras) between the
            steps, or a tuple of steps.
        source, target: "torch", "nnx", "linen" or "keras".
        norms: Paths of the norms, as in ``state``; "" or () for the state of a single norm. For a
            torch model `normkit.torch.census` lists them.
        kind: "rms_norm" or "layer_norm", which Keras names differently.

    Returns:
        A new dict in the same order, of the same arrays.

    Raises:
        ValueError: a library or kind has no such name; a norm has no parameter in ``state``, or
            one that the source does not know.

    Example:
        >>> import numpy as np
        >>> state = {"block.norm.gamma": np.ones(4), "block.gamma": np.ones(4)}
        >>> dotted = {tuple(path.split(".")): array for path, array in state.items()}
        >>> list(rename_state(dotted, "keras", "torch", norms=[("block", "norm")], kind="layer_norm"))
        [('block', 'norm', 'weight'), ('block', 'gamma')]

    Source: torch.nn.LayerNorm, flax.nnx.LayerNorm, keras.layers.LayerNormalization.
    """
    _checks.norm_kind(kind, ("rms_norm", "layer_norm"))
    for name in (source, target):
        _checks.library(name, _LIBRARIES)
    old, new = _NAMES[source, kind], _NAMES[target, kind]
    words = {old.scale: new.scale, old.bias: new.bias}
    inside = {_steps(path, old.separator): path for path in norms}
    found: set[tuple[Any, ...]] = set()
    renamed: dict[Path, Array] = {}
    for path, array in state.items():
        *parent, last = _steps(path, old.separator)
        if tuple(parent) in inside:
            _checks.parameter_of_norm(path, last, words)
            found.add(tuple(parent))
            last = words[last]
        renamed[_joined(path, [*parent, last], new.separator)] = array
    _checks.norms_in_state([path for steps, path in inside.items() if steps not in found])
    return renamed


def _steps(path: Any, separator: str) -> tuple[Any, ...]:
    if isinstance(path, str):
        return tuple(path.split(separator)) if path else ()
    return tuple(path)


def _joined(path: Path, steps: list[Any], separator: str) -> Path:
    return separator.join(steps) if isinstance(path, str) else tuple(steps)
