"""The backward pass of both norms over rows: the formulas of `normkit._rms_norm` and `_layer_norm`.

With h the standardized row and g = dy scale:
dx = r (g - mean(g) - h mean(g h)), dscale = sum(dy h), dbias = sum(dy). RMSNorm has no mean(g).

A row is read twice: for its sums, and for its results. The sums are of x itself, not of x - mean,
where that serves (`serves_at_once`).
"""

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

from ._forward import parameter
from ._memory import (
    DBIAS,
    DSCALE,
    OTHER_RESULT,
    RESULT,
    accumulate,
    add_up,
    fused,
    keep,
    load,
    multiply_add,
    store,
)
from ._statistics import (
    again,
    centred_sum,
    in_blocks,
    inverse_root,
    row_root,
    serves_at_once,
    widened,
)


@in_blocks
@njit
def products(first, last, tag, x, work, q, dy_tag, dy, dy_work, dy_q, scale):
    """(0, sum x^2, 0, sum g x)."""
    square = product = 0.0
    for j in range(first, last):
        value = widened(tag, x, work, j, q)
        g = widened(dy_tag, dy, dy_work, j, dy_q) * load(np.float64(0), scale, j)
        square = multiply_add(value, value, square)
        product = multiply_add(g, value, product)
    return 0.0, square, 0.0, product


@in_blocks
@njit
def sums_and_products(first, last, tag, x, work, q, dy_tag, dy, dy_work, dy_q, scale):
    """(sum x, sum x^2, sum g, sum g x)."""
    total = square = g_total = product = 0.0
    for j in range(first, last):
        value = widened(tag, x, work, j, q)
        g = widened(dy_tag, dy, dy_work, j, dy_q) * load(np.float64(0), scale, j)
        total = add_up(total, value)
        square = multiply_add(value, value, square)
        g_total = add_up(g_total, g)
        product = multiply_add(g, value, product)
    return total, square, g_total, product


@in_blocks
@njit
def centred_products(first, last, tag, x, work, mean, rest, dy_tag, dy, dy_work, scale):
    """(0, sum d^2, 0, sum g d), d = (x - mean) - rest, which is kept in ``work``."""
    square = product = 0.0
    for j in range(first, last):
        d = (again(tag, x, work, j) - mean) - rest
        keep(work, j, d)
        g = again(dy_tag, dy, dy_work, j) * load(np.float64(0), scale, j)
        square = multiply_add(d, d, square)
        product = multiply_add(g, d, product)
    return 0.0, square, 0.0, product


def gradient_terms(centre, tag, dy_tag, x, work, dy, dy_work, scale, width, eps):
    """((r, shift, mean(g), mean(g h), q) of a row, whether `again` finds its values no more).

    h = value r + shift; dx is in units of 1 / q^2. The values are x or, in ``work``, x - mean.
    """
    raise NotImplementedError


@overload(gradient_terms)
def _gradient_terms(centre, tag, dy_tag, x, work, dy, dy_work, scale, width, eps):
    not_again = tag == types.float32

    def of_rms_norm(centre, tag, dy_tag, x, work, dy, dy_work, scale, width, eps):
        q, dy_q = row_root(tag, x, width, eps), row_root(dy_tag, dy, width, 0.0)
        _, _, square, _, product = products(
            width, (tag, x, work, q, dy_tag, dy, dy_work, dy_q, scale)
        )
        r = inverse_root(square / width + eps * q * q * q * q)
        return (r, -0.0, 0.0, product * r / width, q / dy_q), False

    def of_layer_norm(centre, tag, dy_tag, x, work, dy, dy_work, scale, width, eps):
        q, dy_q = row_root(tag, x, width, eps), row_root(dy_tag, dy, width, 0.0)
        total, lost, square, g_total, product = sums_and_products(
            width, (tag, x, work, q, dy_tag, dy, dy_work, dy_q, scale)
        )
        mean = (total + lost) / width
        variance = square / width - mean * mean
        if serves_at_once(tag, variance, square / width):
            r = inverse_root(variance + eps)
            c = (product - mean * g_total) * r / width
            return (r, -mean * r, g_total / width, c, 1.0 / dy_q), False
        rest, _, _, _, _ = centred_sum(width, (tag, x, work, mean))
        _, _, square, _, product = centred_products(
            width, (tag, x, work, mean, rest / width, dy_tag, dy, dy_work, scale)
        )
        r = inverse_root(square / width + eps * q * q * q * q)
        return (r, -0.0, g_total / width, product * r / width, q / dy_q), not_again

    return of_rms_norm if isinstance(centre, types.NoneType) else of_layer_norm


def unscaled(dy_tag, dy, dy_work, index):
    """dy, without the power of two of its row."""
    raise NotImplementedError


@overload(unscaled, inline="always")
def _unscaled(dy_tag, dy, dy_work, index):
    if dy_tag == types.float64:
        return lambda dy_tag, dy, dy_work, index: load(dy_tag, dy, index)
    return lambda dy_tag, dy, dy_work, index: again(dy_tag, dy, dy_work, index)


