"""The conventions that a thing is compared with, and their outputs."""

import functools
from dataclasses import fields, replace
from typing import Any

from normkit._convention import Convention
from normkit._layer_norm import layer_norm
from normkit._presets import LAYER_NORM, RMS_NORM
from normkit._rms_norm import rms_norm

from ._probes import Probe, cast

Array = Any

# A row of length 1 is no norm in the sense of this library: l2sum is told by its size.
KINDS = {
    "rms_norm": {name: c for name, c in RMS_NORM.items() if c.reduction == "mean"},
    "layer_norm": dict(LAYER_NORM),
}
_FUNCTIONS = {"rms_norm": rms_norm, "layer_norm": layer_norm}
# Results of probes up to this size are kept, as many things are asked in turn.
_KEPT_ELEMENTS = 2**12

# The values of each field that are tried when none of the presets fits, or to see which others
# would do as well. Dtypes by name are left out: a rule says what they do for every input.
_RULES = (None, "x", "scale", "scale_if_half", "promote", "float32", "at_least_float32", "wide")
VALUES: dict[str, tuple[Any, ...]] = {
    "eps_place": ("inside", "outside", "floor"),
    "input": (None, "scale", "promote", "float32", "at_least_float32"),
    "statistics": ("exact", "x", "float32", "at_least_float32"),
    "variance": ("two_pass", "fused", "fast", "fast_clamped"),
    "root": ("reciprocal", "rsqrt", "divide"),
    "order": ("normalize_first", "scale_statistic", "scale_first", "scale_input", "affine"),
    "between": _RULES,
    "scale": _RULES,
    "offset": (0.0, 1.0),
    "offset_added": ("after_cast", "before_cast"),
    "bias": _RULES,
    "output": _RULES,
}


def named(kinds: tuple[str, ...], partial: float, groups: int) -> dict[tuple[str, str], Convention]:
    """The presets by kind and name, with the width of the statistics that was read off."""
    found = {}
    for kind in kinds:
        for name, convention in KINDS[kind].items():
            made = changed(convention, groups=groups)
            if made is not None and partial != 1:
                made = changed(made, partial=partial)
            if made is not None:
                found[kind, name] = made
    return found


def changed(convention: Convention, **values: Any) -> Convention | None:
    """The convention with other values, or None where they contradict each other."""
    try:
        return replace(convention, **values)
    except ValueError:
        return None


def neighbours(convention: Convention) -> list[tuple[str, Any, Convention]]:
    """All conventions that differ in one field: the field, its value, the convention."""
    found = []
    for field, values in VALUES.items():
        for value in values:
            if value != getattr(convention, field):
                other = changed(convention, **{field: value})
                if other is not None:
                    found.append((field, value, other))
    return found


def difference(a: Convention, b: Convention) -> tuple[str, ...]:
    """Names of the fields in which two conventions differ, the default eps aside."""
    names = [f.name for f in fields(a) if f.name != "eps"]
    return tuple(name for name in names if getattr(a, name) != getattr(b, name))


def apply(convention: Convention, eps: float | None, probe: Probe) -> Array:
    """The convention's output for the probe."""
    if probe.x.size > _KEPT_ELEMENTS:
        return _computed(convention, eps, probe)
    return _kept(convention, eps, probe)


@functools.lru_cache(maxsize=8192)
def _kept(convention: Convention, eps: float | None, probe: Probe) -> Array:
    return _computed(convention, eps, probe)


def _computed(convention: Convention, eps: float | None, probe: Probe) -> Array:
    import numpy as np

    with np.errstate(all="ignore"):
        function = _FUNCTIONS[convention.kind]
        return function(probe.x, probe.scale, probe.bias, eps=eps, convention=convention)


@functools.lru_cache(maxsize=1024)
def with_parameters(
    probe: Probe, scale: float | None, bias: float | None, keep: tuple[bool, bool]
) -> Probe:
    """The probe with constant parameters put in and those left out that are not kept."""
    import numpy as np

    n = probe.x.shape[-1]
    dtype = probe.x.dtype if probe.scale is None else probe.scale.dtype

    def parameter(given: Array | None, value: float | None, kept: bool) -> Array | None:
        if not kept:
            return None
        if given is None and value is not None:
            return cast(np.full(n, value), dtype.name)
        return given

    return replace(
        probe,
        scale=parameter(probe.scale, scale, keep[0]),
        bias=parameter(probe.bias, bias, keep[1]),
    )
