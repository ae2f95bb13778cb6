"""Rows computed a block at a time, so that what lies between input and output stays in the cache.

XLA on the CPU writes the float64 arrays between its fusions to memory, and for large arrays it asks
the system for new pages each time: that costs several times the arithmetic. In a loop over blocks
of rows, these arrays are small and stay where they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from normkit._checks import HALF_DTYPES, Axes, dtype_name

_ELEMENTS = 1 << 16  # of a block: half a MiB in float64
_FEW = 4 * _ELEMENTS  # an array that is not larger is one block


def as_rows(x: Any, parameters: Sequence[Any], axes: Axes) -> tuple[int, ...] | None:
    """``(rows, *row)``, the shape of x as a list of rows; None where it is none.

    It is one where the rows lie along the last axes and share their parameters.
    """
    first = x.ndim - len(axes)
    if axes != tuple(range(first, x.ndim)) or any(set(p.shape[:first]) - {1} for p in parameters):
        return None
    if not all(isinstance(size, int) for size in x.shape):  # jax.export with symbolic sizes
        return None
    return int(np.prod(x.shape[:first])), *x.shape[first:]


def worth_blocks(x: Any) -> bool:
    """Whether x is larger than what stays in the cache anyway."""
    return bool(x.size > _FEW)


def over_blocks(
    function: Callable[..., tuple[list[Any], list[Any]]], arrays: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """``function(*arrays)``, a block of rows at a time.

    It returns two lists: arrays of the same rows, which are put together, and totals over its rows,
    which are added up, from the first block to the last.
    """
    rows, row = arrays[0].shape[0], int(np.prod(arrays[0].shape[1:]))
    most = max(1, _ELEMENTS // row)
    size = next((b for b in range(most, most // 2, -1) if rows % b == 0), most)

    sliced = [_bits(a) for a in arrays]

    def add_block(start: Any, size: int, found: Any) -> Any:
        blocks = (
            _of_bits(lax.dynamic_slice_in_dim(bits, start, size), a.dtype)
            for bits, a in zip(sliced, arrays, strict=True)
        )
        together, totals = function(*blocks)
        return (
            [
                lax.dynamic_update_slice_in_dim(whole, _bits(block), start, 0)
                for whole, block in zip(found[0], together, strict=True)
            ],
            [a + b for a, b in zip(found[1], totals, strict=True)],
        )

    shapes = jax.eval_shape(function, *arrays)
    # Any value will do to begin with. Were it a constant, XLA would share it with other loops, and
    # copy it for each.
    first = lax.index_in_dim(arrays[-1].reshape(-1), 0, keepdims=False)
    found = (
        [jnp.broadcast_to(_bits(first.astype(s.dtype)), s.shape) for s in shapes[0]],
        [jnp.zeros(s.shape, s.dtype) for s in shapes[1]],
    )
    rest = rows % size
    if rest:
        found = add_block(0, rest, found)
    found = lax.fori_loop(
        0, rows // size, lambda i, found: add_block(rest + i * size, size, found), found
    )
    return [_of_bits(a, s.dtype) for a, s in zip(found[0], shapes[0], strict=True)], found[1]


def _bits(block: Any) -> Any:
    """A half type as integers: XLA on the CPU would hold the whole array in float32."""
    half = dtype_name(block.dtype) in HALF_DTYPES
    return lax.bitcast_convert_type(block, jnp.uint16) if half else block


def _of_bits(whole: Any, dtype: Any) -> Any:
    return lax.bitcast_convert_type(whole, dtype) if whole.dtype != dtype else whole
