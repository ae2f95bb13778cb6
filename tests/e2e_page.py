"""The tables of docs/models.md from data/e2e.json, both of which `make e2e` writes."""

import json
import operator
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).parent.parent / "docs" / "models.md"
DATA = Path(__file__).parent / "data" / "e2e.json"
_MARKS = re.compile(r"(<!-- e2e -->\n).*?(<!-- end -->)", re.DOTALL)


_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "at most": operator.le,
    "at least": operator.ge,
}


class Bar(NamedTuple):
    """``value`` must be "=", "at most" or "at least" ``bar``; None where there is no bar."""

    what: str
    value: float | int | str
    sign: str | None = None
    bar: float | int | str | None = None

    @property
    def holds(self) -> bool:
        """Whether the bar is kept; NaN keeps none."""
        return self.sign is None or _HOLDS[self.sign](self.value, self.bar)

    @property
    def said(self) -> str:
        """The bar in words."""
        return f"{self.sign} {number(self.bar)}" if self.sign else ""


def number(value: Any) -> str:
    """A value as both the page and the terminal show it."""
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def recorded() -> dict[str, list[Bar]]:
    """What the last run of all cases measured."""
    found = json.loads(DATA.read_text(encoding="utf-8"))
    return {name: [Bar(**bar) for bar in bars] for name, bars in found.items()}


def table() -> str:
    """One section a model."""
    lines = []
    for name, bars in recorded().items():
        lines += ["", f"| {name} | measured | bar |", "|---|---|---|"]
        lines += [f"| {bar.what} | {number(bar.value)} | {bar.said} |" for bar in bars]
    return "\n".join([*lines, "", ""])


def page() -> str:
    """The page with its table as the data has it."""
    return _MARKS.sub(lambda m: m[1] + table() + m[2], PATH.read_text(encoding="utf-8"))


def write() -> None:
    """Write docs/models.md."""
    PATH.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(write())
