"""Whole models end to end: `make e2e`. Prints a table, writes tests/data/e2e.json and its page.

Exit status 1 where a bar is missed. Names of cases as arguments run those alone and write nothing.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))

import e2e_page
import gpt2
import minilm
import smollm2
from rich.console import Console
from rich.table import Table

CASES = {"smollm2": smollm2, "minilm": minilm, "gpt2": gpt2}


def main(names: list[str]) -> int:
    """Run the cases, all of them if none is named."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    console, missed, results = Console(), 0, {}
    for name in names or CASES:
        start = time.perf_counter()
        title = CASES[name].TITLE
        table = Table("", "measured", "bar", "", title=title)
        with console.status(title):  # minutes
            bars = list(CASES[name].run())
        for bar in bars:
            kept = "" if bar.sign is None else "ok" if bar.holds else "MISSED"
            table.add_row(bar.what, e2e_page.number(bar.value), bar.said, kept)
        console.print(table, f"{time.perf_counter() - start:.0f} s\n")
        missed += sum(not bar.holds for bar in bars)
        results[title] = [bar._asdict() for bar in bars]
    if not names and not missed:
        e2e_page.DATA.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        e2e_page.write()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
