"""A norm that autograd differentiates, in as few steps as it takes.

The operator does the same for a compiler and for whoever looks at operators, and takes 100 us and
more on the way to the kernel and back.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normkit._kernel import Kernel
from normkit._norm import Call, Norm

from ._library import gradients


class Differentiable(torch.autograd.Function):
    """``run(x, weight, bias)`` and, backward, the vjp of ``kernel``; only the inputs are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        run: Callable[..., Tensor],
        norm: Norm,
        call: Call,
        kernel: Kernel,
    ) -> Tensor:
        """The norm."""
        ctx.save_for_backward(x, weight, bias)
        ctx.of = norm, call, kernel
        return run(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias."""
        (norm, call, kernel), (x, weight, bias) = ctx.of, ctx.saved_tensors
        return (*gradients(norm, dy, x, weight, bias, call, kernel), None, None, None, None)
