"""A small GPT in torch, with whichever norm it is given: `gpt_flax.py` is the same in Flax."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Size(NamedTuple):
    """How large a GPT is, and how long the texts that it reads."""

    vocabulary: int
    context: int = 64
    width: int = 64
    heads: int = 4
    blocks: int = 2


class Block(nn.Module):
    """Attention and MLP, each on a normalised copy of the stream that they add to."""

    def __init__(self, size: Size, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.heads = size.heads
        self.ln_1 = norm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.ln_2 = norm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (batch, time, width)."""
        batch, time, width = x.shape
        qkv = self.qkv(self.ln_1(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Token ids of shape (batch, time) to logits of shape (batch, time, vocabulary)."""

    def __init__(self, size: Size, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.wte = nn.Embedding(size.vocabulary, size.width)
        self.wpe = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList([Block(size, norm) for _ in range(size.blocks)])
        self.ln_f = norm(size.width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits; the last layer shares the embedding's weights."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class Trainer:
    """One step of Adam a call."""

    def __init__(self, model: GPT, learning_rate: float) -> None:
        self.model = model
        self.optimiser = torch.optim.Adam(model.parameters(), learning_rate)

    def __call__(self, tokens: Tensor, targets: Tensor) -> float:
        """The loss before the step."""
        self.optimiser.zero_grad()
        loss = functional.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        self.optimiser.step()
        return loss.item()
