"""The kernel "numba" on tensors in the CPU's memory."""

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normkit import _checks
from normkit._checks import Axes
from normkit._kernel import Kernel
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Call, Norm
from normkit._rms_norm import RMS_NORM
from normkit.kernels import cpu
from normkit.kernels.pages import LARGE, ask_for_large_pages

_CENTRE = {RMS_NORM.name: None, LAYER_NORM.name: True}
_NAMES = {getattr(torch, name): name for name in cpu.DTYPES}


def _unsupported(x: Tensor, call: Call) -> str | None:
    if x.device.type != "cpu":
        return f"it is for the CPU, and x is on {x.device}"
    if not call.convention.rounds_once:
        return "it rounds as convention 'standard' does, and no other"
    return cpu.unavailable()


def _forward(
    norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> Tensor:
    source = _in_rows(x, call.axes)
    y, target = _like(x, source, call.axes)
    _run(norm, weight, bias, call, source, target)
    return y if target is y else _filled(y, target, call.axes)


def add_forward(
    norm: Norm,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    call: Call,
) -> tuple[Tensor, Tensor]:
    """(norm of total, total = x + residual) in one pass, where both have rows."""
    total, y = torch.empty_like(x), torch.empty_like(x)
    if not all(_has_rows(t, call.axes) for t in (x, residual, total, y)):
        total = x + residual
        return _forward(norm, total, weight, bias, call), total
    for result in (total, y):
        ask_for_large_pages(result.data_ptr(), result.nbytes)
    _run(norm, weight, bias, call, x, y, residual, total)
    return y, total


def _run(
    norm: Norm, weight: Tensor | None, bias: Tensor | None, call: Call, *in_rows: Tensor
) -> None:
    """The loop on tensors in rows: x and y, and for a residual addition residual and total."""
    weight, bias = _contiguous(weight), _contiguous(bias)
    rows, width = _size(in_rows[0], call.axes)
    x, y, *added = (_rows(t, call.axes, width) for t in in_rows)
    _loops().forward(
        _CENTRE[norm.name],
        _NAMES[in_rows[0].dtype],
        x,
        y,
        _parameter(weight),
        _parameter(bias),
        rows,
        width,
        call.eps,
        torch.get_num_threads(),
        *added,
    )


def _vjp(
    norm: Norm, dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    scale = _contiguous(weight)
    source = _in_rows(x, call.axes)
    dy = _in_rows(dy if dy.dtype == x.dtype else dy.double(), call.axes)
    dx, target = _like(x, source, call.axes)
    rows, width = _size(source, call.axes)
    dscale, dbias = _loops().backward(
        _CENTRE[norm.name],
        _NAMES[x.dtype],
        _NAMES[dy.dtype],
        _rows(dy, call.axes, width),
        _rows(source, call.axes, width),
        _rows(target, call.axes, width),
        _parameter(scale),
        bias is not None,
        rows,
        width,
        call.eps,
        torch.get_num_threads(),
    )
    if target is not dx:
        dx = _filled(dx, target, call.axes)
    return dx, _gradient(dscale, weight), _gradient(dbias, bias)


def short_forward(
    norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> Callable[..., Tensor]:
    """`_forward` for contiguous tensors like these, in as few steps of Python as it takes.

    On a single row `_forward` takes longer to reach the loop than the loop takes.
    """
    rows, width = _size(x, call.axes)
    step = width * x.element_size()
    in_rows, large = call.axes[0] == x.ndim - len(call.axes), rows * step >= LARGE
    run = _loops().prepared_forward(
        *(_CENTRE[norm.name], _NAMES[x.dtype], step, step, _kind(weight), _kind(bias)),
        *(rows, width, call.eps),
    )

    def at_once(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if not (in_rows and x.is_contiguous()):
            return _forward(norm, x, weight, bias, call)
        w = b = 0
        if weight is not None:
            weight = weight if weight.is_contiguous() else weight.contiguous()
            w = weight.data_ptr() or _address(weight)
        if bias is not None:
            bias = bias if bias.is_contiguous() else bias.contiguous()
            b = bias.data_ptr() or _address(bias)
        y = torch.empty_like(x)
        target = y.data_ptr()
        if large:
            ask_for_large_pages(target, rows * step)
        run(x.data_ptr() or _address(x), target, w, b, torch.get_num_threads)
        return y

    return at_once


@functools.cache
def _loops() -> ModuleType:
    """The loops, on the threads that PyTorch has."""
    loops = cpu.loops()
    loops.use_openmp_of(torch._C.__file__)
    return loops


KERNEL = Kernel("numba", "cpu", _forward, _vjp, _unsupported)


def _in_rows(t: Tensor, axes: Axes) -> Tensor:
    """``t`` with the normalised axes last and rows that lie evenly: itself, or a copy."""
    if _has_rows(t, axes):
        return t
    return t.movedim(axes, _last(t, axes)).contiguous()


def _has_rows(t: Tensor, axes: Axes) -> bool:
    return axes[0] == t.ndim - len(axes) and (t.is_contiguous() or _step(t, len(axes)) is not None)


def _step(t: Tensor, normalized: int) -> int | None:
    size = t.element_size()
    return cpu.row_step(t.shape, [size * stride for stride in t.stride()], normalized, size)


def _like(x: Tensor, source: Tensor, axes: Axes) -> tuple[Tensor, Tensor]:
    """A new tensor with the layout of x, and where to write its rows: itself if it has such."""
    result = torch.empty_like(x)
    if source is x and _has_rows(result, axes):
        ask_for_large_pages(result.data_ptr(), result.nbytes)
        return result, result
    return result, torch.empty_like(source, memory_format=torch.contiguous_format)


def _filled(result: Tensor, target: Tensor, axes: Axes) -> Tensor:
    return result.copy_(target.movedim(_last(target, axes), axes))


def _last(t: Tensor, axes: Axes) -> Axes:
    return tuple(range(t.ndim - len(axes), t.ndim))


def _size(source: Tensor, axes: Axes) -> tuple[int, int]:
    """(rows, width) of a tensor in rows."""
    width = math.prod(source.shape[source.ndim - len(axes) :])
    return source.numel() // width, width


def _rows(t: Tensor, axes: Axes, width: int) -> tuple[int, int]:
    """(address, bytes from row to row) of a tensor in rows."""
    step = width * t.element_size() if t.is_contiguous() else _step(t, len(axes))
    return _address(t), step or 0


def _address(t: Tensor) -> int:
    address = t.data_ptr()
    if not address and t.numel():  # the loops would read what is not there
        raise _checks.no_memory(t.shape)
    return address


def _contiguous(p: Tensor | None) -> Tensor | None:
    return p if p is None or p.is_contiguous() else p.contiguous()


def _parameter(p: Tensor | None) -> tuple[int, int]:
    return (0 if p is None else _address(p)), _kind(p)


def _kind(p: Tensor | None) -> int:
    return 0 if p is None else cpu.KINDS[_NAMES[p.dtype]]


def _gradient(total: Any, parameter: Tensor | None) -> Tensor | None:
    if parameter is None:
        return None
    # `Arithmetic.narrow` in one step: PyTorch too goes from float64 to a half type through float32
    return torch.from_numpy(total).to(parameter.dtype).view(parameter.shape)
