"""PyTorch's operations, and the same without roundings, which derivatives are taken of."""

from typing import Any

import array_api_compat.torch as xp

from normkit._arithmetic import Arithmetic


class SmoothArithmetic(Arithmetic):
    """Without the roundings of a convention: PyTorch would round a gradient at each of them."""

    def round_to(self, y: Any, name: str) -> Any:
        """``y``, not rounded."""
        return y

    def number_in(self, number: float, name: str) -> float:
        """``number``, not rounded."""
        return number


ARITHMETIC = Arithmetic(xp)
SMOOTH = SmoothArithmetic(xp)
