"""All norms of a model, each identified."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from normkit import _checks
from normkit._identify import Identification, identify

from ._identify import width_of


@dataclass(frozen=True)
class CensusRow:
    """A norm of a model.

    Attributes:
        name: Its path in the model.
        type: Its class.
        width: Elements of a row; None if it has no parameters.
        parameters: Number of elements of all its parameters.
        found: What `normkit.identify` says; None if it cannot be called.
        reason: Why it cannot be called.
    """

    name: str
    type: str
    width: int | None
    parameters: int
    found: Identification | None
    reason: str | None = None

    @property
    def convention(self) -> str:
        """Kind and preset, in short."""
        if self.found is None:
            return "not callable"
        if not self.found.presets:
            return "none"
        return f"{self.found.kind}/{self.found.presets[0]}"


@dataclass(frozen=True)
class Census:
    """The norms of a model, in its order, and what is odd about them."""

    rows: tuple[CensusRow, ...]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "schema": "normkit-census-1",
            "norms": [
                {
                    "name": row.name,
                    "type": row.type,
                    "width": row.width,
                    "parameters": row.parameters,
                    "kind": row.found.kind if row.found else None,
                    "presets": list(row.found.presets) if row.found else [],
                    "eps": row.found.eps if row.found else None,
                    "eps_place": row.found.eps_place if row.found else None,
                    "reason": row.reason,
                }
                for row in self.rows
            ],
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        """A table, alike rows as one line with a count, and the warnings."""
        alike = Counter((r.type, r.width, r.convention, _eps(r), r.parameters) for r in self.rows)
        first = {
            (r.type, r.width, r.convention, _eps(r), r.parameters): r.name
            for r in reversed(self.rows)
        }
        heading = (
            f"{'norms':>5}  {'class':32} {'width':>6}  {'convention':24} {'eps':>12}  "
            f"{'parameters':>10}  first"
        )
        lines = [heading]
        for key, count in alike.items():
            kind, width, convention, eps, parameters = key
            lines.append(
                f"{count:5}  {kind:32} {width or '-':>6}  {convention:24} {eps:>12}  "
                f"{parameters:10}  {first[key]}"
            )
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def census(model: nn.Module) -> Census:
    """All norm-like modules of a model with convention, width, eps and parameters.

    A module is norm-like if its class has "norm" in its name and none of its parts has. Each is
    identified by `normkit.identify`, alike ones once. The model stays as it is; it may be on the
    meta device.

    Args:
        model: Any torch.nn.Module.

    Returns:
        A `Census`, whose ``warnings`` say where the model mixes conventions or eps, and which
        norms follow no preset. Printing it gives a table.

    Raises:
        TypeError: ``model`` is no torch.nn.Module.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.RMSNorm(64, eps=1e-6), nn.Linear(64, 64), nn.RMSNorm(64))
        >>> for text in census(model).warnings:
        ...     print(text)
        eps differs among the rms_norm: 1e-06 (1: 0), 1.19209e-07 (1: 2)

    Source: docs/identify.md.
    """
    _checks.torch_module(model, isinstance(model, nn.Module))
    known: dict[Any, tuple[Identification | None, str | None]] = {}
    rows = []
    for name, module in norms_of(model):
        key = alike(module)
        if key not in known:
            known[key] = _identified(module)
        found, reason = known[key]
        elements = sum(p.numel() for p in module.parameters())
        rows.append(
            CensusRow(name, type(module).__name__, width_of(module), elements, found, reason)
        )
    return Census(tuple(rows), tuple(_warnings(rows)))


def norms_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of every norm-like module."""

    def is_norm(module: nn.Module) -> bool:
        return "norm" in type(module).__name__.lower()

    for name, module in model.named_modules():
        parts = list(module.modules())[1:]
        if is_norm(module) and not any(is_norm(part) for part in parts):
            yield name, module


def alike(module: nn.Module) -> Any:
    """What two modules must share to be identified once: class, shapes and plain attributes."""
    plain = (int, float, str, bool, tuple, type(None))
    attributes = {k: v for k, v in vars(module).items() if isinstance(v, plain) and k != "training"}
    shapes = [(n, tuple(p.shape)) for n, p in module.named_parameters()]
    return type(module), repr(sorted(attributes.items())), repr(shapes)


def _identified(module: nn.Module) -> tuple[Identification | None, str | None]:
    try:
        return identify(module), None
    except (TypeError, ValueError) as error:
        return None, str(error)


def _eps(row: CensusRow) -> str:
    return f"{row.found.eps:g}" if row.found and row.found.presets else "-"


def _warnings(rows: list[CensusRow]) -> Iterator[str]:
    named = [row for row in rows if row.found and row.found.presets]
    kinds = sorted({str(row.found.kind) for row in named if row.found})
    if len(kinds) > 1:
        yield f"norms of two kinds: {', '.join(_counted(named, lambda r: r.found.kind))}"
    for kind in kinds:
        same = [row for row in named if row.found and row.found.kind == kind]
        common = set.intersection(*(set(row.found.presets) for row in same if row.found))
        if not common:
            groups = ", ".join(_counted(same, lambda row: row.found.presets[0]))
            yield f"conventions differ among the {kind}: {groups}"
        if len({row.found.eps for row in same if row.found}) > 1:
            yield f"eps differs among the {kind}: {', '.join(_counted(same, _eps))}"
    for row in rows:
        if row.found is None:
            yield f"{row.name} ({row.type}) cannot be called with x alone"
        elif not row.found.presets:
            departs = ", ".join(row.found.departs)
            yield f"{row.name} ({row.type}) follows no preset: {departs}"


def _counted(rows: list[CensusRow], value: Any) -> Iterator[str]:
    """Each value with how many norms have it, and the first."""
    groups: dict[Any, list[str]] = {}
    for row in rows:
        groups.setdefault(value(row), []).append(row.name)
    for key, names in groups.items():
        yield f"{key} ({len(names)}: {names[0]}{', ...' if len(names) > 1 else ''})"
