"""The operators ``torch.ops.normkit.*``: what torch.compile sees of normkit.

Each norm has two, of which neither looks inside the other:

    <norm>(x, weight, bias, eps, axes, kernel) -> y
    <norm>_vjp(dy, x, weight, bias, eps, axes, kernel) -> (dx, dweight, dbias)

An absent gradient is a tensor of no elements, because a schema knows no optional result. The first
is differentiable by the second; where a graph of the backward pass itself is asked for
(``create_graph``), the backward pass is the core's formula in ordinary operations, which
PyTorch differentiates further.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normkit._kernel import choose
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Call, Norm, formulas
from normkit._rms_norm import RMS_NORM

from ._arithmetic import ARITHMETIC

KERNELS = formulas(lambda x: ARITHMETIC)


def formula(
    norm: Norm,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    call: Call,
    kernel: str | None,
) -> Any:
    """The core's formula as ordinary PyTorch operations."""
    return choose(KERNELS, x, kernel).forward(norm, x, weight, bias, call)


def formula_vjp(
    norm: Norm,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    call: Call,
    kernel: str | None,
) -> Any:
    """The core's backward formula as ordinary PyTorch operations."""
    return choose(KERNELS, x, kernel).vjp(norm, dy, x, weight, bias, call)


_LIBRARY = torch.library.Library("normkit", "DEF")


def _define(norm: Norm) -> None:
    arguments = "Tensor x, Tensor? weight, Tensor? bias, float eps, int[] axes, str? kernel"
    name, vjp_name = f"normkit::{norm.name}", f"normkit::{norm.name}_vjp"
    _LIBRARY.define(f"{norm.name}({arguments}) -> Tensor")
    _LIBRARY.define(f"{norm.name}_vjp(Tensor dy, {arguments}) -> (Tensor, Tensor, Tensor)")

    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        axes: Sequence[int],
        kernel: str | None,
    ) -> Tensor:
        return formula(norm, x, weight, bias, Call(eps, tuple(axes)), kernel)

    def vjp(
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        axes: Sequence[int],
        kernel: str | None,
    ) -> tuple[Tensor, ...]:
        gradients = formula_vjp(norm, dy, x, weight, bias, Call(eps, tuple(axes)), kernel)
        return tuple(x.new_empty(0) if g is None else g for g in gradients)

    def fake_vjp(
        dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any
    ) -> tuple[Tensor, ...]:
        return tuple(
            x.new_empty(0) if p is None else torch.empty_like(p) for p in (x, weight, bias)
        )

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        run = formula_vjp if torch.is_grad_enabled() else run_vjp
        return (*run(norm, dy, x, weight, bias, ctx.call, ctx.kernel), None, None, None)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, eps, axes, ctx.kernel = inputs
        ctx.save_for_backward(x, weight, bias)
        ctx.call = Call(eps, tuple(axes))

    _LIBRARY.impl(norm.name, forward, "CompositeExplicitAutograd")
    _LIBRARY.impl(f"{norm.name}_vjp", vjp, "CompositeExplicitAutograd")
    torch.library.register_fake(name, lambda x, *_: torch.empty_like(x), lib=_LIBRARY)
    torch.library.register_fake(vjp_name, fake_vjp, lib=_LIBRARY)
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_LIBRARY)


def run_forward(
    norm: Norm,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    call: Call,
    kernel: str | None,
) -> Any:
    """The first operator of ``norm``."""
    return getattr(torch.ops.normkit, norm.name)(x, weight, bias, call.eps, call.axes, kernel)


def run_vjp(
    norm: Norm,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    call: Call,
    kernel: str | None,
) -> Any:
    """The second operator of ``norm``, with None where there was no parameter."""
    operator = getattr(torch.ops.normkit, f"{norm.name}_vjp")
    dx, dweight, dbias = operator(dy, x, weight, bias, call.eps, call.axes, kernel)
    return dx, None if weight is None else dweight, None if bias is None else dbias


_define(RMS_NORM)
_define(LAYER_NORM)
