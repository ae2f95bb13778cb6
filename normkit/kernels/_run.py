"""Calls of the loops: in one piece, or in parts on several threads."""

import struct
from typing import Any

import numpy as np

from . import _parts, cpu
from ._compiled import Parts, forward_loop, parts_of_backward, parts_of_forward
from ._threads import (
    borrow_workspace,
    new_workspace,
    return_workspace,
    run_parts,
    spare_workspaces,
    threads_for,
    use_openmp_of,
)

__all__ = [
    "backward",
    "forward",
    "forward_loop",
    "new_workspace",
    "spare_workspaces",
    "use_openmp_of",
]

# Elements of a part of the forward pass: a thread that is held up leaves the rest to the others
_PART = 256 * 1024


def forward(
    centre: bool | None,
    dtype: str,
    x: tuple[int, int],
    y: tuple[int, int],
    scale: tuple[int, int],
    bias: tuple[int, int],
    rows: int,
    width: int,
    eps: float,
    threads: int,
    residual: tuple[int, int] = (0, 0),
    total: tuple[int, int] = (0, 0),
) -> None:
    """Write the norm of x to y; with ``residual``, of total = x + residual, which is written too.

    Args:
        centre: True for LayerNorm, None for RMSNorm.
        dtype: Of x, y, residual and total.
        x, y, residual, total: (address of the first row, bytes from a row to the next).
        scale, bias: (address of ``width`` numbers, their `cpu.KINDS`), (0, 0) for none.
        threads: At most so many are used; the bits do not depend on it.
    """
    arrays = (*x, *residual, *total, *y, *scale, *bias)
    threads = threads_for(rows, rows * width, threads)
    if threads == 1:  # in few steps of Python: a single row takes no longer than they do
        work = borrow_workspace(3 * width)
        forward_loop(centre, dtype)(centre, 0, *arrays, work[1], 0, rows, width, eps)
        return_workspace(work)
        return
    parts = min(rows, max(threads, rows * width // _PART))
    _run(
        parts_of_forward(centre, dtype),
        _parts.FORWARD,
        threads,
        parts,
        *(3 * width, rows, width, eps, *arrays),
    )


def backward(
    centre: bool | None,
    dtype: str,
    dy_dtype: str,
    dy: tuple[int, int],
    x: tuple[int, int],
    dx: tuple[int, int],
    scale: tuple[int, int],
    has_bias: bool,
    rows: int,
    width: int,
    eps: float,
    threads: int,
) -> tuple[Any, Any]:
    """Write dx; the result is (dscale, dbias), float64 arrays of NumPy, dbias None without bias.

    dx has the dtype of x, dy that or float64. The other arguments are those of `forward`.
    """
    parts = cpu.parts_of_sums(rows, width)
    sums = np.zeros((1 + has_bias, parts, width))
    address: int = sums.__array_interface__["data"][0]
    _run(
        parts_of_backward(centre, dtype, dy_dtype, has_bias),
        _parts.BACKWARD,
        threads_for(parts, rows * width, threads),
        parts,
        *(5 * width, rows, width, eps, *dy, *x, *dx, *scale, address),
    )
    dscale, *dbias = sums.sum(axis=1)
    return dscale, dbias[0] if dbias else None


def _run(
    parts: Parts, form: struct.Struct, threads: int, count: int, work: int, *call: float
) -> None:
    """Have ``count`` parts taken, with ``work`` float64 numbers for each thread."""
    head = form.size // 8
    block = borrow_workspace(head + threads * work)
    form.pack_into(block[0].data, 0, 0, 0, count, block[1] + 8 * head, 8 * work, parts.loop, *call)
    run_parts(parts, block[1], threads)
    return_workspace(block)
