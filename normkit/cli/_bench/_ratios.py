"""The ratios in a result: everything that is shown is made of them."""

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._plan import OPS


class Ratio(NamedTuple):
    """The middle of the ratios of all rounds, and the quartiles around it."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{digits(self.middle)} ({digits(self.low)} to {digits(self.high)})"


def digits(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def ratio(entry: dict[str, Any], above: str, below: str) -> Ratio | None:
    """Time of ``above`` divided by that of ``below``, round by round; None if one is missing."""
    times = entry["nanoseconds"]
    if above not in times or below not in times:
        return None
    found = [a / b for a, b in zip(times[above], times[below], strict=True)]
    if len(found) == 1:
        return Ratio(found[0], found[0], found[0])
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    return Ratio(low, middle, high)


def seconds(entry: dict[str, Any], name: str) -> float:
    """The median time of a contender's call."""
    return 1e-9 * statistics.median(entry["nanoseconds"][name])


def select(result: dict[str, Any], **wanted: Any) -> Iterator[dict[str, Any]]:
    """The measured groups with the given fields."""
    for entry in result["measured"]:
        if all(entry[key] == value for key, value in wanted.items()):
            yield entry


Pair = tuple[str, str, str, str]


def pairs(result: dict[str, Any]) -> dict[Pair, list[dict[str, Any]]]:
    """(framework, pass, ours, theirs) and the groups that hold both, in the order measured."""
    found: dict[Pair, list[dict[str, Any]]] = {}
    for entry in result["measured"]:
        for op in OPS:
            ours = f"normkit {op}"
            for theirs in entry["nanoseconds"]:
                if theirs != ours and theirs.partition(" ")[2] in ("", op):
                    pair = (entry["framework"], entry["passes"], ours, theirs)
                    if ours in entry["nanoseconds"]:
                        found.setdefault(pair, []).append(entry)
    return found
