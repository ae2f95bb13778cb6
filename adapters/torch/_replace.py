"""Replacing the norms of a model by normkit's, each with a proof."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from normkit import _checks

from ._census import alike
from ._changes import Changes, places, refuse_sharded
from ._module import LayerNorm, RMSNorm
from ._report import NormReport, NormRow
from ._sample import Given, change, given_to, outputs
from ._select import Select, held_elsewhere, selected
from ._stand_in import Recognised, Refusal, recognise, stand_in
from ._verify import Comparison, compare, inputs_of

# They read the parameters of their norms, in evaluation, and leave the modules uncalled.
_FUSED = (nn.TransformerEncoderLayer,)


def replace_norms(
    model: nn.Module,
    *,
    target: str | None = None,
    select: Select | None = None,
    keep_bias: bool = False,
    sample: Any = None,
    verify: bool = True,
    dry_run: bool = False,
) -> NormReport:
    """Put a layer of normkit in the place of every norm of a model, on the same parameters.

    Norms are found by their class's name, as by `census`; torch.nn's classes are known, all others
    are asked by `normkit.identify` which convention they follow. The layer that takes a norm's
    place follows the same convention with the same eps, and has the module's very parameters under
    the same names, its buffers, hooks and mode. Optimizers, tied parameters and state dicts do not
    notice.

    Args:
        model: Changed in place.
        target: None for the same norm. "rms_norm" makes an RMSNorm of every LayerNorm, with its
            weight, eps and roundings: another function, as it no longer subtracts the mean.
        select: Which norms: a function of name and module, a name or several; "*" and "?" in a
            name match as in a shell. A module that is named in full is tried whatever its class is
            called. None for all.
        keep_bias: Whether the RMSNorm of ``target`` keeps LayerNorm's bias.
        sample: A batch: the model's argument, a tuple of them, or a mapping of names. With it the
            norms are compared on what they are given there, too, and the outputs before and after.
        verify: Whether each layer is compared with the module before it takes its place, on rows
            of its own shape, dtype and device. One that departs is left alone. With ``target``
            they are compared on rows of mean 0, where both norms agree.
        dry_run: Only say what would be done.

    Returns:
        A `NormReport`. Printing it gives a table; ``undo()`` puts the very same modules back.

    Raises:
        TypeError: ``model`` is no torch.nn.Module.
        ValueError: ``target`` is unknown, a name in ``select`` fits nothing, ``keep_bias`` is
            without ``target``, or the model is wrapped by FSDP or compiled by TorchScript.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        >>> report = replace_norms(model)
        >>> model[1]
        LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True, convention='torch')
        >>> report.undo()
        >>> type(model[1]) is nn.LayerNorm
        True

    Source: docs/models.md.
    """
    _checks.torch_module(model, isinstance(model, nn.Module))
    _checks.replacement_target(target, keep_bias)
    refuse_sharded(model)
    if not (select is None or callable(select)):
        select = (select,) if isinstance(select, str) else tuple(select)
    norms = list(selected(model, select))
    given = {} if sample is None else given_to(model, [m for _, m in norms], sample)
    maker = Maker(model, target, select, keep_bias, verify)
    made = [maker.make(names, module, given.get(module)) for names, module in norms]
    before = [] if sample is None else outputs(model, sample)
    changes = Changes()
    for (_, module), (_, layer) in zip(norms, made, strict=True):
        if layer is not None:
            changes.put(model, module, layer)
    difference = None
    if sample is not None:
        try:
            difference = change(before, outputs(model, sample))
        except BaseException:
            changes.undo()
            raise
    if dry_run:
        changes.undo()
    return NormReport(tuple(row for row, _ in made), dry_run, difference, changes)


class Maker:
    """Makes the layers; alike norms are asked once what they do."""

    def __init__(
        self,
        model: nn.Module,
        target: str | None,
        select: Select | None,
        keep_bias: bool,
        verify: bool,
    ) -> None:
        self.model = model
        self.named = set() if select is None or callable(select) else set(select)
        self.target = target
        self.drop = ("bias",) if target is not None and not keep_bias else ()
        self.verify = verify
        self.known: dict[Any, Recognised | Refusal] = {}
        self.held = dict(held_elsewhere(model))
        self.like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))

    def make(
        self, names: tuple[str, ...], module: nn.Module, given: Given | None
    ) -> tuple[NormRow, nn.Module | None]:
        """The report's row, and the layer; None if the module is to be left alone."""
        about: dict[str, Any] = {"names": names, "type": type(module).__name__}
        try:
            self._refuse(names, module, given)
            norm = self.recognised(module)
            if norm.fields.eps_place == "outside" and not set(names) & self.named:
                raise Refusal(
                    "eps is added outside of the root; name it in select if that is meant; "
                    + norm.nearest
                )
            norm = norm if norm.shape else _with_width(norm, given)
            about |= {"width": torch.Size(norm.shape).numel()}
            if self.target is not None:
                if norm.kind != "layer_norm":
                    raise Refusal("it is an RMSNorm already")
                norm = norm.as_rms_norm()
            about |= {
                "only": norm.only,
                "kind": norm.kind,
                "eps": norm.eps,
                "convention": str(norm.convention),
            }
            about["compared"] = compared = self._compared(module, norm, given)
            if compared is not None and compared.departure is not None:
                raise Refusal(f"departs: {compared.departure}")
        except Refusal as refusal:
            return NormRow(**about, reason=str(refusal)), None
        layer = stand_in(module, norm, self.drop)
        kept = sum(p.numel() for p in layer.parameters())
        about["dropped"] = sum(p.numel() for p in module.parameters()) - kept
        return NormRow(**about), layer

    def _refuse(self, names: tuple[str, ...], module: nn.Module, given: Given | None) -> None:
        if names[0] == "":
            raise Refusal("it is the model itself; build a layer of normkit in its place")
        if self.target is None and isinstance(module, RMSNorm | LayerNorm):
            raise Refusal("it is normkit's already")
        if module in self.held:
            raise Refusal(f"{self.held[module]} holds it too, beside the modules of the model")
        if given is not None and not given.alone:
            raise Refusal("the model calls it with more than x")
        fused = [p for p, _ in places(self.model, module) if isinstance(p, _FUSED)]
        if self.target is not None and fused and torch.backends.mha.get_fastpath_enabled():
            raise Refusal(
                f"{type(fused[0]).__name__} computes LayerNorm itself in evaluation; "
                "call torch.backends.mha.set_fastpath_enabled(False) first"
            )

    def recognised(self, module: nn.Module) -> Recognised:
        """What the module does; asked once for alike ones."""
        if isinstance(module, RMSNorm | LayerNorm):
            return _own(module)
        key = alike(module), tuple(p.dtype for p in module.parameters())
        if key not in self.known:
            try:
                self.known[key] = recognise(module)
            except Refusal as refusal:
                self.known[key] = refusal
        found = self.known[key]
        if isinstance(found, Refusal):
            raise Refusal(str(found))
        return found

    def _compared(
        self, module: nn.Module, norm: Recognised, given: Given | None
    ) -> Comparison | None:
        like = next(chain(module.parameters(), module.buffers()), self.like)
        if not self.verify or like.device.type == "meta":
            return None
        inputs: list[Iterable[Tensor]] = []
        dtypes = [like.dtype]
        if given is not None and given.x.dtype not in dtypes:
            dtypes.append(given.x.dtype)
        for dtype in dtypes:
            inputs.append(inputs_of(norm, dtype, like.device, self.target is not None))
        if given is not None and self.target is None:
            inputs.append([given.x])
        return compare(module, stand_in(module, norm), norm, chain(*inputs))


def _with_width(norm: Recognised, given: Given | None) -> Recognised:
    """A norm without parameters has the width of what it is given."""
    if given is None:
        raise Refusal("it has no parameters that tell its width; pass a sample")
    axis = -1 if norm.axis is None else norm.axis
    return replace(norm, shape=(given.x.shape[axis],))


def _own(layer: RMSNorm | LayerNorm) -> Recognised:
    """What a layer of normkit does."""
    kind = "rms_norm" if isinstance(layer, RMSNorm) else "layer_norm"
    own = getattr(layer, "names", None) or {
        n: n for n in ("weight", "bias") if layer._parameters.get(n) is not None
    }
    trailing = layer.axis == tuple(range(-len(layer.normalized_shape), 0))
    axis = None if trailing else layer.axis
    image = () if trailing else (3, 5)
    shape = tuple(layer.normalized_shape)
    return Recognised(kind, layer.convention, layer.eps, axis, shape, own, image=image)  # type: ignore[arg-type]
