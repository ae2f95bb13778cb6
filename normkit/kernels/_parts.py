"""A call written down in a block of words, from which any number of threads take parts.

A part is a range of rows. Threads that come late find fewer, or none. The call is done when all
parts are; late threads then still read the block.

The rows fall into as many stripes as there are threads, and a part is taken from each in turn: so two
threads seldom write to the same page of memory for the first time, which the system would clear twice.
"""

import struct

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from ._memory import load
from ._words import call, take, word

# Parts and threads begun so far, parts done and to do, stripes, working memory, its bytes for a thread,
# the loop, rows, width, eps; then the arrays, in the order in which the loop takes them
_NEXT, _THREADS, DONE, PARTS, _STRIPES, _WORK, _WORK_STEP, _LOOP = range(8)
_ROWS, _WIDTH, _EPS, _ARRAYS = range(8, 12)
FORWARD = struct.Struct("=10qd12q")
BACKWARD = struct.Struct("=10qd9q")


def forward_parts(block, centre, tag):
    """Take parts of `forward_rows`."""
    work = word(block, _WORK) + take(block, _THREADS) * word(block, _WORK_STEP)
    parts, rows, width = word(block, PARTS), word(block, _ROWS), word(block, _WIDTH)
    loop, eps = word(block, _LOOP), load(np.float64(0), block, _EPS)
    arrays = block + 8 * _ARRAYS
    part = next_part(block)
    while part >= 0:
        first, last = rows * part // parts, rows * (part + 1) // parts
        x, x_step, residual, residual_step = four(arrays, 0)
        total, total_step, y, y_step = four(arrays, 4)
        scale, scale_kind, bias, bias_kind = four(arrays, 8)
        call(
            loop,
            (
                *(centre, tag, x, x_step, residual, residual_step, total, total_step, y, y_step),
                *(scale, scale_kind, bias, bias_kind, work, first, last, width, eps),
            ),
        )
        take(block, DONE)
        part = next_part(block)


def backward_parts(block, centre, tag, dy_tag, has_bias):
    """Take parts of `backward_rows`; each has its own dscale, and after all of these its own dbias."""
    work = word(block, _WORK) + take(block, _THREADS) * word(block, _WORK_STEP)
    parts, rows, width = word(block, PARTS), word(block, _ROWS), word(block, _WIDTH)
    loop, eps = word(block, _LOOP), load(np.float64(0), block, _EPS)
    arrays = block + 8 * _ARRAYS
    sums = word(arrays, 8)
    part = next_part(block)
    while part >= 0:
        first, last = rows * part // parts, rows * (part + 1) // parts
        dy, dy_step, x, x_step = four(arrays, 0)
        dx, dx_step, scale, scale_kind = four(arrays, 4)
        dscale = sums + 8 * width * part
        dbias = if_wanted(has_bias, sums + 8 * width * (parts + part))
        call(
            loop,
            (
                *(centre, tag, dy_tag, dy, dy_step, x, x_step, dx, dx_step, scale, scale_kind),
                *(dscale, dbias, work, first, last, width, eps),
            ),
        )
        take(block, DONE)
        part = next_part(block)


@register_jitable
def next_part(block):
    """A part that no thread has taken, or -1 where none is left."""
    parts, stripes = word(block, PARTS), word(block, _STRIPES)
    longest = -(-parts // stripes)
    taken = take(block, _NEXT)
    while taken < longest * stripes:
        stripe = taken % stripes
        part = parts * stripe // stripes + taken // stripes
        if part < parts * (stripe + 1) // stripes:
            return part
        taken = take(block, _NEXT)
    return -1


@register_jitable
def four(address, index):
    """The four integers from ``index`` on."""
    return (
        word(address, index),
        word(address, index + 1),
        word(address, index + 2),
        word(address, index + 3),
    )


def if_wanted(wanted, address):
    """``address``, or None where ``wanted`` is None."""
    raise NotImplementedError


@overload(if_wanted, inline="always")
def _if_wanted(wanted, address):
    if isinstance(wanted, types.NoneType):
        return lambda wanted, address: None
    return lambda wanted, address: address
