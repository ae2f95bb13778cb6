"""RMSNorm and LayerNorm as Flax NNX modules; `normkit.flax.linen` holds the Linen twins."""

from normkit import _checks

_checks.require("flax", extra="flax")

from ._nnx import LayerNorm as LayerNorm
from ._nnx import RMSNorm as RMSNorm
from ._port import load_torch_norms as load_torch_norms
from ._port import torch_norms as torch_norms

__all__ = ["LayerNorm", "RMSNorm", "load_torch_norms", "torch_norms"]
