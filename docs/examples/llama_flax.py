"""Llama's forward pass in Flax NNX, with the paths and the numbers of transformers' LlamaForCausalLM.

``make e2e`` loads SmolLM2-135M into it and compares every norm and the logits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import normkit.flax
from flax import nnx


class Attention(nnx.Module):
    """Heads that share keys and values in groups, turned by their position."""

    def __init__(self, c: Any, rngs: nnx.Rngs) -> None:
        self.head = c.head_dim or c.hidden_size // c.num_attention_heads
        self.theta = c.rope_parameters["rope_theta"]
        queries, keys = c.num_attention_heads * self.head, c.num_key_value_heads * self.head
        self.q_proj = nnx.Linear(c.hidden_size, queries, use_bias=False, rngs=rngs)
        self.k_proj = nnx.Linear(c.hidden_size, keys, use_bias=False, rngs=rngs)
        self.v_proj = nnx.Linear(c.hidden_size, keys, use_bias=False, rngs=rngs)
        self.o_proj = nnx.Linear(queries, c.hidden_size, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x of shape (batch, time, width)."""
        heads = (*x.shape[:2], -1, self.head)
        q, k, v = (p(x).reshape(heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, self.theta), rotate(k, self.theta)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(attended.reshape(*x.shape[:2], -1))


def rotate(x: jax.Array, theta: float) -> jax.Array:
    """Rotary positions: each pair (i, i + half) of a head turns by position / theta^(2i / head)."""
    frequencies = theta ** -(jnp.arange(0, x.shape[-1], 2, dtype=jnp.float32) / x.shape[-1])
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class MLP(nnx.Module):
    """down(silu(gate(x)) up(x)), with silu rounded once, as torch does."""

    def __init__(self, c: Any, rngs: nnx.Rngs) -> None:
        self.gate_proj = nnx.Linear(c.hidden_size, c.intermediate_size, use_bias=False, rngs=rngs)
        self.up_proj = nnx.Linear(c.hidden_size, c.intermediate_size, use_bias=False, rngs=rngs)
        self.down_proj = nnx.Linear(c.intermediate_size, c.hidden_size, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x of shape (batch, time, width)."""
        gate = nnx.silu(self.gate_proj(x).astype(jnp.float32)).astype(x.dtype)
        return self.down_proj(gate * self.up_proj(x))


class Layer(nnx.Module):
    """Attention and MLP, each on a normalised copy of the stream that they add to."""

    def __init__(self, c: Any, rngs: nnx.Rngs) -> None:
        self.input_layernorm = norm(c, rngs)
        self.self_attn = Attention(c, rngs)
        self.post_attention_layernorm = norm(c, rngs)
        self.mlp = MLP(c, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x of shape (batch, time, width)."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nnx.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, c: Any, dtype: Any, rngs: nnx.Rngs) -> None:
        self.embed_tokens = nnx.Embed(c.vocab_size, c.hidden_size, dtype=dtype, rngs=rngs)
        self.layers = nnx.List([Layer(c, rngs) for _ in range(c.num_hidden_layers)])
        self.norm = norm(c, rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Tokens of shape (batch, time) to (batch, time, width)."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nnx.Module):
    """Tokens of shape (batch, time) to logits; ``config`` is transformers' LlamaConfig.

    The stream has ``dtype``; with weights of the same dtype, all else has it, too.
    """

    def __init__(self, config: Any, *, dtype: Any = jnp.float32, rngs: nnx.Rngs) -> None:
        self.model = Model(config, dtype, rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits; the last layer shares the embedding's weights."""
        return self.model(tokens) @ self.model.embed_tokens.embedding.T


def norm(c: Any, rngs: nnx.Rngs) -> normkit.flax.RMSNorm:
    """Llama's norm, which rounds before the scale where x is of a half type."""
    return normkit.flax.RMSNorm(
        c.hidden_size, epsilon=c.rms_norm_eps, convention="llama", rngs=rngs
    )
