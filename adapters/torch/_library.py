"""The operators ``torch.ops.normkit.*``: what torch.compile sees of normkit.

Each norm has two, of which neither looks inside the other:

    <norm>(x, weight, bias, eps, axes, convention, kernel) -> y
    <norm>_vjp(dy, x, weight, bias, eps, axes, convention, kernel) -> (dx, dweight, dbias)

``convention`` is the text of a `Convention`: a schema knows no objects. An absent gradient is a
tensor of no elements, because a schema knows no optional result. The first is differentiable by the
second; where a graph of the backward pass itself is asked for (``create_graph``), the backward pass
is the core's formula in ordinary operations, which PyTorch differentiates further.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normkit import Convention
from normkit._checks import Axes
from normkit._kernel import Kernel, choose
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Call, Norm, apply, formulas
from normkit._rms_norm import RMS_NORM

from . import _cpu
from ._arithmetic import ARITHMETIC, SMOOTH

FORMULAS = formulas(lambda x: ARITHMETIC)
KERNELS = (_cpu.KERNEL, *FORMULAS)


def _looks_inside(x: Tensor, call: Call) -> str:
    return "transforms, subclasses and second derivatives need ordinary operations"


# What can be seen through
VISIBLE = (_cpu.KERNEL._replace(unsupported=_looks_inside), *FORMULAS)


def formula(norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call) -> Any:
    """The core's formula as ordinary PyTorch operations.

    Where a convention rounds on its way, the value is that of the rounded formula, and the
    derivatives are those of the formula without its roundings, as in the backward operator.
    """
    y = choose(VISIBLE, x, call).forward(norm, x, weight, bias, call)
    if call.convention.rounds_once:
        return y
    return followed(y, apply(SMOOTH, norm, x, weight, bias, call))


def followed(y: Tensor, smooth: Tensor) -> Tensor:
    """y, with the derivatives of ``smooth``."""
    # The inner difference is 0, with the derivative that is wanted; subtracted, it leaves the sign
    # of a zero.
    same = y.detach() - (smooth.detach() - smooth)
    return torch.where(torch.isfinite(smooth), same, y)


def formula_vjp(
    norm: Norm, dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> Any:
    """The core's backward formula as ordinary PyTorch operations."""
    return choose(VISIBLE, x, call).vjp(norm, dy, x, weight, bias, call)


@functools.cache
def convention_from(text: str) -> Convention:
    """The convention of that text, made once."""
    return Convention.from_text(text)


def _call(eps: float, axes: Sequence[int], convention: str, kernel: str | None) -> Call:
    """The options that `_options` made."""
    return Call(eps, tuple(axes), convention_from(convention), kernel)


@functools.cache
def _result_dtype(norm: Norm, convention: Convention, *dtypes: torch.dtype | None) -> torch.dtype:
    """What the formula makes of a row of one element."""
    row: Any = [None if d is None else torch.ones(1, dtype=d) for d in dtypes]
    whole = replace(convention, partial=1.0, groups=1)
    x, weight, bias = row
    found: torch.dtype = apply(ARITHMETIC, norm, x, weight, bias, Call(1e-6, (0,), whole)).dtype
    return found


def _options(call: Call) -> tuple[float, Axes, str, str | None]:
    """The options as the operators take them."""
    return call.eps, call.axes, call.convention.text, call.kernel


_LIBRARY = torch.library.Library("normkit", "DEF")


def _define(norm: Norm) -> None:
    arguments = (
        "Tensor x, Tensor? weight, Tensor? bias, float eps, int[] axes, str convention, str? kernel"
    )
    name, vjp_name = f"normkit::{norm.name}", f"normkit::{norm.name}_vjp"
    _LIBRARY.define(f"{norm.name}({arguments}) -> Tensor")
    _LIBRARY.define(f"{norm.name}_vjp(Tensor dy, {arguments}) -> (Tensor, Tensor, Tensor)")

    def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any) -> Tensor:
        call = _call(*options)
        return choose(KERNELS, x, call).forward(norm, x, weight, bias, call)

    def vjp(
        dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any
    ) -> tuple[Tensor, ...]:
        call = _call(*options)
        found = choose(KERNELS, x, call).vjp(norm, dy, x, weight, bias, call)
        return tuple(x.new_empty(0) if g is None else g for g in found)

    def fake_forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any
    ) -> Tensor:
        dtypes = [None if t is None else t.dtype for t in (x, weight, bias)]
        return torch.empty_like(x, dtype=_result_dtype(norm, _call(*options).convention, *dtypes))

    def fake_vjp(
        dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any
    ) -> tuple[Tensor, ...]:
        return tuple(
            x.new_empty(0) if p is None else torch.empty_like(p) for p in (x, weight, bias)
        )

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        return (*gradients(norm, dy, x, weight, bias, ctx.call), *[None] * 4)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, *options = inputs
        ctx.save_for_backward(x, weight, bias)
        ctx.call = _call(*options)

    _LIBRARY.impl(norm.name, forward, "CompositeExplicitAutograd")
    _LIBRARY.impl(f"{norm.name}_vjp", vjp, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake_forward, lib=_LIBRARY)
    torch.library.register_fake(vjp_name, fake_vjp, lib=_LIBRARY)
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_LIBRARY)


def run_forward(
    norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> Any:
    """The first operator of ``norm``."""
    return getattr(torch.ops.normkit, norm.name)(x, weight, bias, *_options(call))


def run_vjp(
    norm: Norm, dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> Any:
    """The second operator of ``norm``, with None where there was no parameter."""
    operator = getattr(torch.ops.normkit, f"{norm.name}_vjp")
    dx, dweight, dbias = operator(dy, x, weight, bias, *_options(call))
    return dx, None if weight is None else dweight, None if bias is None else dbias


def gradients(
    norm: Norm,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    call: Call,
    kernel: Kernel | None = None,
) -> Any:
    """What a backward pass gives: by ``kernel`` itself, where nobody looks at operators.

    dy has no memory of its own where several gradients are taken at once (``is_grads_batched``).
    """
    if torch.is_grad_enabled():  # the gradient will be differentiated, which no kernel can be
        call = call._replace(kernel=None) if call.kernel == _cpu.KERNEL.name else call
        return formula_vjp(norm, dy, x, weight, bias, call)
    plain = type(dy) is Tensor and torch._C._has_storage(dy)
    if kernel is None or operators_are_seen() or not plain:
        return run_vjp(norm, dy, x, weight, bias, call)
    return kernel.vjp(norm, dy, x, weight, bias, call)


def operators_are_seen() -> bool:
    """Whether a mode or a tracer looks at every operator."""
    return _modes() > 0 or _trace() is not None


_modes, _trace = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state


_define(RMS_NORM)
_define(LAYER_NORM)
