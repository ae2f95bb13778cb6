"""RMSNorm and LayerNorm that give the same numbers in every framework.

The functions here take arrays of any array API framework. `normkit.numpy`, `normkit.torch`,
`normkit.jax` and `normkit.flax` speak their host's language; `normkit.testing` holds the oracle.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from normkit import conventions as conventions
from normkit._convention import Convention as Convention
from normkit._gated import gated_rms_norm as gated_rms_norm
from normkit._gated import gated_rms_norm_vjp as gated_rms_norm_vjp
from normkit._layer_norm import layer_norm as layer_norm
from normkit._layer_norm import layer_norm_vjp as layer_norm_vjp
from normkit._residual import add_layer_norm as add_layer_norm
from normkit._residual import add_rms_norm as add_rms_norm
from normkit._rms_norm import rms_norm as rms_norm
from normkit._rms_norm import rms_norm_vjp as rms_norm_vjp
from normkit._scale import ConvertedScale as ConvertedScale
from normkit._scale import convert_scale as convert_scale
from normkit._scale import rename_state as rename_state

if TYPE_CHECKING:
    from normkit._identify import Identification as Identification
    from normkit._identify import identify as identify

__version__ = version("normkit")
__all__ = [
    "Convention",
    "ConvertedScale",
    "Identification",
    "add_layer_norm",
    "add_rms_norm",
    "conventions",
    "convert_scale",
    "gated_rms_norm",
    "gated_rms_norm_vjp",
    "identify",
    "layer_norm",
    "layer_norm_vjp",
    "rename_state",
    "rms_norm",
    "rms_norm_vjp",
]


def __getattr__(name: str) -> Any:
    """What identifies norms is loaded when it is asked for: those who train do not need it."""
    if name in ("Identification", "identify"):
        from normkit import _identify

        return getattr(_identify, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
