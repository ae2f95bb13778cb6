"""Calls of the loops: in one piece, or in parts on several threads."""

import struct
from collections.abc import Callable
from typing import Any

from . import _parts, cpu
from ._backward import backward_work
from ._compiled import Parts, forward_loop, parts_of_backward, parts_of_forward
from ._forward import forward_work
from ._threads import (
    LARGE,
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
    "backward_work",
    "forward",
    "forward_work",
    "prepared_forward",
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
    call = prepared_forward(
        *(centre, dtype, x[1], y[1], scale[1], bias[1], rows, width, eps, residual, total)
    )
    call(x[0], y[0], scale[0], bias[0], lambda: threads)


def prepared_forward(
    centre: bool | None,
    dtype: str,
    x_step: int,
    y_step: int,
    scale_kind: int,
    bias_kind: int,
    rows: int,
    width: int,
    eps: float,
    residual: tuple[int, int] = (0, 0),
    total: tuple[int, int] = (0, 0),
) -> Callable[[int, int, int, int, Callable[[], int]], None]:
    """`forward` of addresses x, y, scale and bias and the number of threads, with all else known.

    A single row takes no longer than the steps of Python before it: here they are few.
    """
    loop, most = forward_loop(centre, dtype), threads_for(rows, rows * width)
    size, parts = forward_work(width), rows * width // _PART
    spare = spare_workspaces(size)
    z, z_step, s, s_step = *residual, *total

    # fmt: off
    def call(x: int, y: int, scale: int, bias: int, threads: Callable[[], int]) -> None:
        if most == 1 or threads() == 1:
            try:
                work = spare.pop()
            except IndexError:
                work = new_workspace(size)
            loop(
                centre, 0, x, x_step, z, z_step, s, s_step, y, y_step,
                scale, scale_kind, bias, bias_kind, work[1], 0, rows, width, eps,
            )
            if size < LARGE:
                spare.append(work)
            return
        several = min(most, threads())
        _run(
            parts_of_forward(centre, dtype), _parts.FORWARD,
            several, min(rows, max(several, parts)), size, rows, width, eps,
            x, x_step, z, z_step, s, s_step, y, y_step, scale, scale_kind, bias, bias_kind,
        )
    # fmt: on

    return call


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
    count = 1 + has_bias
    workspace = array, address = borrow_workspace(count * parts * width)
    sums = array[: count * parts * width].reshape(count, parts, width)
    sums[:] = 0.0
    _run(
        parts_of_backward(centre, dtype, dy_dtype, has_bias),
        _parts.BACKWARD,
        min(threads, threads_for(parts, rows * width)),
        parts,
        *(backward_work(width), rows, width, eps, *dy, *x, *dx, *scale, address),
    )
    dscale, *dbias = sums.sum(axis=1)
    return_workspace(workspace)
    return dscale, dbias[0] if dbias else None


def _run(
    parts: Parts, form: struct.Struct, threads: int, count: int, work: int, *call: float
) -> None:
    """Have ``count`` parts taken, with ``work`` float64 numbers for each thread."""
    head = form.size // 8
    block = borrow_workspace(head + threads * work)
    form.pack_into(
        block[0].data, 0, 0, 0, 0, count, threads, block[1] + 8 * head, 8 * work, parts.loop, *call
    )
    run_parts(parts, block[1], threads)
    return_workspace(block)
