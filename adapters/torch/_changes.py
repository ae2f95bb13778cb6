"""Changes of a model that can be taken back: what stands in which place."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from normkit import _checks


class Changes:
    """What was done to a model, each step with the way back."""

    def __init__(self) -> None:
        self.untied: list[str] = []
        self._back: list[Callable[[], None]] = []

    def record(self, back: Callable[[], None]) -> None:
        """Note how the last step is taken back."""
        self._back.append(back)

    def undo(self) -> None:
        """Take everything back, last step first; the second time there is nothing to do."""
        while self._back:
            self._back[-1]()
            self._back.pop()

    def put(self, model: nn.Module, old: nn.Module, new: nn.Module) -> None:
        """``new`` in every place of ``old``."""
        for parent, name in list(places(model, old)):
            parent._modules[name] = new
            self.record(lambda p=parent, n=name: self._put_back(p, n, old, new))  # type: ignore[misc]

    def _put_back(self, parent: nn.Module, name: str, old: nn.Module, new: nn.Module) -> None:
        """``old`` with the state that ``new`` has by now."""
        _checks.still_there(name, parent._modules.get(name) is new)
        for key, value in old._parameters.items():
            now = new._parameters.get(key)
            if now is not None:
                old._parameters[key] = now
            elif value is not None and new._parameters:  # dropped: it stayed behind
                like = next((p for p in new._parameters.values() if p is not None), value)
                value.data = value.data.to(like)
        old.training = new.training
        parent._modules[name] = old

    def set_data(self, parameter: Tensor, values: Tensor) -> None:
        """Other numbers in the same parameter."""
        before = parameter.data
        parameter.data = values
        self.record(lambda: setattr(parameter, "data", before))

    def set_parameter(self, owner: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        """Another parameter under that name."""
        before = owner._parameters.get(name)
        owner._parameters[name] = parameter
        self.record(lambda: owner._parameters.__setitem__(name, before))

    def set_attribute(self, owner: object, name: str, value: object) -> None:
        """Another value of an attribute, of a configuration for example."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        self.record(lambda: setattr(owner, name, before))


def places(model: nn.Module, module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Parent and name of every place in which ``module`` stands."""
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is module:
                yield parent, name


def refuse_sharded(model: nn.Module) -> None:
    """FSDP and TorchScript hold on to the modules themselves."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise _checks.cannot_change(name, "a TorchScript module", "before torch.jit")
        if any(base.__name__ == "FullyShardedDataParallel" for base in type(module).__mro__):
            raise _checks.cannot_change(name, "wrapped by FSDP", "before it is wrapped")
        if any(type(p).__name__ == "DTensor" for p in module._parameters.values()):
            raise _checks.cannot_change(
                name, "made of DTensors", "before fully_shard or parallelize_module"
            )
