"""What `replace_norms` found and did."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from ._changes import Changes
from ._sample import OutputChange
from ._verify import Comparison, Departure


@dataclass(frozen=True)
class NormRow:
    """A norm of a model.

    Attributes:
        names: Its paths; more than one where a module stands in several places.
        type: Its class.
        kind: "rms_norm" or "layer_norm", of the layer that stands for it; None if none can.
        convention: The convention's name, or its fields.
        eps: None for the convention's machine epsilon.
        width: Elements of a row.
        only: The dtypes in which it follows the convention; () for all.
        dropped: Number of parameters that are left out.
        reason: Why it is left alone; None if it is not.
        compared: The layer beside the module; None without ``verify`` and on the meta device.
    """

    names: tuple[str, ...]
    type: str
    kind: str | None = None
    convention: str = "-"
    eps: float | None = None
    width: int | None = None
    only: tuple[str, ...] = ()
    dropped: int = 0
    reason: str | None = None
    compared: Comparison | None = None

    @property
    def fits(self) -> bool:
        """Whether a layer of normkit stands in its place, or would."""
        return self.reason is None

    @property
    def departure(self) -> Departure | None:
        """The input that shows why it is left alone, where one does."""
        return self.compared.departure if self.compared else None


@dataclass(frozen=True)
class NormReport:
    """The norms of a model, which of them were replaced, and the way back.

    In a ``with`` statement the norms are back at the end of the block.

    Attributes:
        rows: One for each norm, in the model's order.
        dry_run: Whether the model was left as it is.
        output_change: How the outputs for the sample changed; None without one.
    """

    rows: tuple[NormRow, ...]
    dry_run: bool = False
    output_change: OutputChange | None = None
    _changes: Changes = field(default_factory=Changes, repr=False, compare=False)

    @property
    def replaced(self) -> tuple[NormRow, ...]:
        """Those in whose place a layer of normkit stands, or would after a dry run."""
        return tuple(row for row in self.rows if row.fits)

    @property
    def left(self) -> tuple[NormRow, ...]:
        """Those left alone, each with its ``reason``."""
        return tuple(row for row in self.rows if not row.fits)

    @property
    def dropped(self) -> int:
        """Number of parameters left out, of all norms."""
        return sum(row.dropped for row in self.rows)

    def undo(self) -> None:
        """Put the very same modules back, with the parameters and the mode of now.

        Raises:
            ValueError: something else has taken the place of one of the layers since.
        """
        self._changes.undo()

    def __enter__(self) -> Self:
        """The report itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Undo."""
        self.undo()

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "schema": "normkit-replace-1",
            "dry_run": self.dry_run,
            "norms": [_plain(row) for row in self.rows],
            "dropped": self.dropped,
            "output_change": self.output_change._asdict() if self.output_change else None,
        }

    def __str__(self) -> str:
        """A table, alike rows as one line with a count, and what was left alone."""
        return "\n".join(_lines(self))


def _plain(row: NormRow) -> dict[str, Any]:
    compared, departure = row.compared, row.departure
    values = {k: v for k, v in vars(row).items() if k != "compared"}
    values |= {"names": list(row.names), "only": list(row.only)}
    values["departure"] = str(departure) if departure else None
    if compared is not None:
        values |= compared._asdict() | {"dtypes": list(compared.dtypes)}
        values["departure"] = str(departure) if departure else None
    return values


def _lines(report: NormReport) -> Iterator[str]:
    verb = "would be replaced" if report.dry_run else "replaced"
    yield f"{len(report.replaced)} of {len(report.rows)} norms {verb}"
    keys = Counter(map(_alike, report.replaced))
    if keys:
        yield f"{'norms':>5}  {'class':28} {'as':32} {'eps':>11} {'width':>6}  {'equal bits':>10}  worst"
    for key, count in keys.items():
        type_, kind, convention, eps, width, only = key
        alike = [row for row in report.replaced if _alike(row) == key]
        yield (
            f"{count:5}  {type_:28} {f'{kind}/{convention}':32} "
            f"{'machine' if eps is None else f'{eps:g}':>11} {width or '-':>6}  {_measured(alike)}"
            + (f"  (in {', '.join(only)} only)" if only else "")
        )
    for row in report.left:
        yield f"left alone: {', '.join(row.names) or 'the model'} ({row.type}): {row.reason}"
    if report.dropped:
        yield f"{report.dropped} parameters dropped"
    if report.output_change is not None:
        yield f"outputs: {report.output_change}"


def _alike(row: NormRow) -> tuple[Any, ...]:
    return row.type, row.kind, row.convention, row.eps, row.width, row.only


def _measured(rows: list[NormRow]) -> str:
    compared = [row.compared for row in rows if row.compared is not None]
    elements = sum(c.elements for c in compared)
    if not elements:
        return f"{'-':>10}  -"
    share = sum(c.equal for c in compared) / elements
    return f"{100 * share:>8.2f} %  {max(c.worst for c in compared):.3g} ULP"
