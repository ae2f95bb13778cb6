"""The steps of a fold: means out of the writers, scales into the readers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from normkit import _checks

from ._changes import Changes
from ._replace import Maker, replace_norms
from ._stand_in import stand_in
from ._streams import features


def centre(model: nn.Module, writers: Iterable[str], norms: Iterable[str]) -> Changes:
    """Take each writer's mean over the features out, and make RMSNorms of the norms."""
    changes = Changes()
    try:
        places = [place for name in writers for place in features(model, name, "out")]
        _set(model, places, changes, _without_mean)
        report = replace_norms(
            model, target="rms_norm", select=tuple(norms), keep_bias=True, verify=False
        )
        changes.record(report.undo)
        for row in report.left:
            raise _checks.not_exact("fold_centering", f"{row.names[0]} ({row.type}): {row.reason}")
    except BaseException:
        changes.undo()
        raise
    return changes


def _without_mean(values: Tensor, axis: int) -> Tensor:
    return values - values.mean(axis, keepdim=True)


def absorb(model: nn.Module, readers: Mapping[str, Iterable[str]], maker: Maker) -> Changes:
    """Multiply each reader by the scale of its norm, which is left without one."""
    changes = Changes()
    try:
        for name, layers in readers.items():
            module = model.get_submodule(name)
            norm = maker.recognised(module)
            layer = stand_in(module, norm)
            if len(norm.shape) != 1 or norm.axis is not None:
                raise _checks.not_exact(
                    "fold_scale", f"{name} does not normalise the last axis alone"
                )
            scale, bias = _wide(layer.weight), _wide(layer.bias)
            if scale is not None:
                scale = scale + norm.fields.offset
            for reader in layers:
                [(owner, leaf, axis)] = features(model, reader, "in")
                if bias is not None:
                    _add_to_bias(model.get_submodule(reader), axis, bias, changes)
                if scale is not None:
                    _set(model, [(owner, leaf, axis)], changes, _times(scale))
            changes.put(model, module, stand_in(module, norm, ("weight", "bias")))
    except BaseException:
        changes.undo()
        raise
    return changes


def _times(scale: Tensor) -> Callable[[Tensor, int], Tensor]:
    return lambda values, axis: values * (scale if axis % values.ndim else scale[:, None])


def _add_to_bias(layer: Any, axis: int, bias: Tensor, changes: Changes) -> None:
    """W b is added to the layer's bias, which it is given if it has none."""
    weight = layer.weight.detach().double()
    moved = (weight @ bias if axis else bias @ weight).detach()
    old = layer._parameters.get("bias")
    if old is not None:
        changes.set_data(old, (old.detach().double() + moved).to(old.dtype))
    else:
        new = nn.Parameter(moved.to(layer.weight.dtype), requires_grad=layer.weight.requires_grad)
        changes.set_parameter(layer, "bias", new)


def _wide(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach().double()


def _set(
    model: nn.Module,
    places: list[tuple[nn.Module, str, int]],
    changes: Changes,
    step: Callable[[Tensor, int], Tensor],
) -> None:
    """Other numbers in each parameter, made in float64 and rounded once.

    A parameter that stands elsewhere too is first made two: elsewhere it keeps its numbers.
    """
    done: dict[nn.Parameter, nn.Parameter] = {}
    mine = {(owner, name) for owner, name, _ in places}
    for owner, name, axis in places:
        parameter: Any = owner._parameters[name]
        if parameter in done:
            changes.set_parameter(owner, name, done[parameter])
            continue
        if any(parameter is new for new in done.values()):
            continue
        values = step(parameter.detach().double(), axis).to(parameter.dtype)
        elsewhere = [path for at, path in _holders(model, parameter) if at not in mine]
        if not elsewhere:
            changes.set_data(parameter, values)
            done[parameter] = parameter
            continue
        new = nn.Parameter(values, requires_grad=parameter.requires_grad)
        done[parameter] = new
        changes.set_parameter(owner, name, new)
        changes.untied.append(f"{_path(model, owner, name)} from {', '.join(elsewhere)}")
        _forget_tie(model, changes)


def _holders(model: nn.Module, parameter: Tensor) -> list[tuple[tuple[nn.Module, str], str]]:
    """Where a parameter stands: owner and name, and its path."""
    return [
        ((module, name), f"{path}.{name}" if path else name)
        for path, module in model.named_modules()
        for name, own in module._parameters.items()
        if own is parameter
    ]


def _path(model: nn.Module, owner: nn.Module, name: str) -> str:
    return next(
        f"{path}.{name}" if path else name for path, m in model.named_modules() if m is owner
    )


def _forget_tie(model: nn.Module, changes: Changes) -> None:
    """Transformers ties weights again, when it saves or loads, unless it is told."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "tie_word_embeddings", False):
            changes.set_attribute(config, "tie_word_embeddings", False)
        tied = getattr(module, "all_tied_weights_keys", None)
        if tied:
            kept = {a: b for a, b in tied.items() if _is_one(module, a, b)}
            changes.set_attribute(module, "all_tied_weights_keys", kept)


def _is_one(module: nn.Module, a: str, b: str) -> bool:
    return module.get_parameter(a) is module.get_parameter(b)
