"""The kernel "numba" on NumPy arrays."""

import math
from typing import Any

import numpy as np

from normkit._checks import Axes, dtype_name
from normkit._kernel import Kernel
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Call, Norm
from normkit._rms_norm import RMS_NORM
from normkit.kernels import cpu

from ._arithmetic import ARITHMETIC

Array = np.ndarray[Any, Any]

_CENTRE = {RMS_NORM.name: None, LAYER_NORM.name: True}


def _unsupported(x: Array, call: Call) -> str | None:
    if not call.convention.rounds_once:
        return "it rounds as convention 'standard' does, and no other"
    return cpu.unavailable()


def _forward(norm: Norm, x: Array, scale: Array | None, bias: Array | None, call: Call) -> Array:
    return forward_to(np.empty(x.shape, x.dtype), norm, x, scale, bias, call)


def forward_to(
    out: Array, norm: Norm, x: Array, scale: Array | None, bias: Array | None, call: Call
) -> Array:
    """Write the norm of x to ``out``, which may be x."""
    source = _in_rows(x, call.axes)
    target = _target(out, x, source, call.axes)
    _run(norm, scale, bias, call, source, target)
    return _filled(out, target, call.axes)


def add_forward(
    norm: Norm, x: Array, residual: Array, scale: Array | None, bias: Array | None, call: Call
) -> tuple[Array, Array]:
    """(norm of total, total = x + residual) in one pass over both."""
    source = _in_rows(x, call.axes)
    y, total = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    y_rows, total_rows = (_target(a, x, source, call.axes) for a in (y, total))
    _run(norm, scale, bias, call, source, y_rows, _in_rows(residual, call.axes), total_rows)
    return _filled(y, y_rows, call.axes), _filled(total, total_rows, call.axes)


def _run(norm: Norm, scale: Array | None, bias: Array | None, call: Call, *in_rows: Array) -> None:
    """The loop on arrays in rows: x and y, and for a residual addition residual and total."""
    scale, bias = _contiguous(scale), _contiguous(bias)
    x, y, *added = (_rows(a, call.axes) for a in in_rows)
    cpu.loops().forward(
        _CENTRE[norm.name],
        dtype_name(in_rows[0].dtype),
        x,
        y,
        _parameter(scale),
        _parameter(bias),
        *_size(in_rows[0], call.axes),
        call.eps,
        cpu.default_threads(),
        *added,
    )


def _vjp(
    norm: Norm, dy: Array, x: Array, scale: Array | None, bias: Array | None, call: Call
) -> tuple[Array, Array | None, Array | None]:
    flat_scale = _contiguous(scale)
    source = _in_rows(x, call.axes)
    dy = _in_rows(dy if dy.dtype == x.dtype else dy.astype(np.float64), call.axes)
    dx = np.empty(x.shape, x.dtype)
    target = _target(dx, x, source, call.axes)
    rows, width = _size(source, call.axes)
    dscale, dbias = cpu.loops().backward(
        _CENTRE[norm.name],
        dtype_name(x.dtype),
        dtype_name(dy.dtype),
        _rows(dy, call.axes),
        _rows(source, call.axes),
        _rows(target, call.axes),
        _parameter(flat_scale),
        bias is not None,
        rows,
        width,
        call.eps,
        cpu.default_threads(),
    )
    dx = _filled(dx, target, call.axes)
    return dx, _gradient(dscale, scale), _gradient(dbias, bias)


KERNEL = Kernel("numba", "cpu", _forward, _vjp, _unsupported)


def _in_rows(a: Array, axes: Axes) -> Array:
    """``a`` with the normalised axes last and rows that lie evenly: itself, or a copy.

    A copy too where the processor could not read the numbers as they lie.
    """
    if _has_rows(a, axes):
        return a
    moved = np.moveaxis(a, axes, _last(a, axes))
    return np.ascontiguousarray(moved, moved.dtype.newbyteorder("="))


def _has_rows(a: Array, axes: Axes) -> bool:
    return (
        axes[0] == a.ndim - len(axes)
        and a.flags.aligned
        and a.dtype.isnative
        and cpu.row_step(a.shape, a.strides, len(axes), a.itemsize) is not None
    )


def _target(out: Array, x: Array, source: Array, axes: Axes) -> Array:
    """Where to write rows: ``out``, or an array like ``source`` if that has none or overlaps x."""
    if source is x and _has_rows(out, axes):
        in_place = out.__array_interface__["data"] == x.__array_interface__["data"]
        if not np.may_share_memory(out, x) or (in_place and out.strides == x.strides):
            return out
    return np.empty(source.shape, source.dtype)


def _filled(out: Array, target: Array, axes: Axes) -> Array:
    if target is not out:
        np.copyto(out, np.moveaxis(target, _last(target, axes), axes))
    return out


def _last(a: Array, axes: Axes) -> Axes:
    return tuple(range(a.ndim - len(axes), a.ndim))


def _size(source: Array, axes: Axes) -> tuple[int, int]:
    """(rows, width) of an array in rows."""
    width = math.prod(source.shape[source.ndim - len(axes) :])
    return source.size // width, width


def _rows(a: Array, axes: Axes) -> tuple[int, int]:
    """(address, bytes from row to row) of an array in rows."""
    step = cpu.row_step(a.shape, a.strides, len(axes), a.itemsize)
    return a.__array_interface__["data"][0], step or 0


def _contiguous(p: Array | None) -> Array | None:
    return None if p is None else np.ascontiguousarray(p, p.dtype.newbyteorder("="))


def _parameter(p: Array | None) -> tuple[int, int]:
    if p is None:
        return 0, 0
    return p.__array_interface__["data"][0], cpu.KINDS[dtype_name(p.dtype)]


def _gradient(total: Any, parameter: Array | None) -> Array | None:
    if parameter is None:
        return None
    with ARITHMETIC.scope():
        narrow: Array = ARITHMETIC.narrow(total, parameter.dtype)
    return narrow.reshape(parameter.shape)
