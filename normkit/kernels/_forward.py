"""The forward pass of both norms over rows, as docs/numerics.md defines it."""

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from ._memory import (
    HALF,
    RESULT,
    TAGS,
    TOTAL,
    WORK,
    fused,
    fused_float32,
    keep,
    load,
    load_float32,
    store,
    trimmed,
)
from ._statistics import again, standardizing
from .cpu import KINDS


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


def wide(tag):
    """The tag of scale and bias as `parameter` writes them."""
    raise NotImplementedError


@overload(wide, inline="always")
def _wide(tag):
    return (lambda tag: np.float32(0)) if tag in HALF else (lambda tag: np.float64(0))


def kind(tag):
    """The dtype of x among `cpu.KINDS`."""
    raise NotImplementedError


@overload(kind, inline="always")
def _kind(tag):
    number = KINDS[next(name for name, own in TAGS.items() if own == tag)]
    return lambda tag: number


def scaled(tag, h, scale_tag, scale, index):
    """h scale, with the roundings that the dtype of x asks for."""
    raise NotImplementedError


@overload(scaled, inline="always")
def _scaled(tag, h, scale_tag, scale, index):
    if tag == types.float32:
        return lambda tag, h, scale_tag, scale, index: trimmed(h) * load(scale_tag, scale, index)
    if tag in HALF:
        return lambda tag, h, scale_tag, scale, index: (
            np.float32(h) * load_float32(scale_tag, scale, index)
        )
    return lambda tag, h, scale_tag, scale, index: h * load(scale_tag, scale, index)


def scaled_and_biased(tag, h, parameter_tag, scale, bias, index):
    """h scale + bias, with the roundings that the dtype of x asks for.

    float32 asks for none before the last one: a fused operation is closer to it than two.
    """
    raise NotImplementedError


@overload(scaled_and_biased, inline="always")
def _scaled_and_biased(tag, h, parameter_tag, scale, bias, index):
    if tag == types.float32:
        return lambda tag, h, parameter_tag, scale, bias, index: fused(
            trimmed(h), load(parameter_tag, scale, index), load(parameter_tag, bias, index)
        )
    if tag in HALF:
        return lambda tag, h, parameter_tag, scale, bias, index: (
            scaled(tag, h, parameter_tag, scale, index) + load_float32(parameter_tag, bias, index)
        )
    return lambda tag, h, parameter_tag, scale, bias, index: (
        scaled(tag, h, parameter_tag, scale, index) + load(parameter_tag, bias, index)
    )


@register_jitable
def write_row(value_tag, tag, x, work, terms, y, parameter_tag, scale, bias_kind, bias, width):
    """y of a row."""
    r, shift = terms
    if bias_kind == 0:
        for j in range(width):
            h = fused(again(value_tag, x, work, j), r, shift)
            store(RESULT, tag, y, j, scaled(tag, h, parameter_tag, scale, j))
    else:
        for j in range(width):
            h = fused(again(value_tag, x, work, j), r, shift)
            store(RESULT, tag, y, j, scaled_and_biased(tag, h, parameter_tag, scale, bias, j))


@register_jitable
def write_half_row(tag, x, r, y, parameter_tag, scale, bias_kind, bias, width):
    """y of a row of RMSNorm, in float32: h = x r is rounded once, for r is a sum of two numbers.

    x high + x low is within 2^-46 of x r, and half a digit of float32 is 2^-24. high is not above r:
    so low is not negative, and -0 stays -0.
    """
    high = np.float32(r * (1.0 - 2.0**-24))
    low = np.float32(r - np.float64(high))
    if bias_kind == 0:
        for j in range(width):
            value = load_float32(tag, x, j)
            h = fused_float32(value, high, value * low)
            store(RESULT, tag, y, j, scaled(tag, h, parameter_tag, scale, j))
    else:
        for j in range(width):
            value = load_float32(tag, x, j)
            h = fused_float32(value, high, value * low)
            store(RESULT, tag, y, j, scaled_and_biased(tag, h, parameter_tag, scale, bias, j))


def write(centre, tag, x, work, terms, y, parameter_tag, scale, bias_kind, bias, width):
    """y of a row whose values `again` finds, by the way that is faster."""
    raise NotImplementedError


@overload(write)
def _write(centre, tag, x, work, terms, y, parameter_tag, scale, bias_kind, bias, width):
    def in_float64(centre, tag, x, work, terms, y, parameter_tag, scale, bias_kind, bias, width):
        write_row(tag, tag, x, work, terms, y, parameter_tag, scale, bias_kind, bias, width)

    def of_half(centre, tag, x, work, terms, y, parameter_tag, scale, bias_kind, bias, width):
        r = terms[0]
        if 2.0**-100 < r < 2.0**100:  # well inside of float32's range
            write_half_row(tag, x, r, y, parameter_tag, scale, bias_kind, bias, width)
        else:
            for j in range(width):  # which the sum of squares did not
                keep(work, j, load(tag, x, j))
            write_row(tag, tag, x, work, terms, y, parameter_tag, scale, bias_kind, bias, width)

    return of_half if tag in HALF and isinstance(centre, types.NoneType) else in_float64


@register_jitable
def parameters(tag, scale_kind, scale, scale_work, bias_kind, bias, bias_work, width):
    """Write scale, and bias if there is one, to working memory."""
    parameter(tag, scale_kind, scale, width, 1.0, scale_work)
    if bias_kind != 0:
        parameter(tag, bias_kind, bias, width, 0.0, bias_work)


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
    """Rows ``first`` to ``last`` of y = h scale + bias, h = value r + shift (`standardizing`).

    x, y: addresses of the first row; steps are from row to row, in bytes. With ``residual`` not 0
    the norm is of total = x + residual, which is written. ``work``: memory for 3 rows of float64.
    """
    scale_work, bias_work = work + 8 * width, work + 16 * width
    # Of one or two rows a conversion would cost as much as the rest
    converted = last - first > 2 or scale_kind != kind(tag) or bias_kind not in (0, kind(tag))
    if converted:
        parameters(tag, scale_kind, scale, scale_work, bias_kind, bias, bias_work, width)
    for i in range(first, last):
        row, y_row = x + i * x_step, y + i * y_step
        if residual != 0:
            row = total + i * total_step
            add_rows(tag, x + i * x_step, residual + i * residual_step, row, width)
        terms, moved = standardizing(centre, tag, row, work, width, eps)
        of_row = tag, row, work, terms, y_row
        if moved and not converted:
            parameters(tag, scale_kind, scale, scale_work, bias_kind, bias, bias_work, width)
            converted = True
        if moved:
            write_row(np.float64(0), *of_row, wide(tag), scale_work, bias_kind, bias_work, width)
        elif converted:
            write(centre, *of_row, wide(tag), scale_work, bias_kind, bias_work, width)
        else:
            write(centre, *of_row, tag, scale, bias_kind, bias, width)
