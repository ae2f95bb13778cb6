"""What the loops of the kernel "numba" wait for: `python benchmarks/loops.py` writes docs/loops.md.

Each loop on one thread, on rows that lie in the cache and on rows that do not, beside two things
that it cannot do without: the conversions between its dtype and float64, and the memory that it
must move. A median is of turns that alternate with all others.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

from normkit.cli._bench._run import machine
from normkit.kernels import cpu

PATH = Path(__file__).parent.parent / "docs" / "loops.md"
_WIDTH, _IN_CACHE, _IN_MEMORY = 768, 128, 4096
_TURNS = 41
_CENTRE = {"RMSNorm": None, "LayerNorm": True}
_FORWARD, _BACKWARD = "x → y", "x, dy → dx"
# float32 <-> float64 for an element: each pass widens what it reads, the last one narrows too
_CONVERSIONS = {_FORWARD: 3, _BACKWARD: 5}


@njit(nogil=True)
def _convert(x: Any, y: Any) -> None:
    """Two conversions and a product."""
    for i in range(x.size):
        y[i] = np.float32(np.float64(x[i]) * 1.1)


def _loop(norm: str, passes: str, rows: int) -> Callable[[], object]:
    x, dy, y = (np.random.default_rng(0).standard_normal((3, rows, _WIDTH))).astype(np.float32)
    scale = np.ones(_WIDTH, np.float32)
    bias = scale if _CENTRE[norm] else None
    run, step = cpu.loops(), 4 * _WIDTH
    at = [(a.ctypes.data, step) for a in (x, y, dy)]
    parameters = [(p.ctypes.data, 1) if p is not None else (0, 0) for p in (scale, bias)]
    kept = x, dy, y, scale  # the addresses are of these

    def forward() -> object:
        run.forward(_CENTRE[norm], "float32", *at[:2], *parameters, rows, _WIDTH, 1e-5, 1)
        return kept

    def backward() -> object:
        dtypes = "float32", "float32"
        arrays = at[2], at[0], at[1], parameters[0], bias is not None
        return run.backward(_CENTRE[norm], *dtypes, *arrays, rows, _WIDTH, 1e-5, 1), kept

    return forward if passes == _FORWARD else backward


def _floor(passes: str, rows: int) -> Callable[[], object]:
    """NumPy's fastest way to move the same bytes."""
    x, dy, y = np.ones((3, rows * _WIDTH), np.float32)
    return lambda: np.copyto(y, x) if passes == _FORWARD else np.add(x, dy, out=y)


def _peer(norm: str, passes: str, rows: int) -> Callable[[], object]:
    """PyTorch's own kernel of LayerNorm; its RMSNorm is several."""
    x, dy = torch.randn(2, rows, _WIDTH)
    weight, shape = torch.ones(_WIDTH), (_WIDTH,)
    _, mean, rstd = torch.native_layer_norm(x, shape, weight, weight, 1e-5)
    if passes == _FORWARD:
        return lambda: torch.native_layer_norm(x, shape, weight, weight, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward
    return lambda: backward(dy, x, shape, mean, rstd, weight, weight, [True] * 3)


def measured() -> dict[tuple[str, str, int], float]:
    """Nanoseconds an element of each (what, passes, rows)."""
    functions: dict[tuple[str, str, int], Callable[[], object]] = {}
    for rows in (_IN_CACHE, _IN_MEMORY):
        x, y = np.ones((2, rows * _WIDTH), np.float32)
        functions["conversion", "", rows] = lambda x=x, y=y: _convert(x, y)
        for passes in _CONVERSIONS:
            functions["memory", passes, rows] = _floor(passes, rows)
            functions["torch LayerNorm", passes, rows] = _peer("LayerNorm", passes, rows)
            for norm in _CENTRE:
                functions[norm, passes, rows] = _loop(norm, passes, rows)
    times: dict[tuple[str, str, int], list[float]] = {key: [] for key in functions}
    for _ in range(_TURNS):
        for key, function in functions.items():
            repeats = _IN_MEMORY // key[2]
            function()  # what lies in the cache is there
            begin = time.perf_counter()
            for _ in range(repeats):
                function()
            elements = _IN_MEMORY * _WIDTH
            times[key].append((time.perf_counter() - begin) / elements * 1e9)
    return {key: statistics.median(values) for key, values in times.items()}


def page() -> str:
    """The page, measured now."""
    torch.set_num_threads(1)
    found = measured()
    conversion = found["conversion", "", _IN_CACHE] / 2
    lines = []
    for passes, count in _CONVERSIONS.items():
        for what in (*_CENTRE, "torch LayerNorm", "memory"):
            cells = [f"{found[what, passes, rows]:.2f}" for rows in (_IN_CACHE, _IN_MEMORY)]
            ours = f"{count * conversion:.2f}" if what in _CENTRE else ""
            lines.append(f"| {passes} | {what} | {cells[0]} | {ours} | {cells[1]} |")
    both = [
        sum(found[what, passes, _IN_MEMORY] for passes in _CONVERSIONS)
        for what in ("torch LayerNorm", "memory")
    ]
    host = machine()
    return _PAGE.format(
        table="\n".join(lines),
        machine=host["processor"],
        processors=host["processors"],
        peer=f"{both[0]:.2f}",
        floor=f"{both[1]:.2f}",
        left=f"{both[0] / 1.5:.2f}",
    )


_PAGE = """\
# What the loops wait for

This page is written by `python benchmarks/loops.py`: {machine}, {processors} processors, one thread,
float32, rows of 768. Nanoseconds an element: *in the cache* are 128 rows, *in memory* 4096, of which
x, dy and dx together do not fit the cache.

| pass | loop | in the cache | of which conversions | in memory |
|---|---|---|---|---|
{table}

- **Conversions.** Each pass over a row widens what it reads to float64, and the last one rounds what it
  writes: three conversions an element forward, five backward. Their time is that of a loop of two
  conversions and a product. PyTorch computes in float32 and has none; that is what exactness costs
  where data lie in the cache.
- **Memory.** *memory* is NumPy's copy, and its sum of two arrays, which move the bytes that any kernel
  must: {floor} ns forward and backward, in memory. PyTorch's LayerNorm takes {peer} ns. To be 1.5 times
  as fast would be {left} ns.
"""


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
    print(PATH.read_text(encoding="utf-8"))
