"""A result as lines of text for the terminal."""

from collections.abc import Iterator
from typing import Any

from . import _bars
from ._plan import size
from ._ratios import Ratio, pairs, ratio


def bar_lines(result: dict[str, Any]) -> Iterator[str]:
    """Each bar, and below it the ratio at each place with its verdict."""
    met = total = 0
    for bar in _bars.BARS:
        found = list(_bars.verdicts(result, [bar]))
        if not found:
            continue
        yield f"\n{bar}"
        for v in found:
            place = _place(v.shape, v.dtype, v.threads, v.kernel)
            verdict = "[green]met[/]" if v.met else "[red]NOT MET[/]"
            yield f"{place}{v.measured!s:>26}  {verdict}"
            met, total = met + v.met, total + 1
    yield f"\n{met} of {total} met"


def ratio_lines(result: dict[str, Any]) -> Iterator[str]:
    """normkit beside every other: how many times as fast, and the quartiles."""
    for (framework, passes, ours, theirs), entries in pairs(result).items():
        yield f"\n{framework}, {passes}: {ours} beside {theirs}, times as fast"
        for entry in entries:
            found = ratio(entry, theirs, ours)
            if found is not None:
                place = _place(entry["shape"], entry["dtype"], entry["threads"], entry["kernel"])
                yield f"{place}{_coloured(found)}"


def missing(result: dict[str, Any]) -> dict[str, str]:
    """What could not be measured, with the reason."""
    found = dict(result["missing"])
    for entry in result["measured"]:
        for name, reason in entry["missing"].items():
            if name.partition(" ")[0] not in found:
                found.setdefault(name, reason)
    return found


def _place(shape: Any, dtype: str, threads: int, kernel: str) -> str:
    return f"  {size(shape):11} {dtype:8} {threads:3} threads  {kernel:9}"


def _coloured(found: Ratio) -> str:
    return f"[{'green' if found.middle >= 1 else 'red'}]{found!s:>26}[/]"
