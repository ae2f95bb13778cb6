"""The contenders in torch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

import normkit.torch

from ._plan import Group

Make = Callable[[], Callable[[], object]]

_EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5}


class _Data:
    """x, and what else a pass needs; gradients are asked for in a backward pass alone."""

    def __init__(self, group: Group) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Any:
            values = torch.randn(*shape, generator=generator)
            return values.to(getattr(torch, group.dtype))

        backward = group.passes == "forward+backward"
        self.x = normal(*group.shape).requires_grad_(backward)
        self.residual = normal(*group.shape)
        self.dy = self.residual
        self.weight = (1 + normal(group.shape[-1]) / 8).requires_grad_(backward)
        self.bias = normal(group.shape[-1]).requires_grad_(backward)

    def parameters(self, op: str) -> tuple[Any, ...]:
        return (self.weight,) if op == "rms_norm" else (self.weight, self.bias)


def _plain(op: str, width: int) -> Any:
    """torch's own, with arguments as normkit has them."""
    function, eps = getattr(functional, op), _EPS[op]
    return lambda x, *parameters: function(x, (width,), *parameters, eps=eps)


def _ours(op: str) -> Any:
    return partial(getattr(normkit.torch, op), eps=_EPS[op])


def _plain_residual(op: str, width: int) -> Any:
    norm = _plain(op, width)

    def function(x: Any, residual: Any, *parameters: Any) -> Any:
        total = x + residual
        return norm(total, *parameters), total

    return function


def _ours_residual(op: str) -> Any:
    return partial(getattr(normkit.torch, f"add_{op}"), eps=_EPS[op])


def _call(function: Any, data: _Data, op: str, passes: str) -> Callable[[], object]:
    parameters = data.parameters(op)
    if passes == "residual":
        return lambda: function(data.x, data.residual, *parameters)
    if passes == "forward":
        return lambda: function(data.x, *parameters)
    wanted = (data.x, *parameters)

    def forward_and_backward() -> object:
        y = function(data.x, *parameters)
        return y, torch.autograd.grad(y, wanted, data.dy)

    return forward_and_backward


def _call_compiled(function: Any, make: Any) -> Any:
    torch.compiler.reset()  # else the shapes before count against the limit of recompilations
    return make(torch.compile(function, dynamic=False, fullgraph=True))


def set_threads(count: int) -> None:
    """Let torch work with ``count`` threads."""
    torch.set_num_threads(count)


def contenders(group: Group) -> dict[str, Make]:
    """Functions that make what is timed, by name."""
    data = _Data(group)
    width = group.shape[-1]
    residual = group.passes == "residual"
    found: dict[str, Make] = {}
    for op in _EPS:
        ours = _ours_residual(op) if residual else _ours(op)
        plain = _plain_residual(op, width) if residual else _plain(op, width)
        make = partial(_call, data=data, op=op, passes=group.passes)
        found[f"normkit {op}"] = partial(make, ours)
        found[f"torch {op}"] = partial(make, plain)
        found[f"torch.compile {op}"] = partial(_call_compiled, plain, make)
        found[f"normkit.compile {op}"] = partial(_call_compiled, ours, make)
    x, live = data.x.detach(), torch.empty_like(data.x, requires_grad=False)
    found["clone"] = lambda: lambda: x.clone()
    found["copy_"] = lambda: lambda: live.copy_(x)
    return found


def kernel_runs(name: str, group: Group) -> None:
    """Run the forward pass with a named kernel; ValueError where it cannot serve."""
    data = _Data(group._replace(passes="forward"))
    normkit.torch.rms_norm(data.x, data.weight, kernel=name)


def saved_bytes(function: Callable[[], object]) -> int:
    """Bytes that autograd keeps for the backward pass in a call, without the parameters'.

    Each storage counts once, however many tensors look at it.
    """
    storages: dict[int, tuple[Any, int]] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        is_parameter = tensor.is_leaf and tensor.requires_grad and tensor.ndim == 1
        if not is_parameter:
            storages[storage.data_ptr()] = (storage, storage.nbytes())  # kept, so not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(size for _, size in storages.values())
