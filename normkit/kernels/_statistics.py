"""The statistics of one row: what `normkit._statistics` computes, in as few passes as it can take.

A pass adds up blocks of `_BLOCK` elements, each in the order that is fastest, and the blocks'
sums with their rounding errors. So an error does not grow with the row.
"""

import math

from numba import njit, types
from numba.extending import overload, register_jitable

from ._memory import HALF, add_up, keep, kept, load, magnitude, multiply_add

_BLOCK = 1024

# Bits of float64 numbers, which are in the order of the numbers
_TINY, _HUGE, _INFINITE = ((1023 + exponent) << 52 for exponent in (-400, 400, 1024))


def widened(tag, x, work, index, q):
    """x q^2 in the first pass over a row; kept in ``work`` where it costs something to make."""
    raise NotImplementedError


@overload(widened, inline="always")
def _widened(tag, x, work, index, q):
    if tag == types.float32:
        return lambda tag, x, work, index, q: load(tag, x, index)
    if tag in HALF:

        def half(tag, x, work, index, q):
            value = load(tag, x, index)
            keep(work, index, value)
            return value

        return half

    def scaled(tag, x, work, index, q):
        value = load(tag, x, index) * q * q
        keep(work, index, value)
        return value

    return scaled


def again(tag, x, work, index):
    """What `widened` gave, in a later pass."""
    raise NotImplementedError


@overload(again, inline="always")
def _again(tag, x, work, index):
    if tag == types.float32:
        return lambda tag, x, work, index: load(tag, x, index)
    return lambda tag, x, work, index: kept(work, index)


@register_jitable
def add_exactly(total, lost, term):
    """(total + term, lost + the rounding error of that); Neumaier 1974."""
    new = total + term
    if abs(total) >= abs(term):
        return new, lost + ((total - new) + term)
    return new, lost + ((term - new) + total)


def in_blocks(block):
    """The function ``(width, arguments)`` of the sums of ``block(first, last, *arguments)``.

    ``block`` gives four. The result has each with what rounding lost of it.
    """

    def sums_of_row(width, arguments):
        a = a_lost = b = b_lost = c = c_lost = d = d_lost = 0.0
        first = 0
        while first < width:
            last = min(first + _BLOCK, width)
            a_block, b_block, c_block, d_block = block(first, last, *arguments)
            a, a_lost = add_exactly(a, a_lost, a_block)
            b, b_lost = add_exactly(b, b_lost, b_block)
            c, c_lost = add_exactly(c, c_lost, c_block)
            d, d_lost = add_exactly(d, d_lost, d_block)
            first = last
        return a, finite(a_lost), b + finite(b_lost), c + finite(c_lost), d + finite(d_lost)

    # Machine code that Numba keeps on disk is linked by this name: it must say which block
    sums_of_row.__qualname__ = f"{block.__name__}_of_row"
    return register_jitable(sums_of_row)


@register_jitable
def finite(lost):
    """``lost``, or 0 where a sum that is not finite has made it NaN."""
    return lost if math.isfinite(lost) else 0.0


@in_blocks
@njit
def squares(first, last, tag, x, work, q):
    """(0, sum x^2, 0, 0)."""
    total = 0.0
    for j in range(first, last):
        value = widened(tag, x, work, j, q)
        total = multiply_add(value, value, total)
    return 0.0, total, 0.0, 0.0


@in_blocks
@njit
def squares_alone(first, last, tag, x):
    """(0, sum x^2, 0, 0), and nothing is kept."""
    total = 0.0
    for j in range(first, last):
        value = load(tag, x, j)
        total = multiply_add(value, value, total)
    return 0.0, total, 0.0, 0.0


@in_blocks
@njit
def sums(first, last, tag, x, work, q):
    """(sum x, sum x^2, 0, 0)."""
    total = square = 0.0
    for j in range(first, last):
        value = widened(tag, x, work, j, q)
        total = add_up(total, value)
        square = multiply_add(value, value, square)
    return total, square, 0.0, 0.0


