"""Which device has float64, in a form that torch.compile can trace."""

from typing import Any

import array_api_compat.torch as xp

from normkit._arithmetic import Arithmetic

_WITHOUT_FLOAT64 = {"mps"}


class TorchArithmetic(Arithmetic):
    """PyTorch keeps IEEE 754; only some devices lack float64."""

    def __init__(self) -> None:
        super().__init__(xp)

    def has_float64(self, x: Any) -> bool:
        """By the type of the device: an inquiry by trial, as in the core, cannot be traced."""
        return x.device.type not in _WITHOUT_FLOAT64


ARITHMETIC = TorchArithmetic()
