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


def choose(kernels: Sequence[Kernel], x: Any, call: Any) -> Kernel:
    """The row that ``call.kernel`` names, or the first that supports ``x`` and ``call``.

    ValueError with each row's reason where there is none.
    """
    name = call.kernel
    reasons = {}
    for kernel in kernels:
        reason = kernel.unsupported(x, call)
        if reason is None and name in (None, kernel.name):
            return kernel
        reasons[kernel.name] = reason or "supported"
    raise _checks.no_kernel(name, reasons)
