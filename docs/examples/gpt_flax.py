"""The GPT of `gpt_torch.py` in Flax NNX, with the same paths."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from gpt_torch import Size


class Block(nnx.Module):
    """Attention and MLP, each on a normalised copy of the stream that they add to."""

    def __init__(self, size: Size, norm: Callable[..., nnx.Module], rngs: nnx.Rngs) -> None:
        self.heads = size.heads
        self.ln_1 = norm(size.width, rngs=rngs)
        self.qkv = nnx.Linear(size.width, 3 * size.width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(size.width, size.width, use_bias=False, rngs=rngs)
        self.ln_2 = norm(size.width, rngs=rngs)
        self.up = nnx.Linear(size.width, 4 * size.width, rngs=rngs)
        self.down = nnx.Linear(4 * size.width, size.width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x of shape (batch, time, width)."""
        batch, time, width = x.shape
        qkv = self.qkv(self.ln_1(x)).reshape(batch, time, 3, self.heads, -1)
        q, k, v = jnp.moveaxis(qkv, 2, 0)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.reshape(batch, time, width))
        return x + self.down(nnx.gelu(self.up(self.ln_2(x)), approximate=True))


class GPT(nnx.Module):
    """Token ids of shape (batch, time) to logits of shape (batch, time, vocabulary)."""

    def __init__(self, size: Size, norm: Callable[..., nnx.Module], rngs: nnx.Rngs) -> None:
        self.wte = nnx.Embed(size.vocabulary, size.width, rngs=rngs)
        self.wpe = nnx.Embed(size.context, size.width, rngs=rngs)
        self.blocks = nnx.List([Block(size, norm, rngs) for _ in range(size.blocks)])
        self.ln_f = norm(size.width, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits; the last layer shares the embedding's weights."""
        x = self.wte(tokens) + self.wpe.embedding[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x) @ self.wte.embedding.T


class Trainer:
    """One step of Adam a call."""

    def __init__(self, model: GPT, learning_rate: float) -> None:
        self.model = model
        self.optimiser = nnx.Optimizer(model, optax.adam(learning_rate), wrt=nnx.Param)

    def __call__(self, tokens: jax.Array, targets: jax.Array) -> float:
        """The loss before the step."""
        return float(_step(self.model, self.optimiser, tokens, targets))


@nnx.jit
def _step(
    model: GPT, optimiser: nnx.Optimizer[GPT], tokens: jax.Array, targets: jax.Array
) -> jax.Array:
    def loss(model: GPT) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens), targets)
        return losses.mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimiser.update(model, gradients)
    return value
