"""Gated RMSNorm on tensors, and its operators ``torch.ops.normkit.gated_rms_norm(_vjp)``."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normkit import Convention
from normkit._gated import GATED_RMS_NORM, gated_forward, gated_pullback
from normkit._kernel import choose
from normkit._norm import Call

from ._arithmetic import ARITHMETIC, SMOOTH
from ._functional import are_plain, check, formula_is_needed
from ._library import FORMULAS, convention_from, followed


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
) -> Tensor:
    """RMSNorm with a gate: y = rms_norm(x, weight, bias) a, or y = rms_norm(x a, weight, bias).

    Args:
        x: As in `rms_norm`.
        gate: Tensor of the shape of ``x``, whose activation is a.
        weight, bias, eps, axis: As in `rms_norm`.
        convention: Whose roundings to follow, and where the gate goes: a name of
            `normkit.conventions.GATED_RMS_NORM`, or a `normkit.Convention` of that kind.

    Returns:
        Tensor of the shape of ``x``, and of its dtype where the convention names no other.

    Raises:
        TypeError, ValueError: as `normkit.gated_rms_norm`, with the same text.

    Example:
        >>> import torch
        >>> gated_rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, -1.0]]), eps=0.0)
        tensor([[ 0.6203, -0.3043]])

    Source: see `normkit.gated_rms_norm`.
    """
    call = _check(x, gate, weight, bias, eps, axis, convention)
    if not are_plain(x, gate, weight, bias) or formula_is_needed():
        y = gated_forward(ARITHMETIC, x, gate, weight, bias, call)
        return followed(y, gated_forward(SMOOTH, x, gate, weight, bias, call))
    found: Tensor = torch.ops.normkit.gated_rms_norm(x, gate, weight, bias, *_options(call))
    return found


def gated_rms_norm_vjp(
    dy: Tensor,
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
) -> tuple[Any, Any, Any, Any]:
    """``(dx, dgate, dweight, dbias)`` of `gated_rms_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.gated_rms_norm_vjp`, with the same arguments, errors and source.
    Autograd through `gated_rms_norm` gives the same gradients.

    Example:
        >>> import torch
        >>> x, gate = torch.tensor([3.0, 4.0]), torch.zeros(2)
        >>> gated_rms_norm_vjp(torch.ones(2), x, gate, eps=0.0)[1]
        tensor([0.4243, 0.5657])
    """
    call = _check(x, gate, weight, bias, eps, axis, convention, dy=dy)
    tensors = (dy, x, gate, weight, bias)
    differentiated = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in tensors
    )
    if differentiated or not are_plain(*tensors) or formula_is_needed():
        return gated_pullback(ARITHMETIC, dy, x, gate, weight, bias, call)
    return _run_vjp(dy, x, gate, weight, bias, call)


def _check(
    x: Tensor, gate: Tensor, weight: Any, bias: Any, eps: Any, axis: Any, convention: Any, **dy: Any
) -> Call:
    call = check(GATED_RMS_NORM, x, weight, bias, eps, axis, convention, None, gate=gate, **dy)
    choose(FORMULAS, x, call)  # refuses a device without float64
    return call


def _options(call: Call) -> tuple[float, tuple[int, ...], str]:
    return call.eps, call.axes, call.convention.text


def _call(eps: float, axes: Sequence[int], convention: str) -> Call:
    return Call(eps, tuple(axes), convention_from(convention))


# ---- the operators, as in _library -------------------------------------------------------------

_ARGUMENTS = (
    "Tensor x, Tensor gate, Tensor? weight, Tensor? bias, float eps, int[] axes, str convention"
)
_LIBRARY = torch.library.Library("normkit", "FRAGMENT")
_LIBRARY.define(f"gated_rms_norm({_ARGUMENTS}) -> Tensor")
_LIBRARY.define(f"gated_rms_norm_vjp(Tensor dy, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")


def _forward(x: Tensor, gate: Tensor, weight: Any, bias: Any, *options: Any) -> Any:
    return gated_forward(ARITHMETIC, x, gate, weight, bias, _call(*options))


def _vjp(dy: Tensor, x: Tensor, gate: Tensor, weight: Any, bias: Any, *options: Any) -> Any:
    gradients = gated_pullback(ARITHMETIC, dy, x, gate, weight, bias, _call(*options))
    inputs = (x, gate, weight, bias)
    return tuple(
        x.new_empty(0) if g is None else _laid_out(g, t)
        for g, t in zip(gradients, inputs, strict=True)
    )


def _laid_out(gradient: Tensor, tensor: Any) -> Tensor:
    """With the strides that the fake operator promises; products have those of one operand."""
    promised = torch.empty_like(tensor, device="meta").stride()
    return gradient if gradient.stride() == promised else torch.empty_like(tensor).copy_(gradient)


def _fake_forward(x: Tensor, gate: Tensor, weight: Any, bias: Any, *options: Any) -> Any:
    row: Any = [
        None if t is None else torch.ones(1, dtype=t.dtype) for t in (x, gate, weight, bias)
    ]
    call = Call(1e-6, (0,), replace(_call(*options).convention, partial=1.0, groups=1))
    x_row, gate_row, weight_row, bias_row = row
    y = gated_forward(ARITHMETIC, x_row, gate_row, weight_row, bias_row, call)
    return torch.empty_like(x, dtype=y.dtype)


def _fake_vjp(dy: Tensor, x: Tensor, gate: Tensor, weight: Any, bias: Any, *options: Any) -> Any:
    inputs = (x, gate, weight, bias)
    return tuple(x.new_empty(0) if t is None else torch.empty_like(t) for t in inputs)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, gate, weight, bias = ctx.saved_tensors
    if torch.is_grad_enabled():
        gradients = gated_pullback(ARITHMETIC, dy, x, gate, weight, bias, ctx.call)
    else:
        gradients = _run_vjp(dy, x, gate, weight, bias, ctx.call)
    return (*gradients, None, None, None)


def _run_vjp(dy: Tensor, x: Tensor, gate: Tensor, weight: Any, bias: Any, call: Call) -> Any:
    operator = torch.ops.normkit.gated_rms_norm_vjp
    dx, dgate, dweight, dbias = operator(dy, x, gate, weight, bias, *_options(call))
    return dx, dgate, None if weight is None else dweight, None if bias is None else dbias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, eps, axes, convention = inputs
    ctx.save_for_backward(*tensors)
    ctx.call = _call(eps, axes, convention)


_LIBRARY.impl("gated_rms_norm", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("gated_rms_norm_vjp", _vjp, "CompositeExplicitAutograd")
torch.library.register_fake("normkit::gated_rms_norm", _fake_forward, lib=_LIBRARY)
torch.library.register_fake("normkit::gated_rms_norm_vjp", _fake_vjp, lib=_LIBRARY)
torch.library.register_autograd(
    "normkit::gated_rms_norm", _backward, setup_context=_setup_context, lib=_LIBRARY
)
