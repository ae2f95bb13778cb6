"""The forward pass of both norms over rows, as docs/numerics.md defines it."""

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from ._memory import HALF, RESULT, TOTAL, WORK, load, load_float32, store, trimmed
from ._statistics import again, standardized, statistics


def parameter(tag, kind, source, width, absent, work):
    """Write scale or bias, whose dtype `cpu.KINDS` names, in float32 for half types, else in float64.

    Where it is absent, ``absent`` is written.
    """
    raise NotImplementedError


@overload(parameter)
def _parameter(tag, kind, source, width, absent, work):
    wide = np.float32 if tag in HALF else np.float64

    # a loop for each, for a branch within one would keep it from vectors
    def copy(tag, kind, source, width, absent, work):
        if kind == 0:
            for j in range(width):
                store(WORK, wide(0), work, j, absent)
        elif kind == 1:
            for j in range(width):
                store(WORK, wide(0), work, j, load(np.float32(0), source, j))
        elif kind == 2:
            for j in range(width):
                store(WORK, wide(0), work, j, load(np.float64(0), source, j))
        elif kind == 3:
            for j in range(width):
                store(WORK, wide(0), work, j, load(np.uint16(0), source, j))
        else:
            for j in range(width):
                store(WORK, wide(0), work, j, load(np.int16(0), source, j))

    return copy


def scaled(tag, h, scale, index):
    """h scale, with the roundings that the dtype of x asks for."""
    raise NotImplementedError


@overload(scaled, inline="always")
def _scaled(tag, h, scale, index):
    if tag == types.float32:
        return lambda tag, h, scale, index: trimmed(h) * load(np.float64(0), scale, index)
    if tag in HALF:
        return lambda tag, h, scale, index: (
            np.float32(h) * load_float32(np.float32(0), scale, index)
        )
    return lambda tag, h, scale, index: h * load(np.float64(0), scale, index)


def biased(tag, y, bias, index):
    """y + bias, in the dtype of y."""
    raise NotImplementedError


@overload(biased, inline="always")
def _biased(tag, y, bias, index):
    if tag in HALF:
        return lambda tag, y, bias, index: y + load_float32(np.float32(0), bias, index)
    return lambda tag, y, bias, index: y + load(np.float64(0), bias, index)


@register_jitable
def add_rows(tag, x, residual, total, width):
    """total = x + residual, rounded to their dtype."""
    for j in range(width):
        store(TOTAL, tag, total, j, load(tag, x, j) + load(tag, residual, j))


def forward_rows(
    centre,
    tag,
    x,
    x_step,
    residual,
    residual_step,
    total,
    total_step,
    y,
    y_step,
    scale,
    scale_kind,
    bias,
    bias_kind,
    work,
    first,
    last,
    width,
    eps,
):
    """Rows ``first`` to ``last`` of y = h scale + bias, h = deviation r.

    x, y: addresses of the first row; steps are from row to row, in bytes. With ``residual`` not 0
    the norm is of total = x + residual, which is written. ``work``: memory for 3 rows of float64.
    """
    scale_work, bias_work = work + 8 * width, work + 16 * width
    parameter(tag, scale_kind, scale, width, 1.0, scale_work)
    if bias_kind != 0:
        parameter(tag, bias_kind, bias, width, 0.0, bias_work)
    for i in range(first, last):
        row, y_row = x + i * x_step, y + i * y_step
        if residual != 0:
            row = total + i * total_step
            add_rows(tag, x + i * x_step, residual + i * residual_step, row, width)
        mean, rest, r, _ = statistics(centre, tag, row, work, width, eps)
        if bias_kind == 0:
            for j in range(width):
                h = standardized(centre, tag, again(tag, row, work, j), mean, rest, r)
                store(RESULT, tag, y_row, j, scaled(tag, h, scale_work, j))
        else:
            for j in range(width):
                h = standardized(centre, tag, again(tag, row, work, j), mean, rest, r)
                store(
                    RESULT, tag, y_row, j, biased(tag, scaled(tag, h, scale_work, j), bias_work, j)
                )
