"""PyTorch's operations, and the same without roundings, which derivatives are taken of."""

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


class SmoothArithmetic(TorchArithmetic):
    """Without the roundings of a convention: PyTorch would round a gradient at each of them."""

    def round_to(self, y: Any, name: str) -> Any:
        """``y``, not rounded."""
        return y

    def number_in(self, number: float, name: str) -> float:
        """``number``, not rounded."""
        return number


ARITHMETIC = TorchArithmetic()
SMOOTH = SmoothArithmetic()
