"""RMSNorm and LayerNorm on NumPy arrays, bfloat16 by ml_dtypes included: the reference."""

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
