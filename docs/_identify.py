"""Writes into docs/identify.md which of eight presets identify tells apart, in which dtypes."""

import re
from pathlib import Path

import normkit
from normkit.conventions import RMS_NORM

PAGE = Path(__file__).parent / "identify.md"
EIGHT = ("llama", "gemma", "t5", "olmo", "torch", "flax_nnx", "keras", "paper")
DTYPES = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16",),
    "both": ("float32", "bfloat16"),
    "all four": ("float32", "bfloat16", "float16", "float64"),
}


def classes(name: str) -> list[set[str]]:
    """For each of `DTYPES`, those of the eight that no probe tells from the preset ``name``."""
    convention = RMS_NORM[name]
    return [
        set(EIGHT)
        & set(
            normkit.identify(
                lambda x, scale: normkit.rms_norm(x, scale, convention=convention), dtypes=dtypes
            ).presets
        )
        for dtypes in DTYPES.values()
    ]


def table() -> str:
    """The classes as a Markdown table."""
    lines = [f"| preset | {' | '.join(DTYPES)} |", "|---" * (1 + len(DTYPES)) + "|"]
    for name in EIGHT:
        cells = (
            ", ".join(f"`{other}`" for other in EIGHT if other in found and other != name) or "none"
            for found in classes(name)
        )
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def told_apart(page: str) -> dict[tuple[str, str], set[str]]:
    """The classes as the page has them, by preset and column."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", page, flags=re.MULTILINE)
    return {
        (name, column): {name, *re.findall(r"`(\w+)`", cell)}
        for name, cells in rows
        if name in EIGHT
        for column, cell in zip(DTYPES, cells.split("|"), strict=True)
    }


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    made = re.sub(
        r"(<!-- eight -->\n).*?(\n<!-- end -->)",
        lambda found: f"{found[1]}{table()}{found[2]}",
        text,
        flags=re.DOTALL,
    )
    PAGE.write_text(made, encoding="utf-8")
