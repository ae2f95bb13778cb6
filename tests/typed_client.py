"""A user's program; CI checks its types against the installed wheel."""

from dataclasses import replace

import jax.numpy as jnp
import normkit.flax
import normkit.flax.linen
import normkit.jax
import normkit.numpy
import normkit.torch
import numpy as np
import torch
from flax import nnx

from normkit import Convention
from normkit.conventions import RMS_NORM
from normkit.testing import Exact, assert_ulp, exact_rms_norm


def run() -> None:
    """Each adapter once, with the types that a reader expects."""
    x = np.ones((2, 4), np.float32)
    exact: Exact = exact_rms_norm(x)
    assert_ulp(normkit.numpy.rms_norm(x, eps=1e-6), exact)
    layer: torch.nn.RMSNorm = normkit.torch.RMSNorm(4, bias=True)
    y: torch.Tensor = normkit.torch.layer_norm(layer(torch.ones(2, 4)), layer.weight)
    del y
    own: Convention = replace(RMS_NORM["llama"], groups=2)
    normkit.jax.add_rms_norm(jnp.ones(4), jnp.ones(4), convention=own)
    normkit.flax.RMSNorm(4, rngs=nnx.Rngs(0))
    normkit.flax.linen.LayerNorm(use_bias=False)
