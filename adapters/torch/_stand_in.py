"""A normkit layer that stands for another module: built on that module's own parameters."""

import copy
import math
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from normkit import Convention
from normkit._checks import dtype_name
from normkit._identify import Identification, identify
from normkit._presets import PRESETS

from ._module import LayerNorm, RMSNorm

# Forms of `normkit.identify` in which x is the only argument, with the axes behind the normalised.
_PLAIN_FORMS: dict[str, tuple[int, ...]] = {
    "f(x)": (),
    "f(x) with channels first, 4 axes": (3, 5),
    "f(x) with channels first, 3 axes": (15,),
}
_HOOKS = tuple(name for name, value in vars(nn.Module()).items() if "hook" in name and value == {})


@dataclass(frozen=True)
class Recognised:
    """What a norm does, and where its parameters are.

    Attributes:
        kind, convention, eps, axis: As the layer that stands for it is built with.
        shape: Sizes of the normalised axes; () where nothing of the module tells.
        names: Of "weight" and "bias", those that the module has, with its own names for them.
        nearest: What tells it from the preset nearest to it that it does not follow.
        only: The dtypes in which that is so; () for all.
        image: Sizes of axes behind the normalised one, in a trial input; () where it is the last.
    """

    kind: str
    convention: str | Convention
    eps: float | None
    axis: int | None
    shape: tuple[int, ...]
    names: Mapping[str, str]
    nearest: str = ""
    only: tuple[str, ...] = ()
    image: tuple[int, ...] = ()

    @property
    def fields(self) -> Convention:
        """The convention as an object."""
        if isinstance(self.convention, Convention):
            return self.convention
        return PRESETS[self.kind][self.convention].convention

    def as_rms_norm(self) -> "Recognised":
        """The same roundings, eps and names, without the mean."""
        fields = replace(self.fields, kind="rms_norm", variance="two_pass")
        return replace(self, kind="rms_norm", convention=_by_name("rms_norm", fields))


class Refusal(Exception):  # noqa: N818 (an answer, which the report shows)
    """Why a module is left alone."""


class _OtherNames(nn.Module):
    """Reads weight and bias under the names and in the shape that another class gave them."""

    names: Mapping[str, str]
    normalized_shape: Any

    @property
    def weight(self) -> Tensor | None:
        """The parameter that multiplies."""
        return self._called("weight")

    @property
    def bias(self) -> Tensor | None:
        """The parameter that is added."""
        return self._called("bias")

    def _called(self, role: str) -> Tensor | None:
        name = self.names.get(role)
        if name is None:
            return None
        value = self._parameters[name] if name in self._parameters else self._buffers[name]
        assert value is not None
        shape = tuple(self.normalized_shape)
        return value if tuple(value.shape) == shape else value.reshape(shape)


class RenamedRMSNorm(_OtherNames, RMSNorm):  # type: ignore[misc]
    """`RMSNorm` whose parameters have other names."""


class RenamedLayerNorm(_OtherNames, LayerNorm):  # type: ignore[misc]
    """`LayerNorm` whose parameters have other names."""


def bare(module: nn.Module) -> nn.Module:
    """The module on the same parameters, without its hooks."""
    twin = copy.copy(module)
    for name in _HOOKS:
        vars(twin)[name] = OrderedDict()
    twin.training = False
    return twin


def recognise(module: nn.Module) -> Recognised:
    """What ``module`` does.

    torch.nn's own classes are known; any other is asked by `normkit.identify`, once more in its own
    dtypes alone where it follows no convention in all of them.

    Raises:
        Refusal: no layer of normkit can stand for it.
    """
    _refuse_what_a_layer_cannot_carry(module)
    if type(module) in (nn.RMSNorm, nn.LayerNorm):
        kind = "rms_norm" if isinstance(module, nn.RMSNorm) else "layer_norm"
        names = {n: n for n in ("weight", "bias") if module._parameters.get(n) is not None}
        shape: Any = module.normalized_shape
        eps: Any = module.eps
        return Recognised(kind, "torch", eps, None, tuple(shape), names)
    try:
        found = identify(bare(module))
        if found.convention is None:
            dtypes = {"float32", *(dtype_name(p.dtype) for p in module.parameters())}
            narrow = identify(bare(module), dtypes=tuple(dtypes))
            if narrow.convention is not None:
                return replace(_from(module, narrow), only=tuple(sorted(dtypes)))
    except (TypeError, ValueError) as error:
        raise Refusal(f"cannot be called with x alone: {error}") from None
    return _from(module, found)


