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
    HALF,
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


def unscaled(dy_tag, dy, index, value):
    """dy, without the power of two of its row that ``value`` has."""
    raise NotImplementedError


@overload(unscaled, inline="always")
def _unscaled(dy_tag, dy, index, value):
    if dy_tag == types.float64:
        return lambda dy_tag, dy, index, value: load(dy_tag, dy, index)
    return lambda dy_tag, dy, index, value: value


def add_to_dbias(dbias, index, value):
    """Add to dbias, if it is wanted."""
    raise NotImplementedError


@overload(add_to_dbias, inline="always")
def _add_to_dbias(dbias, index, value):
    if isinstance(dbias, types.NoneType):
        return lambda dbias, index, value: None
    return lambda dbias, index, value: accumulate(DBIAS, dbias, index, value)


@in_blocks
@njit
def products(first, last, tag, x, work, q, dy_tag, dy, dy_work, dy_q, scale, dbias):
    """(0, sum x^2, 0, sum g x); dy is added to dbias."""
    square = product = 0.0
    for j in range(first, last):
        value = widened(tag, x, work, j, q)
        dy_j = widened(dy_tag, dy, dy_work, j, dy_q)
        g = dy_j * load(np.float64(0), scale, j)
        add_to_dbias(dbias, j, unscaled(dy_tag, dy, j, dy_j))
        square = multiply_add(value, value, square)
        product = multiply_add(g, value, product)
    return 0.0, square, 0.0, product


@in_blocks
@njit
def sums_and_products(first, last, tag, x, work, q, dy_tag, dy, dy_work, dy_q, scale, dbias):
    """(sum x, sum x^2, sum g, sum g x); dy is added to dbias."""
    total = square = g_total = product = 0.0
    for j in range(first, last):
        value = widened(tag, x, work, j, q)
        dy_j = widened(dy_tag, dy, dy_work, j, dy_q)
        g = dy_j * load(np.float64(0), scale, j)
        add_to_dbias(dbias, j, unscaled(dy_tag, dy, j, dy_j))
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


def gradient_terms(centre, tag, dy_tag, x, work, dy, dy_work, scale, dbias, width, eps):
    """((r, shift, mean(g), mean(g h), q) of a row, whether `again` finds its values no more).

    h = value r + shift; dx is in units of 1 / q^2. The values are x or, in ``work``, x - mean.
    """
    raise NotImplementedError


