"""The public functions on torch tensors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from normkit import Convention, _checks
from normkit._kernel import Kernel, choose
from normkit._layer_norm import LAYER_NORM
from normkit._norm import Call, Norm, check_call
from normkit._rms_norm import RMS_NORM

from ._autograd import Differentiable
from ._cpu import KERNEL as CPU_KERNEL
from ._cpu import add_forward, short_forward
from ._library import (
    KERNELS,
    VISIBLE,
    formula,
    formula_vjp,
    operators_are_seen,
    run_forward,
    run_vjp,
)

HOST = _checks.Host("torch", Tensor)
_PLAIN = (Tensor, Parameter, type(None))

# A small call asks them all, and looking them up takes as long as their answer
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_transforms = torch._C._are_functorch_transforms_active


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> Tensor:
    """RMSNorm of a tensor: y = x / sqrt(mean(x^2) + eps) * weight + bias.

    Args:
        x: Real floating tensor with at least one axis. A row is a slice along ``axis``.
        weight: Tensor with the sizes of the normalised axes in ascending order, or None for ones.
        bias: Like ``weight``, or None for zeros.
        eps: Added to the mean square, in units of x squared; None is the
            convention's: for "standard" 1e-6, for "torch" 2^-23, or 2^-52 for float64.
        axis: The normalised axis or axes.
        convention: Whose roundings to follow: a name of `normkit.conventions`, or a
            `normkit.Convention`.
        kernel: Name of the kernel that shall run, or None for the first that can.

    Returns:
        Tensor of the shape and device of ``x``, and of its dtype where the convention names no
        other, also under autocast.

    Raises:
        TypeError, ValueError: as `normkit.rms_norm`, with the same text.

    Example:
        >>> import torch
        >>> rms_norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), eps=0.0)
        tensor([[0.3651, 0.7303, 1.0954, 1.4606]])

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    return _norm(RMS_NORM, x, weight, bias, (eps, axis, convention, kernel))


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> Tensor:
    """LayerNorm of a tensor: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.

    Args:
        x, weight, bias, axis, convention, kernel: As in `rms_norm`.
        eps: Added to the variance, in units of x squared; None is the convention's, for
            "standard" 1e-5.

    Returns:
        Tensor of the shape and device of ``x``, and of its dtype where the convention names no
        other, also under autocast.

    Raises:
        TypeError, ValueError: as `normkit.layer_norm`, with the same text.

    Example:
        >>> import torch
        >>> layer_norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), eps=0.0)
        tensor([[-1.3416, -0.4472,  0.4472,  1.3416]])

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    return _norm(LAYER_NORM, x, weight, bias, (eps, axis, convention, kernel))


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[Tensor, Tensor]:
    """``(rms_norm(s, weight, bias), s)`` with s = x + residual, rounded to their dtype.

    Args:
        residual: Tensor of the shape and dtype of ``x``.
        x, weight, bias, eps, axis, convention, kernel: As in `rms_norm`.

    Returns:
        Two tensors of the shape and device of ``x``; s has its dtype.

    Raises:
        TypeError, ValueError: as `normkit.add_rms_norm`, with the same text.

    Example:
        >>> import torch
        >>> add_rms_norm(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 3.0]), eps=0.0)
        (tensor([0.8485, 1.1314]), tensor([3., 4.]))

    Source: see `normkit.add_rms_norm`.
    """
    return _add_norm(RMS_NORM, x, residual, weight, bias, eps, axis, convention, kernel)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[Tensor, Tensor]:
    """``(layer_norm(s, weight, bias), s)`` with s = x + residual, rounded to their dtype.

    Args:
        residual: Tensor of the shape and dtype of ``x``.
        x, weight, bias, eps, axis, convention, kernel: As in `layer_norm`.

    Returns:
        Two tensors of the shape and device of ``x``; s has its dtype.

    Raises:
        TypeError, ValueError: as `normkit.add_layer_norm`, with the same text.

    Example:
        >>> import torch
        >>> add_layer_norm(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 3.0]), eps=0.0)
        (tensor([-1.,  1.]), tensor([3., 4.]))

    Source: see `normkit.add_layer_norm`.
    """
    return _add_norm(LAYER_NORM, x, residual, weight, bias, eps, axis, convention, kernel)


def rms_norm_vjp(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[Any, Any, Any]:
    """``(dx, dweight, dbias)`` of `rms_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.rms_norm_vjp`, with the same arguments, errors and source. Autograd
    through `rms_norm` gives the same gradients.

    Example:
        >>> import torch
        >>> rms_norm_vjp(torch.ones(2), torch.tensor([3.0, 4.0]), eps=0.0)
        (tensor([ 0.0453, -0.0339]), None, None)
    """
    return _norm_vjp(RMS_NORM, dy, x, weight, bias, eps, axis, convention, kernel)


def layer_norm_vjp(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    axis: int | Sequence[int] = -1,
    convention: str | Convention = "standard",
    kernel: str | None = None,
) -> tuple[Any, Any, Any]:
    """``(dx, dweight, dbias)`` of `layer_norm` for the gradient ``dy`` of its result.

    The formula of `normkit.layer_norm_vjp`, with the same arguments, errors and source. Autograd
    through `layer_norm` gives the same gradients.

    Example:
        >>> import torch
        >>> dy, x = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 4.0])
        >>> layer_norm_vjp(dy, x, eps=0.0)[0]
        tensor([ 0.2291, -0.3436,  0.1145])
    """
    return _norm_vjp(LAYER_NORM, dy, x, weight, bias, eps, axis, convention, kernel)


def check(
    norm: Norm,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: Any,
    axis: Any,
    convention: Any,
    kernel: Any,
    **like_x: Tensor,
) -> Call:
    """`check_call` of tensors, whose layout must be one that norms are defined for."""
    if isinstance(x, Tensor):
        if x.layout not in (torch.strided, torch.jagged):
            raise _checks.no_layout("x", f"layout {x.layout}", "call x.to_dense() first")
        if x.is_nested and x.layout == torch.strided:
            raise _checks.no_layout(
                "x", "a nested tensor of layout torch.strided", "build it with layout=torch.jagged"
            )
    call = check_call(
        norm,
        x,
        weight,
        bias,
        eps=eps,
        axis=axis,
        convention=convention,
        kernel=kernel,
        host=HOST,
        **like_x,
    )
    for name, tensor in {"weight": weight, "bias": bias, **like_x}.items():
        if tensor is not None:
            _checks.same_device(name, tensor, x)
    return call


def _norm(
    norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None, options: tuple[Any, ...]
) -> Tensor:
    if _is_compiling():
        call, plain = check(norm, x, weight, bias, *options), are_plain(x, weight, bias)
        run = run_forward if plain and not formula_is_needed() else formula
        return run(norm, x, weight, bias, call)
    call, kernel, plain, at_once = _known(norm, x, weight, bias, options)
    if not plain or formula_is_needed():
        return formula(norm, x, weight, bias, call)
    if operators_are_seen():
        return run_forward(norm, x, weight, bias, call)
    if _is_differentiated(x, weight, bias):
        run = at_once or partial(_forward, kernel, norm, call)
        return Differentiable.apply(x, weight, bias, run, norm, call, kernel)
    if at_once is not None:
        return at_once(x, weight, bias)
    return kernel.forward(norm, x, weight, bias, call)


def _forward(kernel: Kernel, norm: Norm, call: Call, *tensors: Tensor | None) -> Any:
    return kernel.forward(norm, *tensors, call)


def _norm_vjp(
    norm: Norm,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *options: Any,
) -> Any:
    call = check(norm, x, weight, bias, *options, dy=dy)
    differentiated = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (dy, x, weight)
    )
    if differentiated or not are_plain(dy, x, weight, bias) or formula_is_needed():
        return formula_vjp(norm, dy, x, weight, bias, call)
    return run_vjp(norm, dy, x, weight, bias, call)


def _add_norm(
    norm: Norm,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor]:
    if _is_compiling() or not _is_like(residual, x):
        check(norm, x, weight, bias, *options, residual=residual)
        _checks.same_dtype("residual", residual, x)
    if not _is_compiling():
        call, kernel, plain, _ = _known(norm, x, weight, bias, options)
        seen = formula_is_needed() or operators_are_seen()
        seen = seen or _is_differentiated(x, weight, bias, residual)
        if kernel is CPU_KERNEL and plain and are_plain(residual) and not seen:
            return add_forward(norm, x, residual, weight, bias, call)
    total = x + residual
    return _norm(norm, total, weight, bias, options), total


def _is_like(residual: Tensor, x: Tensor) -> bool:
    """Whether what is right for x is right for the residual."""
    return (
        isinstance(residual, Tensor)
        and isinstance(x, Tensor)
        and residual.shape == x.shape
        and residual.dtype == x.dtype
        and residual.device == x.device
        and residual.layout == x.layout == torch.strided
    )


_Examined: TypeAlias = tuple[Call, Kernel, bool, Callable[..., Tensor] | None]

# Results of `_examined`, which looks at nothing but types, dtypes, shapes, devices and options
_EXAMINED: dict[Any, _Examined] = {}
_MOST_EXAMINED = 4096


def _examined(
    norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None, options: Sequence[Any]
) -> _Examined:
    """The checked options, the kernel for them, whether the tensors are of plain types, and a
    shorter way to the kernel's forward if there is one."""
    call = check(norm, x, weight, bias, *options)
    plain = are_plain(x, weight, bias)
    kernel = choose(KERNELS if plain else VISIBLE, x, call)
    at_once = short_forward(norm, x, weight, bias, call) if kernel is CPU_KERNEL else None
    return call, kernel, plain, at_once


