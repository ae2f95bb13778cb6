"""docs/contract.md from the three files of data/ that `make contract` writes with it.

Only what the files say is shown, so that a test can compare the page with them.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent.parent / "docs" / "contract.md"
_DATA = Path(__file__).parent / "data"

_OPS = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm"}
_HEAD = """\
# The contract in numbers

This page is generated from `tests/data/contract.json` and `tests/data/peers.json` by
`make contract`. [Numerics](numerics.md) explains the promise and the floor.

Measured over all `normkit.testing.hard_inputs` and the recorded activations, dscale and dbias over
those with scale and bias:

- *worst*: the largest error in ULPs beyond the floor; 0.5 is correct rounding. float64's floor is
  its whole bound, so that more than 0 is seen only of errors too small for a float64, which a
  subnormal result has.
- *misrounded*: the share of elements that are not the exact result rounded once.
- *differing bits*: elements whose bits are not those of NumPy; promised to be 0 for the result,
  float64 apart. `numpy:pairs` and `torch:pairs` run the kernel
  [`pairs`](numerics.md#without-float64), with its own floor, and differ from the default where that
  has the other neighbour of a tie, and everywhere in float64.

The last column says what the bound of 0.501 ULP rests on, or float64's bound. *proved*: by the
argument in [numerics](numerics.md#why-this-is-enough), for any row of up to 2^20 elements.
*exhaustive at n = 1*: on these inputs, and for each of the 65 536 values of the dtype as a row of
one element at three eps. *observed*: on these inputs, and by fuzzing. The shares and the differing
bits are observed everywhere; no number here is a bound on them.
"""
_LENGTHS_HEAD = """
## Lengths in pairs, compiled by XLA

float32 rows with scale and bias in the kernel `pairs` under `jax.jit`: where a compiler merges a product
with a sum, odd lengths show it. Both norms at each length from 1 to 257. XLA takes up to 20 s a length
to optimise LayerNorm *wholly*: most lengths from 115 on were compiled on its first level of
optimisation. *Differing bits* are those that are not NumPy's in pairs. Observed; measured by
`make contract` alone.

"""
_PEERS_HEAD = """
## Beside the frameworks' own layers

The worst error in ULPs on float32 rows. From 2^23 on, 8.4e6, no digit is right; *NaN*: NaN or
infinity came in place of a number. normkit's is the worst of all backends on the CPU.
tests/test_peers.py asserts that it is within 0.501, and that the others are off.

"""


def page() -> str:
    """The whole page."""
    contract = json.loads((_DATA / "contract.json").read_text(encoding="utf-8"))
    peers = json.loads((_DATA / "peers.json").read_text(encoding="utf-8"))
    parts = [_HEAD]
    for op in _OPS:
        for part in ("forward", "dx", "dscale", "dbias"):
            parts.append("\n".join(_section(contract, op, part)) + "\n")
    lengths = json.loads((_DATA / "pairs_lengths.json").read_text(encoding="utf-8"))
    parts.append(_LENGTHS_HEAD + "\n".join(_lengths_table(lengths)) + "\n")
    return "".join(parts) + _PEERS_HEAD + "\n".join(_peers_table(peers)) + "\n"


def write() -> None:
    """Write docs/contract.md."""
    PATH.write_text(page(), encoding="utf-8")


def evidence(arithmetic: str, op: str, dtype: str, part: str) -> str:
    """What the worst error's bound rests on. ``arithmetic`` is that of the backend's row sums."""
    if part != "forward" or dtype == "float64":
        return "observed"
    if dtype in ("float16", "bfloat16"):
        return "exhaustive at n = 1, else observed"
    return "proved" if op == "rms_norm" and arithmetic == "float64" else "observed"


def _section(contract: dict[str, Any], op: str, part: str) -> Iterator[str]:
    from contract import BACKENDS  # which imports this module

    yield f"\n## {_OPS[op]}, {'the result' if part == 'forward' else part}\n"
    yield "| dtype | backend | worst | misrounded | differing bits | of | the bound is |"
    yield "|---|---|---|---|---|---|---|"
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for label, arithmetic in BACKENDS.items():
            row = contract[f"{label} {op} {dtype}"][part]
            share = f"{100 * row['misrounded'] / row['of']:.3f} %"
            proof = evidence(arithmetic, op, dtype, part)
            cells = (dtype, label, f"{row['worst']:.5f}", share, row["differing"], row["of"], proof)
            yield "| " + " | ".join(map(str, cells)) + " |"


def _lengths_table(lengths: dict[str, Any]) -> Iterator[str]:
    yield "| op | lengths | of them wholly optimised | worst | misrounded | differing bits | of |"
    yield "|---|---|---|---|---|---|---|"
    for op, row in lengths.items():
        share = f"{100 * row['misrounded'] / row['of']:.3f} %"
        worst = f"{row['worst']:.5f}"
        counts = row["lengths"], row["wholly optimised"]
        cells = (_OPS[op], *counts, worst, share, row["differing"], row["of"])
        yield "| " + " | ".join(map(str, cells)) + " |"


def _peers_table(peers: list[dict[str, Any]]) -> Iterator[str]:
    names = [name for name in peers[0] if name not in ("op", "name")]
    yield f"| op | rows | {' | '.join(names)} |"
    yield "|---" * (len(names) + 2) + "|"
    for row in peers:
        errors = ["NaN" if row[name] is None else f"{row[name]:.3g}" for name in names]
        yield f"| {_OPS[row['op']]} | {row['name']} | {' | '.join(errors)} |"


if __name__ == "__main__":
    sys.exit(write())
