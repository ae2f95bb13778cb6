"""Calls of the loops: in one piece, or in parts on several threads."""

from typing import Any

import numpy as np

from . import cpu
from ._compiled import backward_loop, forward_loop
from ._threads import borrow_workspace, parts_for, return_workspace, run_parts


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
    loop = forward_loop(centre, dtype)
    arrays = (*x, *residual, *total, *y, *scale, *bias)
    parts = parts_for(rows, rows * width, threads)
    if parts == 1:  # in few steps of Python: a single row takes no longer than they do
        work = borrow_workspace(3 * width)
        loop(centre, 0, *arrays, work[1], 0, rows, width, eps)
        return_workspace(work)
        return

    def run(first: int, last: int) -> None:
        work = borrow_workspace(3 * width)
        loop(centre, 0, *arrays, work[1], first, last, width, eps)
        return_workspace(work)

    run_parts(run, rows, parts)


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
    loop = backward_loop(centre, dtype, dy_dtype, has_bias)
    parts = cpu.parts_of_sums(rows, width)
    sums = np.zeros((1 + has_bias, parts, width))
    address: int = sums.__array_interface__["data"][0]

    def run(first: int, last: int) -> None:
        work = borrow_workspace(5 * width)
        for part in range(first, last):
            dscale = address + 8 * width * part
            dbias = dscale + 8 * width * parts if has_bias else None
            bounds = rows * part // parts, rows * (part + 1) // parts
            loop(centre, 0, 0, *dy, *x, *dx, *scale, dscale, dbias, work[1], *bounds, width, eps)
        return_workspace(work)

    run_parts(run, parts, parts_for(parts, rows * width, threads))
    dscale, *dbias = sums.sum(axis=1)
    return dscale, dbias[0] if dbias else None
