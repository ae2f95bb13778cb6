"""Writes the tables of presets into docs/conventions.md, and the pictures of where each rounds.

Both come from the data of normkit.conventions alone.
"""

import re
from pathlib import Path

from normkit import Convention
from normkit._values import Dtypes, promoted
from normkit.conventions import PRESETS

PAGE = Path(__file__).parent / "conventions.md"
_SAID = {
    "original": "installed original",
    "source": "published formula; its source, by hand",
    "formula": "published formula",
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


_BFLOAT16 = Dtypes("bfloat16", "bfloat16", None)
_SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}

# order: the first product and the second; d is x, or x - mean
_PRODUCTS = {
    "normalize_first": ("d r", "h s"),
    "scale_statistic": ("r s", "d (r s)"),
    "scale_first": ("d s", "(d s) r"),
    "scale_input": ("x s", "(x s) r"),
    "affine": ("r s", "x a"),
}


def steps(c: Convention) -> list[str]:
    """What is computed and in which dtype, for x and scale of bfloat16: the cells of a row."""
    x = _BFLOAT16.of(c.input) or "bfloat16"
    statistics = _BFLOAT16.of_statistics(c)
    s = _BFLOAT16.of(c.scale) or "bfloat16"
    gated = x if c.gate != "before" else promoted(x, statistics)
    d = gated if c.kind != "layer_norm" else promoted(x, statistics)
    operands = {
        "normalize_first": ((d, statistics), s),
        "scale_statistic": ((statistics, s), d),
        "scale_first": ((d, s), statistics),
        "scale_input": ((x, s), statistics),
        "affine": ((statistics, s), x),
    }
    (one, other), last = operands[c.order]
    first = promoted(one, other)
    between = _BFLOAT16.of(c.between) or first
    second = promoted(between, last)
    norm, result = second, _BFLOAT16.of(c.output)
    if c.gate == "after":
        second = promoted(second, statistics)
    else:
        norm = result or second
    names = _PRODUCTS[c.order]
    if c.root == "divide":
        names = (names[0].replace("d r", "d / root"), names[1])
    return [
        _SHORT[x],
        "exact" if c.statistics == "exact" else _SHORT[statistics],
        f"{names[0]:9}{_rounding(first, between)}",
        _scale(c, s),
        f"{names[1]:9}{_rounding(promoted(between, last), norm)}",
        *_gate(c, gated, _rounding(second, result or second)),
    ]


def _gate(c: Convention, x: str, y: str) -> list[str]:
    """The product with the activation a."""
    return {None: [], "before": [f"x a  {_SHORT[x]}"], "after": [f"y a  {y}"]}[c.gate]


def _scale(c: Convention, dtype: str) -> str:
    if c.offset_added == "before_cast":
        return f"1 + bf16 > {_SHORT[dtype]}"
    return f"1 + {_SHORT[dtype]}" if c.offset else _SHORT[dtype]


def _rounding(computed: str, kept: str) -> str:
    return _SHORT[computed] if computed == kept else f"{_SHORT[computed]} > {_SHORT[kept]}"


def picture(kind: str) -> str:
    """A row of steps for each preset, as a block of plain text."""
    gate = ["gate"] if kind == "gated_rms_norm" else []
    rows = [["", "x", "statistics", "first product", "s", "second product", *gate]]
    rows += [[name, *steps(preset.convention)] for name, preset in PRESETS[kind].items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(["```text", *lines, "```"])


def with_tables(page: str) -> str:
    """``page`` with a fresh table or picture between each pair of markers."""
    for kind in PRESETS:
        for marker, text in ((kind, table(kind)), (f"{kind} steps", picture(kind))):
            page = re.sub(
                f"(<!-- {marker} -->\n).*?(\n<!-- end -->)",
                lambda found, text=text: f"{found[1]}{text}{found[2]}",
                page,
                flags=re.DOTALL,
            )
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
