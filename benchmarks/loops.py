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
from normkit.kernels._lanes import LANES, lanes, load_lanes, store_lanes
from normkit.kernels._memory import SIZE, TAGS, load

PATH = Path(__file__).parent.parent / "docs" / "loops.md"
_WIDTH, _IN_CACHE, _IN_MEMORY = 768, 128, 4096
_TURNS = 21
_DTYPES = ("float32", "bfloat16", "float16")
_CENTRE = {"RMSNorm": None, "LayerNorm": True}
_FORWARD, _BACKWARD = "x → y", "x, dy → dx"

# (what, passes, dtype, rows)
Key = tuple[str, str, str, int]


def _conversions(dtype: str) -> dict[str, Callable[[], object]]:
    """Passes over rows in the cache that convert and do next to nothing else."""
    tag, elements = TAGS[dtype], _IN_CACHE * _WIDTH
    bytes_ = np.zeros(elements * SIZE[tag], np.uint8)

    @njit(nogil=True, error_model="numpy", fastmath=True)
    def widen(x: int) -> float:
        total = 0.0
        for i in range(elements):
            total += load(tag(0), x, i)
        return total

    @njit(nogil=True)
    def widen_and_narrow(x: int) -> None:
        like = lanes(0.0)
        for i in range(0, elements, LANES):
            store_lanes(tag(0), x, i, load_lanes(like, tag(0), x, i) * 1.1)

    @njit(nogil=True)
    def in_float32(x: int) -> None:
        like = lanes(np.float32(0.0))
        for i in range(0, elements, LANES):
            store_lanes(tag(0), x, i, load_lanes(like, tag(0), x, i) * np.float32(1.1))

    def of(loop: Any) -> Callable[[], object]:
        return lambda: loop(bytes_.ctypes.data)

    return {
        "widen": of(widen),
        "widen and narrow": of(widen_and_narrow),
        "in float32": of(in_float32),
    }


def _converting(norm: str, passes: str, dtype: str) -> tuple[str, ...]:
    """What a loop converts: its sums widen what they read, its results are narrowed too."""
    if passes == _BACKWARD:
        return "widen", "widen", "widen", "widen and narrow"
    if dtype == "float32":
        return "widen", "widen and narrow"
    # RMSNorm makes h in float32, LayerNorm keeps what it has widened
    return ("widen", "in float32") if norm == "RMSNorm" else ("widen and narrow",)


def _loop(norm: str, passes: str, dtype: str, rows: int) -> Callable[[], object]:
    kind = getattr(torch, dtype)
    x, dy, y = torch.randn(3, rows, _WIDTH).to(kind)
    scale = torch.ones(_WIDTH, dtype=kind)
    bias = scale if _CENTRE[norm] else None
    run, step = cpu.loops(), x.element_size() * _WIDTH
    at = [(a.data_ptr(), step) for a in (x, y, dy)]
    number = cpu.KINDS[dtype]
    parameters = [(p.data_ptr(), number) if p is not None else (0, 0) for p in (scale, bias)]

    kept = x, dy, y, scale  # the addresses are of these

    def forward() -> object:
        run.forward(_CENTRE[norm], dtype, *at[:2], *parameters, rows, _WIDTH, 1e-5, 1)
        return kept

    def backward() -> object:
        call = at[2], at[0], at[1], parameters[0], bias is not None
        return run.backward(_CENTRE[norm], dtype, dtype, *call, rows, _WIDTH, 1e-5, 1), kept

    return forward if passes == _FORWARD else backward


