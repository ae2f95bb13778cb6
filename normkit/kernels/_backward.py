"""The backward pass of both norms over rows: the formulas of `normkit._rms_norm` and `_layer_norm`.

With h the standardized row and g = dy scale:
dx = r (g - mean(g) - h mean(g h)), dscale = sum(dy h), dbias = sum(dy). RMSNorm has no mean(g).

A row is read twice: for its sums here, and for its results in `_columns`. The sums are of x itself,
not of x - mean, where that serves (`serves_at_once`).
"""

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

from ._columns import TERMS, keep_terms, number, write_rows
from ._forward import parameter
from ._memory import add_up, load, multiply_add, size
from ._statistics import in_blocks, inverse_root, row_root, serves_at_once

# Rows that are taken together: of as many bytes, but not more
_BYTES, _ROWS = 48 * 1024, 64


@in_blocks
@njit
def products(first, last, tag, x, q, dy_tag, dy, dy_q, scale):
    """(0, sum x^2, 0, sum g x)."""
    square = product = 0.0
    for j in range(first, last):
        value = number(0.0, tag, x, j, q)
        g = number(0.0, dy_tag, dy, j, dy_q) * load(np.float64(0), scale, j)
        square = multiply_add(value, value, square)
        product = multiply_add(g, value, product)
    return 0.0, square, 0.0, product


@in_blocks
@njit
def sums_and_products(first, last, tag, x, q, dy_tag, dy, dy_q, scale):
    """(sum x, sum x^2, sum g, sum g x)."""
    total = square = g_total = product = 0.0
    for j in range(first, last):
        value = number(0.0, tag, x, j, q)
        g = number(0.0, dy_tag, dy, j, dy_q) * load(np.float64(0), scale, j)
        total = add_up(total, value)
        square = multiply_add(value, value, square)
        g_total = add_up(g_total, g)
        product = multiply_add(g, value, product)
    return total, square, g_total, product


@in_blocks
@njit
def deviations(first, last, tag, x, q, mean):
    """(sum of x - mean, 0, 0, 0)."""
    total = 0.0
    for j in range(first, last):
        total = add_up(total, number(0.0, tag, x, j, q) - mean)
    return total, 0.0, 0.0, 0.0


@in_blocks
@njit
def centred_products(first, last, tag, x, q, mean, rest, dy_tag, dy, dy_q, scale):
    """(0, sum d^2, 0, sum g d), d = (x - mean) - rest."""
    square = product = 0.0
    for j in range(first, last):
        d = (number(0.0, tag, x, j, q) - mean) - rest
        g = number(0.0, dy_tag, dy, j, dy_q) * load(np.float64(0), scale, j)
        square = multiply_add(d, d, square)
        product = multiply_add(g, d, product)
    return 0.0, square, 0.0, product


def gradient_terms(centre, tag, dy_tag, x, dy, scale, width, eps):
    """((mean, rest, r, mean(g), mean(g h), q, q of dy) of a row, whether its mean is large).

    h = ((x q^2 - mean) - rest) r. ``rest`` is what rounding left of the mean, where that is large.
    """
    raise NotImplementedError


@overload(gradient_terms)
def _gradient_terms(centre, tag, dy_tag, x, dy, scale, width, eps):
    def of_rms_norm(centre, tag, dy_tag, x, dy, scale, width, eps):
        q, dy_q = row_root(tag, x, width, eps), row_root(dy_tag, dy, width, 0.0)
        _, _, square, _, product = products(width, (tag, x, q, dy_tag, dy, dy_q, scale))
        r = inverse_root(square / width + eps * q * q * q * q)
        return (0.0, 0.0, r, 0.0, product * r / width, q, dy_q), False

    def of_layer_norm(centre, tag, dy_tag, x, dy, scale, width, eps):
        q, dy_q = row_root(tag, x, width, eps), row_root(dy_tag, dy, width, 0.0)
        total, lost, square, g_total, product = sums_and_products(
            width, (tag, x, q, dy_tag, dy, dy_q, scale)
        )
        mean, g_mean = (total + lost) / width, g_total / width
        variance = square / width - mean * mean
        if serves_at_once(tag, variance, square / width):
            r = inverse_root(variance + eps)
            c = (product - mean * g_total) * r / width
            return (mean, 0.0, r, g_mean, c, q, dy_q), False
        rest, _, _, _, _ = deviations(width, (tag, x, q, mean))
        rest = rest / width
        _, _, square, _, product = centred_products(
            width, (tag, x, q, mean, rest, dy_tag, dy, dy_q, scale)
        )
        r = inverse_root(square / width + eps * q * q * q * q)
        return (mean, rest, r, g_mean, product * r / width, q, dy_q), True

    return of_rms_norm if isinstance(centre, types.NoneType) else of_layer_norm


@register_jitable
def rows_together(tag, dy_tag, width):
    """How many rows the second pass finds in the cache."""
    return max(2, min(_ROWS, _BYTES // (width * (size(tag) + size(dy_tag)))))


def write(centre, precise, width, of_rows):
    """`write_rows` in the way that the rows need."""
    raise NotImplementedError


@overload(write)
def _write(centre, precise, width, of_rows):
    if isinstance(centre, types.NoneType):
        return lambda centre, precise, width, of_rows: write_rows(
            0.0, width, (centre, None, *of_rows)
        )

    def of_layer_norm(centre, precise, width, of_rows):
        if precise:
            write_rows(0.0, width, (centre, True, *of_rows))
        else:
            write_rows(0.0, width, (centre, None, *of_rows))

    return of_layer_norm


@register_jitable
def backward_work(width):
    """How many float64 numbers `backward_rows` needs for itself."""
    return width + TERMS * _ROWS


def backward_rows(
    centre,
    tag,
    dy_tag,
    dy,
    dy_step,
    x,
    x_step,
    dx,
    dx_step,
    scale,
    scale_kind,
    dscale,
    dbias,
    work,
    first,
    last,
    width,
    eps,
):
    """Rows ``first`` to ``last`` of dx, and what they add to dscale and dbias.

    dy, x, dx: addresses of the first row; steps are from row to row, in bytes. dscale, dbias:
    addresses of float64 numbers to add to, dbias None where it is not wanted. ``work``: memory for
    `backward_work` numbers.
    """
    wide_scale, terms = work, work + 8 * width
    parameter(np.float64(0), scale_kind, scale, width, 1.0, wide_scale)
    arrays, sums = (dy, dy_step, x, x_step, dx, dx_step), (dscale, dbias)
    together = rows_together(tag, dy_tag, width)
    while first < last:
        end, precise = first, False
        while end < min(first + together, last):
            row = x + end * x_step, dy + end * dy_step, wide_scale
            of_row, large_mean = gradient_terms(centre, tag, dy_tag, *row, width, eps)
            if end == first:
                precise = large_mean
            elif large_mean != precise:  # dx of a row does not depend on others
                break
            keep_terms(terms, end - first, of_row)
            end += 1
        ahead = together * dx_step if end + together <= last else 0
        of_rows = tag, dy_tag, arrays, wide_scale, terms, (first, end), ahead, sums
        write(centre, precise, width, of_rows)
        first = end
