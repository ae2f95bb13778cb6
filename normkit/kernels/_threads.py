"""Threads for the parts of a call: those of the process's OpenMP library, or a pool of Python's.

A framework's own threads are awake when it calls, and with others beside them there would be more
threads than processors.
"""

import ctypes
import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeAlias

import numpy as np

from . import cpu
from ._compiled import Parts

Workspace: TypeAlias = tuple[np.ndarray[Any, Any], int]

# Workspaces of so many numbers are not kept for the next call
LARGE = 1 << 17

# So many elements are worth a thread of their own: Python takes longer to start one
_WORTH_OPENMP, _WORTH_PYTHON = 16 * 1024, 256 * 1024

_openmp: Callable[[int, int, int, int], None] | None = None
_pool: ThreadPoolExecutor | None = None
_spare: dict[int, list[Workspace]] = defaultdict(list)


def use_openmp_of(library: str) -> None:
    """From now on, parts run on the threads of the OpenMP that the file ``library`` is linked to.

    Nothing changes where that has no interface of GNU's.
    """
    global _openmp
    try:
        parallel = ctypes.CDLL(library).GOMP_parallel
    except (OSError, AttributeError):
        return
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    _openmp = parallel


def threads_for(rows: int, elements: int) -> int:
    """How many threads are worth their start."""
    return max(1, min(rows, elements // (_WORTH_PYTHON if _openmp is None else _WORTH_OPENMP)))


def run_parts(parts: Parts, block: int, threads: int) -> None:
    """Have ``threads`` threads take parts, this one among them, until none is left."""
    if threads == 1:
        parts.call(block)
    elif _openmp is not None:
        _openmp(parts.address, block, threads, 0)
    else:
        _run_in_pool(parts.call, block, threads)


def _run_in_pool(call: Callable[[int], None], block: int, threads: int) -> None:
    futures: list[Future[None]] = []
    try:
        for _ in range(threads - 1):
            futures.append(_threads().submit(call, block))
    except RuntimeError:  # the interpreter is ending and takes no new work: all is left to this one
        pass
    call(block)
    begun = [future for future in futures if not future.cancel()]
    wait(begun)
    for future in begun:
        future.result()


def spare_workspaces(size: int) -> list[Workspace]:
    """Those that can hold ``size`` float64 numbers and that no call uses now.

    Whoever pops one has it alone until appending it. Where none is left, `new_workspace` makes one.
    """
    return _spare[size.bit_length()]


def new_workspace(size: int) -> Workspace:
    """Room for ``size`` float64 numbers, and its address."""
    array = np.empty(1 << size.bit_length())
    return array, array.__array_interface__["data"][0]


def borrow_workspace(size: int) -> Workspace:
    """A spare workspace, or a new one."""
    try:
        return spare_workspaces(size).pop()
    except IndexError:
        return new_workspace(size)


def return_workspace(workspace: Workspace) -> None:
    """Keep a workspace for other calls, unless it is large."""
    if workspace[0].size <= LARGE:
        spare_workspaces(workspace[0].size - 1).append(workspace)


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(cpu.available_processors(), thread_name_prefix="normkit")
    return _pool


def _forget() -> None:
    """A forked child has none of its parent's threads, and OpenMP would wait for them."""
    global _openmp, _pool
    _openmp = _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
