"""Rows split over threads: loops without Python's lock, run by one pool for all callers."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from threading import local
from typing import Any

import numpy as np

from . import cpu

_KEPT_BYTES = 1 << 20

_pool: ThreadPoolExecutor | None = None
_spare = local()


def run_parts(run: Callable[[int, int], None], count: int, parts: int) -> None:
    """``run(first, last)`` on ``parts`` ranges that make up ``range(count)``, at the same time."""
    bounds = [count * k // parts for k in range(parts + 1)]
    futures: list[Future[None]] = []
    try:
        for first, last in pairwise(bounds[1:]):
            futures.append(_threads().submit(run, first, last))
    except RuntimeError:  # the interpreter is ending and takes no new work
        run(bounds[1 + len(futures)], count)
    run(0, bounds[1])
    wait(futures)
    for future in futures:
        future.result()


def parts_for(count: int, elements: int, threads: int) -> int:
    """How many parts of ``count`` are worth a thread each."""
    return max(1, min(threads, count, elements // cpu.SERIAL))


def borrow_workspace(size: int) -> tuple[np.ndarray[Any, Any], int]:
    """``size`` float64 numbers for the calling thread alone, and their address."""
    spare = _spare.__dict__.get("pair")
    if spare is not None and spare[0].size >= size:
        _spare.pair = None  # not for a caller inside of this one: a finaliser, a signal
        return spare[0], spare[1]
    array = np.empty(size)
    return array, array.__array_interface__["data"][0]


def return_workspace(pair: tuple[np.ndarray[Any, Any], int]) -> None:
    """Keep a workspace for the thread's next call, unless it is large."""
    if pair[0].nbytes <= _KEPT_BYTES:
        _spare.pair = pair


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(cpu.available_processors(), thread_name_prefix="normkit")
    return _pool


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
