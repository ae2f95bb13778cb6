"""A torch state dict into an NNX model that has the same paths: norms, Linear and Embed."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import normkit.flax
from flax import nnx


def load(model: nnx.Module, state: Mapping[str, Any]) -> None:
    """Set every parameter; torch's linear layers keep their weight the other way round."""
    normkit.flax.load_torch_norms(model, state)
    for steps, module in nnx.iter_modules(model):
        path = ".".join(map(str, steps))
        if isinstance(module, nnx.Linear):
            module.kernel = nnx.Param(array(state[f"{path}.weight"]).T)
            if module.bias is not None:
                module.bias = nnx.Param(array(state[f"{path}.bias"]))
        elif isinstance(module, nnx.Embed):
            module.embedding = nnx.Param(array(state[f"{path}.weight"]))


def array(tensor: Any) -> Any:
    """A copy of a torch tensor in JAX, bfloat16 too."""
    return jnp.array(jnp.from_dlpack(tensor.detach().contiguous()), copy=True)
