"""How `normkit.identify` calls torch modules and functions."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normkit._identify._host import BIAS_NAMES, SCALE_NAMES, first_result

Array = Any


class TorchHost:
    """Tensors on ``device``, without gradients or autocast."""

    name = "torch"

    def __init__(self, device: Any = "cpu") -> None:
        self.device = device

    def is_module(self, thing: Any) -> bool:
        """Whether it is a torch.nn.Module."""
        return isinstance(thing, nn.Module)

    def subject(self, module: nn.Module, width: int | None) -> "TorchModule":
        """A copy of the module."""
        return TorchModule(module, width)

    def array(self, values: Array) -> Tensor:
        """A NumPy array as a tensor, with its bits."""
        values = np.array(values, order="C")  # torch takes neither read-only nor reversed ones
        if values.dtype.name == "bfloat16":
            tensor = torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(values)
        return tensor.to(self.device)

    def numpy(self, result: Any) -> Array:
        """A tensor as a NumPy array, with its bits."""
        import ml_dtypes

        if not isinstance(result, Tensor):
            raise TypeError(f"the result is {type(result).__name__}, not a tensor")
        result = result.detach().cpu()
        if result.dtype == torch.bfloat16:
            bits = result.contiguous().view(torch.int16).numpy()
            return np.asarray(bits).view(ml_dtypes.bfloat16)
        return np.asarray(result.numpy())

    def scope(self) -> AbstractContextManager[Any]:
        """No gradients, no autocast."""
        stack = ExitStack()
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        return stack


HOST = TorchHost()


class TorchModule:
    """A copy of a module in evaluation, whose parameters are set for each call."""

    framework = "torch"
    optional = False

    def __init__(self, module: nn.Module, width: int | None) -> None:
        self.module = copy.deepcopy(module).eval()
        self.width = width or width_of(module)
        self.places = list(_places(self.module, self.width))
        self.roles: Mapping[str, str] = {name: role for name, _, _, role, _ in self.places}
        devices = [p.device for p in module.parameters() if p.device.type != "meta"]
        self.host = TorchHost(devices[0] if devices else "cpu")

    def __call__(self, inputs: Sequence[Array], scale: Array | None, bias: Array | None) -> Array:
        """The module's result with these parameters."""
        given = {"scale": scale, "bias": bias}
        for _, owner, leaf, role, shape in self.places:
            value = given[role]
            if value is not None:
                tensor = self.host.array(value).reshape(shape)
                _replace(owner, leaf, tensor)
        with self.host.scope():
            return first_result(self.host, self.module(*[self.host.array(x) for x in inputs]))


def width_of(module: nn.Module) -> int | None:
    """The commonest number of elements of the module's parameters with one long axis."""
    sizes = Counter(
        tensor.numel() for _, tensor in _tensors(module) if tensor.numel() == max(tensor.shape)
    )
    return sizes.most_common(1)[0][0] if sizes else None


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, and buffers with a parameter's name, that have an axis."""
    for name, parameter in module.named_parameters():
        if parameter.ndim:
            yield name, parameter
    for name, buffer in module.named_buffers():
        if buffer.ndim and name.rpartition(".")[2] in (*SCALE_NAMES, *BIAS_NAMES):
            yield name, buffer


def _places(module: nn.Module, width: int | None) -> Iterator[tuple[str, nn.Module, str, str, Any]]:
    """Name, owner, leaf, role and shape of each parameter of ``width`` elements."""
    for name, tensor in list(_tensors(module)):
        owner_name, _, leaf = name.rpartition(".")
        if tensor.numel() == width == max(tensor.shape):
            role = "bias" if leaf in BIAS_NAMES else "scale"
            yield name, module.get_submodule(owner_name), leaf, role, tensor.shape


def _replace(owner: nn.Module, leaf: str, tensor: Tensor) -> None:
    if leaf in owner._parameters:
        setattr(owner, leaf, nn.Parameter(tensor, requires_grad=False))
    else:
        setattr(owner, leaf, tensor)
