"""The table of docs/models.md from data/e2e.json, both of which `make e2e` writes."""

import json
import re
import sys
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent.parent / "docs" / "models.md"
DATA = Path(__file__).parent / "data" / "e2e.json"
_MARKS = re.compile(r"(<!-- e2e -->\n).*?(<!-- end -->)", re.DOTALL)


def number(value: Any) -> str:
    """A value as both the page and the terminal show it."""
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def table() -> str:
    """One section a model."""
    lines = []
    for name, bars in json.loads(DATA.read_text(encoding="utf-8")).items():
        lines += ["", f"| {name} | measured | bar |", "|---|---|---|"]
        for bar in bars:
            said = f"{bar['sign']} {number(bar['bar'])}" if bar["sign"] else ""
            lines.append(f"| {bar['what']} | {number(bar['value'])} | {said} |")
    return "\n".join([*lines, "", ""])


def page() -> str:
    """The page with its table as the data has it."""
    return _MARKS.sub(lambda m: m[1] + table() + m[2], PATH.read_text(encoding="utf-8"))


def write() -> None:
    """Write docs/models.md."""
    PATH.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(write())
