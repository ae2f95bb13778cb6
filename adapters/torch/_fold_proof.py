"""The proof of a fold: the whole model in float64, before and after."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normkit import _checks

from ._changes import Changes
from ._sample import OutputChange, change, outputs, watched

# Mean of a row beside its root mean square, beyond which the row is not centred.
_CENTRED = 1e-9
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def refuse_dropout(model: nn.Module) -> None:
    """A row of which elements are dropped is no longer centred."""
    for name, module in model.named_modules():
        if isinstance(module, _DROPOUTS) and module.training and module.p > 0:
            reason = f"{name} drops elements in training; call model.eval(), or set its p to 0"
            raise _checks.not_exact("fold_centering", reason)


def proved(
    model: nn.Module,
    name: str,
    fold: Callable[[], Changes],
    norms: Iterable[str],
    sample: Any,
    tolerance: float,
) -> OutputChange:
    """How the outputs change in float64; the model is then as it was.

    Raises:
        ValueError: they change by more than ``tolerance`` of the largest, and why.
    """
    with _in_float64(model):
        sample = tree_map(_to_float64, dict(sample) if isinstance(sample, Mapping) else sample)
        try:
            before = outputs(model, sample)
        except Exception as error:
            why = f"the model does not take this one: {type(error).__name__}: {error}"
            raise _checks.needs_sample(why) from error
        changes = fold()
        try:
            means: dict[nn.Module, float] = {}
            new = {model.get_submodule(norm): norm for norm in norms}
            with watched(new, lambda m, args, kwargs: _watch_mean(means, m, args)):
                found = change(before, outputs(model, sample))
        finally:
            changes.undo()
    if not found.relative <= tolerance:
        off = {new[m]: mean for m, mean in means.items() if mean > _CENTRED}
        raise _checks.not_exact(name, _reason(name, found, off))
    return found


def _watch_mean(means: dict[nn.Module, float], module: nn.Module, args: Any) -> None:
    """The largest mean of a row that the norm is given, beside its root mean square."""
    x = args[0].detach()
    size = x.square().mean(-1).sqrt()
    mean = torch.where(size > 0, x.mean(-1).abs() / size, 0.0).max().item()
    means[module] = max(mean, means.get(module, 0.0))


def _reason(name: str, found: OutputChange, off: dict[str, float]) -> str:
    text = f"in float64 the outputs change by {found.relative:.3g} of the largest"
    if name == "fold_scale":
        return f"{text}: something else reads one of the norms"
    if not off:
        return f"{text}, though what the norms read is centred: something reads it without a norm"
    norm, mean = next(iter(off.items()))
    return (
        f"{text}, as {norm} reads rows whose mean is {mean:.3g} of their root mean square: something "
        "is added that is not among the writers, such as a norm's own output (post-norm)"
    )


def _to_float64(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if floating else value


@contextmanager
def _in_float64(model: nn.Module) -> Iterator[None]:
    """The same parameters and buffers with wider numbers; then with their own, untouched."""
    before: list[tuple[Tensor, Tensor]] = []
    try:
        for tensor in {id(t): t for t in (*model.parameters(), *model.buffers())}.values():
            if tensor.is_floating_point():
                before.append((tensor, tensor.data))
                tensor.data = tensor.data.double()
        yield
    finally:
        for tensor, data in before:
            tensor.data = data
