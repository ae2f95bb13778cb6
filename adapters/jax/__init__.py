"""RMSNorm and LayerNorm on JAX arrays, for plain JAX, Equinox and Haiku.

The formulas are the core's, in float64 inside a scope of their own: the user's x64 flag is
neither read nor changed. They are differentiated by JAX, forward and reverse, to any order, and
work under jit, vmap, scan, remat and sharding. Only the inputs are kept for the backward pass.
"""

from normkit import _checks

_checks.require("jax", extra="jax")

from ._functional import add_layer_norm as add_layer_norm
from ._functional import add_rms_norm as add_rms_norm
from ._functional import layer_norm as layer_norm
from ._functional import layer_norm_vjp as layer_norm_vjp
from ._functional import rms_norm as rms_norm
from ._functional import rms_norm_vjp as rms_norm_vjp
from ._gated import gated_rms_norm as gated_rms_norm
from ._gated import gated_rms_norm_vjp as gated_rms_norm_vjp

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "gated_rms_norm",
    "gated_rms_norm_vjp",
    "layer_norm",
    "layer_norm_vjp",
    "rms_norm",
    "rms_norm_vjp",
]