@overload(gradient_terms)
def _gradient_terms(centre, tag, dy_tag, x, work, dy, dy_work, scale, dbias, width, eps):
    not_again = tag == types.float32

    def of_rms_norm(centre, tag, dy_tag, x, work, dy, dy_work, scale, dbias, width, eps):
        q, dy_q = row_root(tag, x, width, eps), row_root(dy_tag, dy, width, 0.0)
        _, _, square, _, product = products(
            width, (tag, x, work, q, dy_tag, dy, dy_work, dy_q, scale, dbias)
        )
        r = inverse_root(square / width + eps * q * q * q * q)
        return (r, -0.0, 0.0, product * r / width, q / dy_q), False

    def of_layer_norm(centre, tag, dy_tag, x, work, dy, dy_work, scale, dbias, width, eps):
        q, dy_q = row_root(tag, x, width, eps), row_root(dy_tag, dy, width, 0.0)
        total, lost, square, g_total, product = sums_and_products(
            width, (tag, x, work, q, dy_tag, dy, dy_work, dy_q, scale, dbias)
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


def in_units(tag, dy_tag, dx, q):
    """dx q^2; q is 1 where no row is scaled."""
    raise NotImplementedError


@overload(in_units, inline="always")
def _in_units(tag, dy_tag, dx, q):
    if types.float64 in (tag, dy_tag):
        return lambda tag, dy_tag, dx, q: dx * q * q
    return lambda tag, dy_tag, dx, q: dx


@register_jitable
def gradient_of_element(tag, dy_tag, value, dy_j, scale_j, terms):
    """(dx, h)."""
    r, shift, g_mean, c, q = terms
    h = fused(value, r, shift)
    return in_units(tag, dy_tag, fused(h, -c, fused(dy_j, scale_j, -g_mean)) * r, q), h


@register_jitable
def write_row(moved, tag, dy_tag, x, work, dy, dy_work, scale, terms, dx, dscale, width):
    """dx of a row, and what it adds to dscale."""
    if moved:
        write_values(
            np.float64(0), tag, dy_tag, x, work, dy, dy_work, scale, terms, dx, dscale, width
        )
    else:
        write_values(tag, tag, dy_tag, x, work, dy, dy_work, scale, terms, dx, dscale, width)


@register_jitable
def write_values(value_tag, tag, dy_tag, x, work, dy, dy_work, scale, terms, dx, dscale, width):
    """`write_row` of values that `again` finds with ``value_tag``."""
    for j in range(width):
        value, dy_j = again(value_tag, x, work, j), again(dy_tag, dy, dy_work, j)
        scale_j = load(np.float64(0), scale, j)
        dx_j, h = gradient_of_element(tag, dy_tag, value, dy_j, scale_j, terms)
        store(RESULT, tag, dx, j, dx_j)
        accumulate(DSCALE, dscale, j, unscaled(dy_tag, dy, j, dy_j) * h)


@register_jitable
def write_two_rows(tag, dy_tag, x, work, dy, dy_work, scale, terms, dx, dscale, width):
    """As `write_row`, of pairs: dscale is read and written half as often."""
    for j in range(width):
        scale_j = load(np.float64(0), scale, j)
        value, dy_1 = again(tag, x[0], work[0], j), again(dy_tag, dy[0], dy_work[0], j)
        dx_1, h_1 = gradient_of_element(tag, dy_tag, value, dy_1, scale_j, terms[0])
        value, dy_2 = again(tag, x[1], work[1], j), again(dy_tag, dy[1], dy_work[1], j)
        dx_2, h_2 = gradient_of_element(tag, dy_tag, value, dy_2, scale_j, terms[1])
        store(RESULT, tag, dx[0], j, dx_1)
        store(OTHER_RESULT, tag, dx[1], j, dx_2)
        dy_1, dy_2 = unscaled(dy_tag, dy[0], j, dy_1), unscaled(dy_tag, dy[1], j, dy_2)
        accumulate(DSCALE, dscale, j, dy_1 * h_1 + dy_2 * h_2)


def in_pairs(tag, width):
    """Whether rows are better taken two at a time.

    Those of half types are, for they wait for stores, and long ones, for scale and dscale fill the
    first cache. Short ones of float32 wait for memory, which two rows written at once are slow to reach.
    """
    raise NotImplementedError


@overload(in_pairs, inline="always")
def _in_pairs(tag, width):
    if tag in HALF:
        return lambda tag, width: True
    return lambda tag, width: width > 1536


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

    dbias is added to in the first pass, for in the second one its stores would wait behind those of
    dx, which miss the cache.
    """
    row = 8 * width
    wide_scale, x_work, dy_work = work, work + row, work + 2 * row
    parameter(np.float64(0), scale_kind, scale, width, 1.0, wide_scale)
    works, dy_works = (x_work, x_work + 2 * row), (dy_work, dy_work + 2 * row)
    i = first
    while i < last:
        xs, dys = (x + i * x_step, x + (i + 1) * x_step), (dy + i * dy_step, dy + (i + 1) * dy_step)
        dxs = dx + i * dx_step, dx + (i + 1) * dx_step
        one = xs[0], works[0], dys[0], dy_works[0], wide_scale
        terms, moved = gradient_terms(centre, tag, dy_tag, *one, dbias, width, eps)
        i += 1
        if not in_pairs(tag, width) or i == last:
            write_row(moved, tag, dy_tag, *one, terms, dxs[0], dscale, width)
            continue
        other = xs[1], works[1], dys[1], dy_works[1], wide_scale
        terms_2, moved_2 = gradient_terms(centre, tag, dy_tag, *other, dbias, width, eps)
        i += 1
        if moved or moved_2:
            write_row(moved, tag, dy_tag, *one, terms, dxs[0], dscale, width)
            write_row(moved_2, tag, dy_tag, *other, terms_2, dxs[1], dscale, width)
        else:
            both = xs, works, dys, dy_works, wide_scale, (terms, terms_2), dxs, dscale, width
            write_two_rows(tag, dy_tag, *both)
