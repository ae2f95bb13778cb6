"""A model on a sample batch: its outputs, and what its norms are given."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normkit import _checks


class OutputChange(NamedTuple):
    """How a model's outputs differ from what they were.

    Attributes:
        largest: The largest difference.
        scale: The largest absolute value of the outputs before.
    """

    largest: float
    scale: float

    @property
    def relative(self) -> float:
        """The largest difference as a part of the largest value."""
        return self.largest / self.scale if self.scale else self.largest

    def __str__(self) -> str:
        """One line."""
        return f"largest change {self.largest:.3g}, {self.relative:.3g} of the largest value"


def outputs(model: nn.Module, sample: Any) -> list[Tensor]:
    """All floating tensors in the model's output, in evaluation, without gradients.

    ``sample`` is the argument of the model, a tuple or list of them, or a mapping of names.
    """
    with _evaluation(model), torch.no_grad():
        if isinstance(sample, Mapping):
            result = model(**sample)
        elif isinstance(sample, tuple | list):
            result = model(*sample)
        else:
            result = model(sample)
    leaves = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point()]
    return [t.detach().clone() for t in leaves]


def change(before: list[Tensor], after: list[Tensor]) -> OutputChange:
    """The largest difference between two runs; NaN counts as infinitely large."""
    _checks.same_outputs([tuple(t.shape) for t in before], [tuple(t.shape) for t in after])
    largest = scale = 0.0
    for a, b in zip(before, after, strict=True):
        if a.numel():
            a, b = a.double(), b.double()
            equal = (a == b) | (a.isnan() & b.isnan())
            difference = torch.where(equal, 0.0, (a - b).abs()).nan_to_num(torch.inf)
            largest = max(largest, difference.max().item())
            scale = max(scale, a.nan_to_num(0.0, 0.0, 0.0).abs().max().item())
    return OutputChange(largest, scale)


class Given(NamedTuple):
    """What a norm is given in its first call: rows of x, and whether that is all."""

    x: Tensor
    alone: bool


def given_to(model: nn.Module, modules: Iterable[nn.Module], sample: Any) -> dict[nn.Module, Given]:
    """What each module is called with first, while the model runs on the sample."""
    found: dict[nn.Module, Given] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        if module not in found and args and isinstance(args[0], Tensor):
            found[module] = Given(args[0].detach().clone(), len(args) == 1 and not kwargs)

    with watched(modules, keep):
        outputs(model, sample)
    return found


@contextmanager
def watched(modules: Iterable[nn.Module], see: Callable[..., None]) -> Iterator[None]:
    """``see(module, args, kwargs)`` is called before each call of one of the modules."""
    handles = [m.register_forward_pre_hook(see, with_kwargs=True) for m in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