def _known(
    norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None, options: tuple[Any, ...]
) -> _Examined:
    """`_examined`, from memory where the same was asked before."""
    try:
        key = (
            norm.name,
            type(x),
            x.dtype,
            x.shape,
            x.is_cpu or x.device,
            x.layout,
            type(weight),
            None
            if weight is None
            else (weight.dtype, weight.shape, weight.is_cpu or weight.device),
            type(bias),
            None if bias is None else (bias.dtype, bias.shape, bias.is_cpu or bias.device),
            options,
            type(options[0]),
            type(options[1]),
        )
        found = _EXAMINED.get(key)
    except (AttributeError, TypeError):  # no tensors, or a list as axis
        return _examined(norm, x, weight, bias, options)
    if found is None:
        found = _examined(norm, x, weight, bias, options)
        if len(_EXAMINED) >= _MOST_EXAMINED:
            _EXAMINED.clear()
        _EXAMINED[key] = found
    return found


def are_plain(*tensors: Tensor | None) -> bool:
    """Whether no subclass must see ordinary operations to do its work."""
    return all(type(t) in _PLAIN for t in tensors)


def _is_differentiated(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None = None
) -> bool:
    """Whether autograd takes part."""
    return _is_grad_enabled() and (  # not any(...): a generator takes longer than all else here
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    )


def formula_is_needed() -> bool:
    """Whether a transform must see ordinary operations to do its work."""
    return _transforms() or forward_ad._current_level >= 0 or torch.compiler.is_exporting()