def in_units(tag, dy_tag, dx, q):
    """dx q^2; q is 1 where no row is scaled."""
    raise NotImplementedError


@overload(in_units, inline="always")
def _in_units(tag, dy_tag, dx, q):
    if types.float64 in (tag, dy_tag):
        return lambda tag, dy_tag, dx, q: dx * q * q
    return lambda tag, dy_tag, dx, q: dx


def add_to_dbias(dbias, index, value):
    """Add to dbias, if it is wanted."""
    raise NotImplementedError


@overload(add_to_dbias, inline="always")
def _add_to_dbias(dbias, index, value):
    if isinstance(dbias, types.NoneType):
        return lambda dbias, index, value: None
    return lambda dbias, index, value: accumulate(DBIAS, dbias, index, value)


@register_jitable
def gradient_of_element(value, dy_j, dy_scaled, scale_j, terms):
    """(dx in its units, dy h)."""
    r, shift, g_mean, c, _ = terms
    h = fused(value, r, shift)
    return fused(h, -c, fused(dy_scaled, scale_j, -g_mean)) * r, dy_j * h


@register_jitable
def write_row(value_tag, tag, dy_tag, x, work, dy, dy_work, scale, terms, dx, dscale, dbias, width):
    """dx of a row, and what it adds to dscale and dbias."""
    for j in range(width):
        dy_j = unscaled(dy_tag, dy, dy_work, j)
        dx_j, dscale_j = gradient_of_element(
            again(value_tag, x, work, j),
            dy_j,
            again(dy_tag, dy, dy_work, j),
            load(np.float64(0), scale, j),
            terms,
        )
        store(RESULT, tag, dx, j, in_units(tag, dy_tag, dx_j, terms[4]))
        accumulate(DSCALE, dscale, j, dscale_j)
        add_to_dbias(dbias, j, dy_j)


@register_jitable
def write_two_rows(
    value_tag, tag, dy_tag, x, work, dy, dy_work, scale, terms, dx, dscale, dbias, width
):
    """As `write_row`, of pairs: dscale and dbias are read and written half as often."""
    for j in range(width):
        scale_j = load(np.float64(0), scale, j)
        dy_1, dy_2 = unscaled(dy_tag, dy[0], dy_work[0], j), unscaled(dy_tag, dy[1], dy_work[1], j)
        dx_1, dscale_1 = gradient_of_element(
            again(value_tag, x[0], work[0], j),
            dy_1,
            again(dy_tag, dy[0], dy_work[0], j),
            scale_j,
            terms[0],
        )
        dx_2, dscale_2 = gradient_of_element(
            again(value_tag, x[1], work[1], j),
            dy_2,
            again(dy_tag, dy[1], dy_work[1], j),
            scale_j,
            terms[1],
        )
        store(RESULT, tag, dx[0], j, in_units(tag, dy_tag, dx_1, terms[0][4]))
        store(OTHER_RESULT, tag, dx[1], j, in_units(tag, dy_tag, dx_2, terms[1][4]))
        accumulate(DSCALE, dscale, j, dscale_1 + dscale_2)
        add_to_dbias(dbias, j, dy_1 + dy_2)


@register_jitable
def move(tag, x, work, width):
    """The values of a row to ``work``."""
    for j in range(width):
        keep(work, j, again(tag, x, work, j))


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
    5 rows of float64.
    """
    row = 8 * width
    wide_scale, x_work, dy_work = (
        work,
        (work + row, work + 2 * row),
        (work + 3 * row, work + 4 * row),
    )
    parameter(np.float64(0), scale_kind, scale, width, 1.0, wide_scale)
    in_work = np.float64(0)  # the tag of what is kept there
    for i in range(first, last, 2):
        x_1, dy_1, dx_1 = x + i * x_step, dy + i * dy_step, dx + i * dx_step
        terms, moved = gradient_terms(
            centre, tag, dy_tag, x_1, x_work[0], dy_1, dy_work[0], wide_scale, width, eps
        )
        if i + 1 == last:
            rest = wide_scale, terms, dx_1, dscale, dbias, width
            if moved:
                write_row(in_work, tag, dy_tag, x_1, x_work[0], dy_1, dy_work[0], *rest)
            else:
                write_row(tag, tag, dy_tag, x_1, x_work[0], dy_1, dy_work[0], *rest)
            return
        rows, dy_rows = (x_1, x_1 + x_step), (dy_1, dy_1 + dy_step)
        terms_2, moved_2 = gradient_terms(
            centre, tag, dy_tag, rows[1], x_work[1], dy_rows[1], dy_work[1], wide_scale, width, eps
        )
        rest = wide_scale, (terms, terms_2), (dx_1, dx_1 + dx_step), dscale, dbias, width
        if moved or moved_2:
            if not moved:
                move(tag, rows[0], x_work[0], width)
            if not moved_2:
                move(tag, rows[1], x_work[1], width)
            write_two_rows(in_work, tag, dy_tag, rows, x_work, dy_rows, dy_work, *rest)
        else:
            write_two_rows(tag, tag, dy_tag, rows, x_work, dy_rows, dy_work, *rest)
