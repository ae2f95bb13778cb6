"""RMSNorm and LayerNorm as Flax NNX modules; `normkit.flax.linen` holds the Linen twins."""

from normkit import _checks

_checks.require("flax", extra="flax")

from ._nnx import LayerNorm as LayerNorm
from ._nnx import RMSNorm as RMSNorm

__all__ = ["LayerNorm", "RMSNorm"]