def _refuse_what_a_layer_cannot_carry(module: nn.Module) -> None:
    if "forward" in vars(module):
        raise Refusal("its forward was replaced on the object")
    if vars(module).get("_compiled_call_impl") is not None:
        raise Refusal("it was compiled on its own; replace norms before module.compile()")
    if is_parametrized(module):
        raise Refusal("its parameters are parametrized")
    parts = [name for name, part in module.named_children() if list(part.parameters())]
    if parts:
        raise Refusal(f"it has parts with parameters: {', '.join(parts)}")


def _from(module: nn.Module, found: Identification) -> Recognised:
    if found.convention is None or found.kind is None:
        raise Refusal(_why_not(found))
    if found.call not in _PLAIN_FORMS:
        raise Refusal(f"it is called as {found.call}")
    names: dict[str, str] = {}
    for name, role in found.parameters.items():
        role = {"scale": "weight"}.get(role, role)
        if role in names:
            raise Refusal(f"it has two parameters that act as {role}: {names[role]} and {name}")
        if role != "unused":
            names[role] = name
    others = {n for n, _ in module.named_parameters()} - set(found.parameters)
    others |= {n for n in names.values() if "." in n}
    if others:
        raise Refusal(f"it has other parameters: {', '.join(sorted(others))}")
    machine = found.convention.eps == "machine"
    eps = None if machine else _exact_eps(module, found.eps)
    convention = _by_name(found.kind, found.convention)
    axis = None if found.axis == -1 else found.axis
    shape = (found.width,) if names else ()
    nearest = str(found.misses[0]) if found.misses else ""
    image = _PLAIN_FORMS[found.call]
    return Recognised(found.kind, convention, eps, axis, shape, names, nearest, image=image)


def _why_not(found: Identification) -> str:
    """Why it follows no convention, with the input that tells it from the nearest preset."""
    findings = [f"{finding.field}: {finding.found}" for finding in found.findings]
    if found.eps_place != "inside":
        findings.insert(0, f"eps_place: {found.eps_place!r}")
    nearest = [str(miss) for miss in found.misses[:1]]
    return "follows no convention: " + "; ".join([*findings, *nearest])


def _exact_eps(module: nn.Module, read: float) -> float:
    """eps has six digits when it is read off; the module's attribute has them all."""
    for name, value in vars(module).items():
        if "eps" in name and isinstance(value, float) and math.isclose(value, read, rel_tol=1e-5):
            return value
    return read


def _by_name(kind: str, convention: Convention) -> str | Convention:
    """The name of the preset that differs in eps alone, which the layer has itself."""
    for name, preset in PRESETS[kind].items():
        # without an eps of its own a layer takes that of the preset
        own = convention.eps != "machine" or preset.convention.eps == "machine"
        if own and replace(preset.convention, eps=convention.eps) == convention:
            return name
    return convention


def stand_in(
    module: nn.Module, norm: Recognised, drop: Collection[str] = ()
) -> RMSNorm | LayerNorm:
    """The layer of normkit that does what ``norm`` says, on the parameters of ``module``.

    It has that module's very parameters, buffers and hooks (their containers too, so that a handle
    still removes its hook), its mode, and its other attributes. ``drop`` names "weight" or "bias"
    or both, to be left out.
    """
    host: Any = RMSNorm if norm.kind == "rms_norm" else LayerNorm
    layer: Any = host(
        norm.shape, norm.eps, elementwise_affine=False, axis=norm.axis, convention=norm.convention
    )
    own = vars(layer)
    names = {role: name for role, name in norm.names.items() if role not in drop}
    dropped = {norm.names[role] for role in drop if role in norm.names}
    kept = {n: p for n, p in module._parameters.items() if n not in dropped}
    if all(_fits(kept.get(name), name == role, norm) for role, name in names.items()):
        own["_parameters"] = {"weight": None, "bias": None, **kept}
    else:
        own["_parameters"] = kept
        layer.names = names
        layer.__class__ = RenamedRMSNorm if host is RMSNorm else RenamedLayerNorm
    layer.elementwise_affine = "weight" in names
    for name in ("_buffers", "_non_persistent_buffers_set", "_is_full_backward_hook", *_HOOKS):
        own[name] = vars(module)[name]
    layer.training = module.training
    for name, value in vars(module).items():
        own.setdefault(name, value)
    return layer


def _fits(parameter: Any, same_name: bool, norm: Recognised) -> bool:
    """Whether normkit's own class finds this parameter where it looks for it, as it wants it."""
    return same_name and parameter is not None and tuple(parameter.shape) == norm.shape
