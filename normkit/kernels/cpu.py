"""The kernel "numba": both norms over rows in memory, on any number of threads.

The bits do not depend on the number of threads: rows are apart from each other, and dscale and
dbias are sums of parts that the shape alone decides. Nothing here imports Numba before `loops`.
"""

import functools
import importlib.util
import math
import os
import platform
from collections.abc import Sequence
from types import ModuleType

DTYPES = ("float32", "float64", "bfloat16", "float16")

# The backward pass sums the parameters' gradients in at most so many parts, of so many elements
_MOST_PARTS, _PART = 64, 64 * 1024

# How a loop is told the dtype of scale or bias; 0 stands for none
KINDS = {name: kind for kind, name in enumerate(DTYPES, start=1)}


@functools.cache
def unavailable() -> str | None:
    """Why the kernel cannot run in this process, or None."""
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed: pip install 'normkit[cpu]'"
    if platform.machine().lower() in ("x86_64", "amd64"):
        import llvmlite.binding

        features = llvmlite.binding.get_host_cpu_features()
        missing = [name for name in ("fma", "f16c") if not features.get(name)]
        if missing:
            return f"the processor has no {' and no '.join(missing)}"
    return None


def row_step(
    shape: Sequence[int], strides: Sequence[int], normalized: int, unit: int
) -> int | None:
    """The stride from row to row, where the last ``normalized`` axes make a row; None without one.

    ``strides`` are in any unit; ``unit`` is that of one element. A row must be contiguous, and the
    rows must lie evenly.
    """
    axes = [(n, s) for n, s in zip(shape, strides, strict=True)][::-1]
    if not _evenly(axes[:normalized], unit):
        return None
    outer = [(n, s) for n, s in axes[normalized:] if n != 1]
    if not outer:
        return unit * math.prod(shape[len(shape) - normalized :])
    step = outer[0][1]
    return step if _evenly(outer, step) else None


def _evenly(axes: Sequence[tuple[int, int]], step: int) -> bool:
    """Whether axes of (size, stride), the last one first, are one axis of stride ``step``."""
    for size, stride in axes:
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def parts_of_sums(rows: int, width: int) -> int:
    """Into how many parts the rows fall whose dscale and dbias are summed apart."""
    return max(1, min(_MOST_PARTS, rows // 2, rows * width // _PART))


def default_threads() -> int:
    """OMP_NUM_THREADS, else the number of processors that this process may use."""
    try:
        return max(1, int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    except (KeyError, ValueError):
        return available_processors()


def available_processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def loops() -> ModuleType:
    """The module of `forward` and `backward`, which imports Numba."""
    from . import _run

    return _run
