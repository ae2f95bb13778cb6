"""The second pass of `normkit.kernels._backward`: dx of some rows, and their sums for the parameters.

It goes down the columns, so that the sums stay in registers. The rows are few enough to be still in
the cache from the first pass.
"""

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from ._lanes import fused_lanes, in_columns, load_lanes, store_lanes, will_store_lanes
from ._memory import keep, kept

# So many numbers `keep_terms` writes of a row
TERMS = 7


@register_jitable
def keep_terms(place, row, terms):
    """Write down what the second pass needs to know of a row."""
    for k in range(len(terms)):
        keep(place, TERMS * row + k, terms[k])


@register_jitable
def kept_terms(place, row):
    """What `keep_terms` wrote."""
    first = TERMS * row
    mean, rest, r = kept(place, first), kept(place, first + 1), kept(place, first + 2)
    g_mean, c = kept(place, first + 3), kept(place, first + 4)
    return mean, rest, r, g_mean, c, kept(place, first + 5), kept(place, first + 6)


def number(like, tag, address, index, q):
    """The numbers from ``index`` on, times q^2: as many as ``like`` has."""
    raise NotImplementedError


@overload(number)
def _number(like, tag, address, index, q):
    if tag == types.float64:
        return lambda like, tag, address, index, q: load_lanes(like, tag, address, index) * q * q
    return lambda like, tag, address, index, q: load_lanes(like, tag, address, index)


def standardized(centre, precise, value, terms):
    """h of the values."""
    raise NotImplementedError


@overload(standardized)
def _standardized(centre, precise, value, terms):
    if isinstance(centre, types.NoneType):
        return lambda centre, precise, value, terms: value * terms[2]
    if isinstance(precise, types.NoneType):
        return lambda centre, precise, value, terms: fused_lanes(
            value, terms[2], -terms[0] * terms[2]
        )
    return lambda centre, precise, value, terms: ((value - terms[0]) - terms[1]) * terms[2]


def centred_gradient(centre, precise, dy, scale, g_mean):
    """g - mean(g), or g of a norm without a mean."""
    raise NotImplementedError


@overload(centred_gradient)
def _centred_gradient(centre, precise, dy, scale, g_mean):
    if isinstance(centre, types.NoneType):
        return lambda centre, precise, dy, scale, g_mean: dy * scale
    if isinstance(precise, types.NoneType):
        return lambda centre, precise, dy, scale, g_mean: fused_lanes(dy, scale, -g_mean)
    # Rounded as the mean is: the difference of a row of one number is 0
    return lambda centre, precise, dy, scale, g_mean: dy * scale - g_mean


def unscaled(like, dy_tag, address, index, value):
    """dy without the power of two that `number` gave it."""
    raise NotImplementedError


@overload(unscaled)
def _unscaled(like, dy_tag, address, index, value):
    if dy_tag == types.float64:
        return lambda like, dy_tag, address, index, value: load_lanes(like, dy_tag, address, index)
    return lambda like, dy_tag, address, index, value: value


def in_units(tag, dy_tag, dx, q):
    """dx q^2; q is 1 where no row is scaled."""
    raise NotImplementedError


@overload(in_units)
def _in_units(tag, dy_tag, dx, q):
    if types.float64 in (tag, dy_tag):
        return lambda tag, dy_tag, dx, q: dx * q * q
    return lambda tag, dy_tag, dx, q: dx


def add_to(sums, index, value):
    """Add to float64 numbers in memory, if they are wanted."""
    raise NotImplementedError


@overload(add_to)
def _add_to(sums, index, value):
    if isinstance(sums, types.NoneType):
        return lambda sums, index, value: None

    def add(sums, index, value):
        old = load_lanes(value, np.float64(0), sums, index)
        store_lanes(np.float64(0), sums, index, old + value)

    return add


@in_columns
@register_jitable
def write_rows(like, j, centre, precise, tag, dy_tag, arrays, scale, terms, rows, ahead, sums):
    """dx of rows from ``rows[0]`` to ``rows[1]``, and what they add to the sums.

    ``precise``: None where no row has a large mean. ``ahead``: in so many bytes from each row of
    dx is one that will be written next.
    """
    dy, dy_step, x, x_step, dx, dx_step = arrays
    scale_j = load_lanes(like, np.float64(0), scale, j)
    dscale, dbias = like, like
    for i in range(*rows):
        # Stores that wait for memory would hold up all others
        will_store_lanes(tag, dx + i * dx_step + ahead, j)
        of_row = kept_terms(terms, i - rows[0])
        _, _, r, g_mean, c, q, dy_q = of_row
        h = standardized(centre, precise, number(like, tag, x + i * x_step, j, q), of_row)
        dy_j = number(like, dy_tag, dy + i * dy_step, j, dy_q)
        g = centred_gradient(centre, precise, dy_j, scale_j, g_mean)
        dx_j = in_units(tag, dy_tag, fused_lanes(h, -c, g) * r, q / dy_q)
        store_lanes(tag, dx + i * dx_step, j, dx_j)
        dy_j = unscaled(like, dy_tag, dy + i * dy_step, j, dy_j)
        dscale, dbias = fused_lanes(dy_j, h, dscale), dbias + dy_j
    add_to(sums[0], j, dscale)
    add_to(sums[1], j, dbias)
