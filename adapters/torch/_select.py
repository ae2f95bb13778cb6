"""Which norms of a model are meant, and what holds them."""

import fnmatch
from collections.abc import Callable, Iterable, Iterator

from torch import nn

from normkit import _checks

from ._census import norms_of

Select = Callable[[str, nn.Module], bool] | str | Iterable[str]


def selected(
    model: nn.Module, select: Select | None
) -> Iterator[tuple[tuple[str, ...], nn.Module]]:
    """Norms with all their names, in the model's order; each module once."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    norms = {module for _, module in norms_of(model)}
    if select is None:
        chosen = norms
    elif callable(select):
        chosen = {m for m in norms if any(select(name, m) for name in names[m])}
    else:
        chosen = set[nn.Module]()
        for pattern in select:
            found = {
                m
                for m, own in names.items()
                if pattern in own or (m in norms and fnmatch.filter(own, pattern))
            }
            _checks.names_something(pattern, bool(found), [n for m in norms for n in names[m]])
            chosen |= found
    for module, own in names.items():
        if module in chosen:
            yield tuple(own), module


def held_elsewhere(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules that an attribute holds, by itself or in a list: it would go on calling them."""
    for path, parent in model.named_modules():
        for name, value in vars(parent).items():
            if name != "_modules":
                inside = value.values() if isinstance(value, dict) else value
                items = inside if isinstance(value, dict | list | tuple) else (value,)
                for item in items:
                    if isinstance(item, nn.Module):
                        yield item, f"{path}.{name}" if path else name