def _memory(passes: str, dtype: str, rows: int) -> Callable[[], object]:
    """NumPy's fastest way to move the same bytes."""
    x, dy, y = np.ones((3, rows * _WIDTH * SIZE[TAGS[dtype]] // 4), np.float32)
    return lambda: np.copyto(y, x) if passes == _FORWARD else np.add(x, dy, out=y)


def _peer(passes: str, dtype: str, rows: int) -> Callable[[], object]:
    """PyTorch's own kernel of LayerNorm; its RMSNorm is several."""
    x, dy = torch.randn(2, rows, _WIDTH).to(getattr(torch, dtype))
    weight, shape = torch.ones(_WIDTH, dtype=x.dtype), (_WIDTH,)
    _, mean, rstd = torch.native_layer_norm(x, shape, weight, weight, 1e-5)
    if passes == _FORWARD:
        return lambda: torch.native_layer_norm(x, shape, weight, weight, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward
    return lambda: backward(dy, x, shape, mean, rstd, weight, weight, [True] * 3)


def _functions() -> dict[Key, Callable[[], object]]:
    functions: dict[Key, Callable[[], object]] = {}
    for dtype in _DTYPES:
        for name, function in _conversions(dtype).items():
            functions[name, "", dtype, _IN_CACHE] = function
        for passes in (_FORWARD, _BACKWARD):
            for rows in (_IN_CACHE, _IN_MEMORY):
                functions["memory", passes, dtype, rows] = _memory(passes, dtype, rows)
                functions["torch LayerNorm", passes, dtype, rows] = _peer(passes, dtype, rows)
                for norm in _CENTRE:
                    functions[norm, passes, dtype, rows] = _loop(norm, passes, dtype, rows)
    return functions


def measured() -> dict[Key, float]:
    """Nanoseconds an element of each."""
    functions = _functions()
    times: dict[Key, list[float]] = {key: [] for key in functions}
    for _ in range(_TURNS):
        for key, function in functions.items():
            repeats = _IN_MEMORY // key[3]
            function()  # what lies in the cache is there
            begin = time.perf_counter()
            for _ in range(repeats):
                function()
            elements = _IN_MEMORY * _WIDTH
            times[key].append((time.perf_counter() - begin) / elements * 1e9)
    return {key: statistics.median(values) for key, values in times.items()}


def _lines(found: dict[Key, float]) -> list[str]:
    lines = []
    for dtype in _DTYPES:
        for passes in (_FORWARD, _BACKWARD):
            for what in (*_CENTRE, "torch LayerNorm", "memory"):
                cells = [
                    f"{found[what, passes, dtype, rows]:.2f}" for rows in (_IN_CACHE, _IN_MEMORY)
                ]
                names = _converting(what, passes, dtype) if what in _CENTRE else ()
                ours = f"{sum(found[name, '', dtype, _IN_CACHE] for name in names):.2f}"
                lines.append(
                    f"| {dtype} | {passes} | {what} | {cells[0]} | {ours if names else ''} | {cells[1]} |"
                )
    return lines


def page() -> str:
    """The page, measured now."""
    torch.set_num_threads(1)
    found = measured()

    def both(what: str, dtype: str) -> float:
        return sum(found[what, passes, dtype, _IN_MEMORY] for passes in (_FORWARD, _BACKWARD))

    host = machine()
    copy = found["memory", _FORWARD, "bfloat16", _IN_CACHE]
    names = _converting("RMSNorm", _FORWARD, "bfloat16")
    return _PAGE.format(
        table="\n".join(_lines(found)),
        machine=host["processor"],
        processors=host["processors"],
        peer=f"{both('torch LayerNorm', 'float32'):.2f}",
        floor=f"{both('memory', 'float32'):.2f}",
        left=f"{both('torch LayerNorm', 'float32') / 1.5:.2f}",
        copy=f"{copy:.2f}",
        converting=f"{sum(found[name, '', 'bfloat16', _IN_CACHE] for name in names):.2f}",
    )


_PAGE = """\
# What the loops wait for

This page is written by `python benchmarks/loops.py`: {machine}, {processors} processors, one thread,
rows of 768. Nanoseconds an element: *in the cache* are 128 rows, *in memory* 4096, of which x, dy and
dx of float32 together do not fit the cache; those of half types nearly do.

| dtype | pass | loop | in the cache | of which conversions | in memory |
|---|---|---|---|---|---|
{table}

- **Conversions.** Each pass over a row widens what it reads to float64, and the last one rounds what it
  writes: three conversions an element forward, five backward. (Of half types, LayerNorm keeps what it
  widened forward, and RMSNorm's second pass is in float32.) Their time is that of loops that convert as
  often and do no more than a sum or a product. PyTorch computes in float32 and has none for float32; that
  is what exactness costs where data lie in the cache.
- **Memory.** *memory* is NumPy's copy, and its sum of two arrays, which move the bytes that any kernel
  must: {floor} ns forward and backward for float32, in memory. PyTorch's LayerNorm takes {peer} ns. To be
  1.5 times as fast would be {left} ns.
- **A copy of bfloat16** takes {copy} ns in the cache, for it reads no number. Widening twice and
  rounding, without which there is no RMSNorm, take {converting}.
"""


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
    print(PATH.read_text(encoding="utf-8"))
