"""The forward pass of both norms over rows, as docs/numerics.md defines it."""

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from ._lanes import (
    dtype_of,
    float32_lanes,
    fused_lanes,
    in_columns,
    load_lanes,
    store_lanes,
    trimmed_lanes,
)
from ._memory import HALF, TAGS, keep, load
from ._statistics import standardizing
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
                keep(work, j, wide(absent))
        elif kind == 1:
            for j in range(width):
                keep(work, j, wide(load(np.float32(0), source, j)))
        elif kind == 2:
            for j in range(width):
                keep(work, j, wide(load(np.float64(0), source, j)))
        elif kind == 3:
            for j in range(width):
                keep(work, j, wide(load(np.uint16(0), source, j)))
        else:
            for j in range(width):
                keep(work, j, wide(load(np.int16(0), source, j)))

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


def standardized(like, value_tag, tag, x, work, terms, index):
    """h of the columns from ``index`` on, as many as ``like`` has.

    value r + shift, for terms (r, shift). In float32 it is x (high + low), for a row of RMSNorm in a
    half type, whose terms `split` makes.
    """
    raise NotImplementedError


@overload(standardized)
def _standardized(like, value_tag, tag, x, work, terms, index):
    def in_float32(like, value_tag, tag, x, work, terms, index):
        value = load_lanes(like, tag, x, index)
        return fused_lanes(value, terms[0], value * terms[1])

    def of_source(like, value_tag, tag, x, work, terms, index):
        return fused_lanes(load_lanes(like, tag, x, index), terms[0], terms[1])

    def of_kept(like, value_tag, tag, x, work, terms, index):
        return fused_lanes(load_lanes(like, np.float64(0), work, index), terms[0], terms[1])

    if dtype_of(like) == types.float32:
        return in_float32
    return of_source if value_tag == types.float32 else of_kept


@register_jitable
def split(r):
    """(high, low), float32 numbers of which the sum is r, so that h = x r is rounded once.

    x high + x low is within 2^-46 of x r, and half a digit of float32 is 2^-24. high is not above r:
    so low is not negative, and -0 stays -0.
    """
    high = np.float32(r * (1.0 - 2.0**-24))
    return high, np.float32(r - np.float64(high))


def scaled(tag, h, parameters, index):
    """h scale + bias, with the roundings that the dtype of x asks for.

    ``parameters``: the tag of both, the address of scale, the kind of bias, the address of bias.
    float32 asks for none before the last one: a fused operation is closer to it than two.
    """
    raise NotImplementedError


@overload(scaled)
def _scaled(tag, h, parameters, index):
    def of_float32(tag, h, parameters, index):
        parameter_tag, scale, bias_kind, bias = parameters
        h = trimmed_lanes(h)
        factor = load_lanes(h, parameter_tag, scale, index)
        if bias_kind == 0:
            return h * factor
        return fused_lanes(h, factor, load_lanes(h, parameter_tag, bias, index))

    def of_float64(tag, h, parameters, index):
        return scaled_and_biased(h, parameters, index)

    def of_half(tag, h, parameters, index):
        return scaled_and_biased(float32_lanes(h), parameters, index)

    if tag == types.float32:
        return of_float32
    return of_half if tag in HALF else of_float64


@register_jitable
def scaled_and_biased(h, parameters, index):
    """h scale + bias, each rounded to the dtype of h."""
    parameter_tag, scale, bias_kind, bias = parameters
    product = h * load_lanes(h, parameter_tag, scale, index)
    if bias_kind == 0:
        return product
    return product + load_lanes(h, parameter_tag, bias, index)


@in_columns
@register_jitable
def write_row(like, j, value_tag, tag, x, work, terms, y, parameters):
    """y of a row, whose h is made in the dtype of ``like``."""
    h = standardized(like, value_tag, tag, x, work, terms, j)
    store_lanes(tag, y, j, scaled(tag, h, parameters, j))


def write(centre, tag, x, work, terms, y, parameters, width):
    """y of a row whose values `standardizing` has not moved, by the way that is faster."""
    raise NotImplementedError


@overload(write)
def _write(centre, tag, x, work, terms, y, parameters, width):
    def in_float64(centre, tag, x, work, terms, y, parameters, width):
        write_row(0.0, width, (tag, tag, x, work, terms, y, parameters))

    def of_half(centre, tag, x, work, terms, y, parameters, width):
        r = terms[0]
        if 2.0**-100 < r < 2.0**100:  # well inside of float32's range
            write_row(np.float32(0.0), width, (tag, tag, x, work, split(r), y, parameters))
        else:
            for j in range(width):  # which the sum of squares did not
                keep(work, j, load(tag, x, j))
            write_row(0.0, width, (tag, tag, x, work, terms, y, parameters))

    return of_half if tag in HALF and isinstance(centre, types.NoneType) else in_float64


@register_jitable
def widen_parameters(tag, scale_kind, scale, scale_work, bias_kind, bias, bias_work, width):
    """Write scale, and bias if there is one, to working memory."""
    parameter(tag, scale_kind, scale, width, 1.0, scale_work)
    if bias_kind != 0:
        parameter(tag, bias_kind, bias, width, 0.0, bias_work)


@in_columns
@register_jitable
def add_rows(like, j, tag, x, residual, total):
    """total = x + residual, rounded to their dtype."""
    store_lanes(tag, total, j, load_lanes(like, tag, x, j) + load_lanes(like, tag, residual, j))


@register_jitable
def forward_work(width):
    """How many float64 numbers `forward_rows` needs for itself: a row of values, scale and bias."""
    return 3 * width


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
    the norm is of total = x + residual, which is written. ``work``: memory for
    `forward_work` numbers.
    """
    scale_work, bias_work = work + 8 * width, work + 16 * width
    given = scale_kind, scale, scale_work, bias_kind, bias, bias_work, width
    as_they_are, widened = (
        (tag, scale, bias_kind, bias),
        (wide(tag), scale_work, bias_kind, bias_work),
    )
    # Of one or two rows a conversion would cost as much as the rest
    converted = last - first > 2 or scale_kind != kind(tag) or bias_kind not in (0, kind(tag))
    if converted:
        widen_parameters(tag, *given)
    for i in range(first, last):
        row, y_row = x + i * x_step, y + i * y_step
        if residual != 0:
            row = total + i * total_step
            add_rows(0.0, width, (tag, x + i * x_step, residual + i * residual_step, row))
        terms, moved = standardizing(centre, tag, row, work, width, eps)
        of_row = tag, row, work, terms, y_row
        if moved and not converted:
            widen_parameters(tag, *given)
            converted = True
        if moved:
            write_row(0.0, width, (np.float64(0), *of_row, widened))
        elif converted:
            write(centre, *of_row, widened, width)
        else:
            write(centre, *of_row, as_they_are, width)
