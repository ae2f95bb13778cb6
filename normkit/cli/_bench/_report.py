"""A result as lines of text for the terminal."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from . import _bars
from ._plan import DTYPES, size
from ._ratios import Ratio, digits, pairs, ratio


def bar_lines(result: dict[str, Any]) -> Iterator[str]:
    """Each bar, and below it the ratio at each place with its verdict."""
    verdicts = []
    for bar in _bars.BARS:
        found = list(_bars.verdicts(result, [bar]))
        if found:
            yield f"\n{bar}"
        for v in found:
            place = f"{size(v.shape):11} {v.dtype:8} {v.threads:3} threads  {v.kernel:9}"
            yield f"  {place}{v.measured!s:>26}  {_verdict(v.met)}"
            verdicts.append(v.met)
    for saved_bar in _bars.SAVED_BARS:
        kept = _bars.saved(result, saved_bar)
        if kept is not None:
            yield f"\n{saved_bar}"
            met = kept <= saved_bar.limit
            place = f"{size(saved_bar.shape):11} {saved_bar.dtype:8}"
            yield f"  {place} {kept} bytes of {saved_bar.limit}  {_verdict(met)}"
            verdicts.append(met)
    yield f"\n{sum(verdicts)} of {len(verdicts)} met"


def ratio_table(result: dict[str, Any], console: Console) -> Table:
    """normkit beside every other: how many times as fast, a line for each shape."""
    table = Table(box=None, pad_edge=False) if not console.is_terminal else Table()
    for heading in ("", "pass", "shape", "threads", "norm", "beside"):
        table.add_column(heading)
    dtypes = [d for d in DTYPES if any(e["dtype"] == d for e in result["measured"])]
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for (framework, passes, ours, theirs), entries in pairs(result).items():
        op, other = ours.partition(" ")[2], theirs.partition(" ")[0]
        for entry in entries:
            key = (framework, passes, size(entry["shape"]), str(entry["threads"]), op, other)
            lines.setdefault(key, {})[entry["dtype"]] = _coloured(ratio(entry, theirs, ours))
    for line, cells in lines.items():
        table.add_row(*line, *(cells.get(dtype, "") for dtype in dtypes))
    return table


LEGEND = (
    "Times as fast as the other, median of the rounds; above 1 normkit is faster. The spread of the "
    "rounds is in the JSON (--json) and in the picture (--png)."
)


def disturbed(result: dict[str, Any]) -> str | None:
    """A warning where other processes wanted the processors; None else."""
    load, processors = result["machine"]["load"], result["machine"]["processors"]
    if load is None or load < 0.5:
        return None
    return f"other processes run here (load {load:g}, {processors} processors): expect spread"


def missing(result: dict[str, Any]) -> dict[str, str]:
    """What could not be measured, with the reason."""
    found = dict(result["missing"])
    for entry in result["measured"]:
        for name, reason in entry["missing"].items():
            if name.partition(" ")[0] not in found:
                found.setdefault(name, reason)
    return found


def _verdict(met: bool) -> str:
    return "[green]met[/]" if met else "[red]NOT MET[/]"


def _coloured(found: Ratio | None) -> str:
    if found is None:
        return ""
    return f"[{'green' if found.middle >= 1 else 'red'}]{digits(found.middle)}[/]"