@in_blocks
@njit
def centred_sum(first, last, tag, x, work, mean):
    """(sum of x - mean, 0, 0, 0)."""
    total = 0.0
    for j in range(first, last):
        total = add_up(total, again(tag, x, work, j) - mean)
    return total, 0.0, 0.0, 0.0


@in_blocks
@njit
def centred_squares(first, last, tag, x, work, mean, rest):
    """(0, sum d^2, 0, 0), d = (x - mean) - rest, which is kept in ``work``."""
    square = 0.0
    for j in range(first, last):
        d = (again(tag, x, work, j) - mean) - rest
        keep(work, j, d)
        square = multiply_add(d, d, square)
    return 0.0, square, 0.0, 0.0


@register_jitable
def inverse_root(v):
    """1 / sqrt(v), and 0 where v is 0."""
    return 0.0 if v == 0.0 else 1.0 / math.sqrt(v)


def standardizing(centre, tag, x, work, width, eps):
    """((r, shift) of a row, whether `again` finds its values no more): h = value r + shift.

    The values are x or, in ``work``, x - mean. ``centre`` is None for RMSNorm and True for
    LayerNorm.
    """
    raise NotImplementedError


@overload(standardizing)
def _standardizing(centre, tag, x, work, width, eps):
    not_again = tag == types.float32

    def of_rms_norm(centre, tag, x, work, width, eps):
        q = row_root(tag, x, width, eps)
        _, _, square, _, _ = squares(width, (tag, x, work, q))
        return (inverse_root(square / width + eps * q * q * q * q), -0.0), False

    def of_rms_norm_in_half(centre, tag, x, work, width, eps):
        _, _, square, _, _ = squares_alone(width, (tag, x))
        return (inverse_root(square / width + eps), -0.0), False

    def of_layer_norm(centre, tag, x, work, width, eps):
        q = row_root(tag, x, width, eps)
        total, lost, square, _, _ = sums(width, (tag, x, work, q))
        mean = (total + lost) / width
        variance = square / width - mean * mean
        if serves_at_once(tag, variance, square / width):
            r = inverse_root(variance + eps)
            return (r, -mean * r), False
        rest, _, _, _, _ = centred_sum(width, (tag, x, work, mean))
        _, _, square, _, _ = centred_squares(width, (tag, x, work, mean, rest / width))
        return (inverse_root(square / width + eps * q * q * q * q), -0.0), not_again

    if not isinstance(centre, types.NoneType):
        return of_layer_norm
    return of_rms_norm_in_half if tag in HALF else of_rms_norm


def serves_at_once(tag, variance, mean_square):
    """Whether mean(x^2) - mean^2 will do for the variance, and x for x - mean in a sum.

    Where mean^2 is more than a quarter of the mean square, rounding errors of both would show in
    their difference: so a second pass is needed, which has the mean to subtract.
    """
    raise NotImplementedError


@overload(serves_at_once, inline="always")
def _serves_at_once(tag, variance, mean_square):
    if tag == types.float64:
        return lambda tag, variance, mean_square: False
    return lambda tag, variance, mean_square: variance > 0.75 * mean_square


def row_root(tag, x, width, eps):
    """q of `normkit._arithmetic.Arithmetic.row_root`: 1 but for huge and tiny float64 rows."""
    raise NotImplementedError


@overload(row_root)
def _row_root(tag, x, width, eps):
    if tag != types.float64:
        return lambda tag, x, width, eps: 1.0

    def of_float64(tag, x, width, eps):
        largest = 0
        for j in range(width):
            largest = max(largest, magnitude(x, j))
        if largest >= _HUGE:
            return 2.0**-300 if largest < _INFINITE else 1.0
        if largest >= _TINY:
            return 1.0
        return 2.0 ** min(300, (1000 - math.frexp(eps)[1]) // 4 if eps else 300)

    return of_float64
