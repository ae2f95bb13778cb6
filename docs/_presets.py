"""Writes the tables of presets into docs/conventions.md, from the data of normkit.conventions."""

import re
from pathlib import Path

from normkit.conventions import PRESETS

PAGE = Path(__file__).parent / "conventions.md"
_SAID = {
    "original": "installed original",
    "formula": "published formula",
    "unchecked": "not checked",
}


def table(kind: str) -> str:
    """The presets of one norm as a Markdown table."""
    lines = ["| name | follows | eps | other fields | compared with |", "|---|---|---|---|---|"]
    for name, preset in PRESETS[kind].items():
        c = preset.convention
        fields = {k: v for k, v in c.changed().items() if k not in ("kind", "eps")}
        said = " ".join(f"`{k}={v!r}`" for k, v in fields.items())
        eps = c.eps if isinstance(c.eps, str) else f"{c.eps:g}"
        row = (f"`{name}`", preset.source, eps, said, _SAID[preset.checked])
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """``page`` with a fresh table between each pair of markers."""
    for kind in PRESETS:
        page = re.sub(
            f"(<!-- {kind} -->\n).*?(\n<!-- end -->)",
            lambda found, kind=kind: f"{found[1]}{table(kind)}{found[2]}",
            page,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
