"""The backward pass of both norms over rows: the formulas of `normkit._rms_norm` and `_layer_norm`.

With h the standardized row and g = dy scale:
dx = r (g - mean(g) - h mean(g h)), dscale = sum(dy h), dbias = sum(dy). RMSNorm has no mean(g).
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
    load,
    multiply_add,
    store,
)
from ._statistics import (
    again,
    deviation,
    in_blocks,
    mean_and_rest,
    row_root,
    standardized,
    statistics,
    widened,
)


@in_blocks
@njit
def gradient_sums(first, last, centre, tag, x, work, mean, rest, dy_tag, dy, dy_work, dy_q, scale):
    """(sum g, sum g d); RMSNorm does not ask for the first."""
    total = product = 0.0
    for j in range(first, last):
        g = widened(dy_tag, dy, dy_work, j, dy_q) * load(np.float64(0), scale, j)
        total = add_up(total, g)
        d = deviation(centre, tag, again(tag, x, work, j), mean, rest)
        product = multiply_add(g, d, product)
    return total, product


def unscaled(dy_tag, dy, dy_work, index):
    """dy, without the power of two of its row."""
    raise NotImplementedError


@overload(unscaled, inline="always")
def _unscaled(dy_tag, dy, dy_work, index):
    if dy_tag == types.float64:
        return lambda dy_tag, dy, dy_work, index: load(dy_tag, dy, index)
    return lambda dy_tag, dy, dy_work, index: again(dy_tag, dy, dy_work, index)


def add_to_dbias(dbias, index, value):
    """Add to dbias, if it is wanted."""
    raise NotImplementedError


@overload(add_to_dbias, inline="always")
def _add_to_dbias(dbias, index, value):
    if isinstance(dbias, types.NoneType):
        return lambda dbias, index, value: None
    return lambda dbias, index, value: accumulate(DBIAS, dbias, index, value)


@register_jitable
def gradient_terms(centre, tag, dy_tag, x, x_work, dy, dy_work, scale, width, eps):
    """(mean, rest, r, mean(g), its rest, mean(g h), q) of a row; dx is in units of 1 / q^2."""
    mean, rest, r, x_q = statistics(centre, tag, x, x_work, width, eps)
    dy_q = row_root(dy_tag, dy, width, 0.0)
    total, lost, product = gradient_sums(
        width, (centre, tag, x, x_work, mean, rest, dy_tag, dy, dy_work, dy_q, scale)
    )
    g_mean, g_rest = mean_and_rest(total, lost, width)
    return mean, rest, r, g_mean, g_rest, product * r / width, x_q / dy_q


@register_jitable
def gradient_of_element(centre, tag, dy_tag, x, x_work, dy, dy_work, scale, j, terms):
    """(dx, dy h, dy) at index j of a row."""
    mean, rest, r, g_mean, g_rest, c, q = terms
    h = standardized(centre, tag, again(tag, x, x_work, j), mean, rest, r)
    g = again(dy_tag, dy, dy_work, j) * load(np.float64(0), scale, j)
    dy_j = unscaled(dy_tag, dy, dy_work, j)
    return (deviation(centre, dy_tag, g, g_mean, g_rest) - h * c) * r * q * q, dy_j * h, dy_j


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
    addresses of float64 numbers to add to, dbias None where it is not wanted. ``work``: memory for 5 rows of
    float64. Two rows are taken at once: so dscale and dbias are read and written half as often.
    """
    scale_work, x_work, dy_work, x_work_2, dy_work_2 = (
        work,
        work + 8 * width,
        work + 16 * width,
        work + 24 * width,
        work + 32 * width,
    )
    parameter(np.float64(0), scale_kind, scale, width, 1.0, scale_work)
    i = first
    while i < last:
        x_1, dy_1, dx_1 = x + i * x_step, dy + i * dy_step, dx + i * dx_step
        terms = gradient_terms(
            centre, tag, dy_tag, x_1, x_work, dy_1, dy_work, scale_work, width, eps
        )
        if i + 1 == last:
            for j in range(width):
                dx_j, dscale_j, dbias_j = gradient_of_element(
                    centre, tag, dy_tag, x_1, x_work, dy_1, dy_work, scale_work, j, terms
                )
                store(RESULT, tag, dx_1, j, dx_j)
                accumulate(DSCALE, dscale, j, dscale_j)
                add_to_dbias(dbias, j, dbias_j)
            break
        x_2, dy_2, dx_2 = x_1 + x_step, dy_1 + dy_step, dx_1 + dx_step
        terms_2 = gradient_terms(
            centre, tag, dy_tag, x_2, x_work_2, dy_2, dy_work_2, scale_work, width, eps
        )
        for j in range(width):
            dx_j, dscale_j, dbias_j = gradient_of_element(
                centre, tag, dy_tag, x_1, x_work, dy_1, dy_work, scale_work, j, terms
            )
            store(RESULT, tag, dx_1, j, dx_j)
            dx_j, dscale_2, dbias_2 = gradient_of_element(
                centre, tag, dy_tag, x_2, x_work_2, dy_2, dy_work_2, scale_work, j, terms_2
            )
            store(OTHER_RESULT, tag, dx_2, j, dx_j)
            accumulate(DSCALE, dscale, j, dscale_j + dscale_2)
            add_to_dbias(dbias, j, dbias_j + dbias_2)
        i += 2
