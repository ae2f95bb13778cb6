"""A kernel table: the rows that an adapter can run, fastest first, the core's formulas last."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from normkit import _checks


class Kernel(NamedTuple):
    """One row.

    ``forward(norm, x, scale, bias, call)`` and ``vjp(norm, dy, x, scale, bias, call)`` have the
    contract of `normkit._norm.apply` and `apply_vjp`. ``unsupported(x, call)`` returns why the row
    cannot serve, or None; it may look at shape, dtype, device and the call's options, never at
    values, so that the choice survives tracing.
    """

    name: str
    platform: str
    forward: Callable[..., Any]
    vjp: Callable[..., Any]
    unsupported: Callable[[Any, Any], str | None]


def choose(kernels: Sequence[Kernel], x: Any, call: Any, name: str | None = None) -> Kernel:
    """The first row that supports ``x`` and ``call``; with ``name``, that row or ValueError with its reason."""
    reasons = {}
    for kernel in kernels:
        reason = kernel.unsupported(x, call)
        if reason is None and name in (None, kernel.name):
            return kernel
        reasons[kernel.name] = reason or "supported"
    raise _checks.no_kernel(name, reasons)
