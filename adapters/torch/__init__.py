"""RMSNorm and LayerNorm for PyTorch: functions with ``weight`` and ``bias``, and drop-in modules.

To a compiler, a tracer or a mode a call is one operator, `torch.ops.normkit.*`; else the kernel runs
at once, in an autograd function where gradients are asked for. The bits are the same. A call is
differentiable to any order. Inside torch.func transforms, forward-mode differentiation,
torch.export and for tensor subclasses the core's formula runs instead, as ordinary operations.
"""

from normkit import _checks

_checks.require("torch", extra="torch")

from ._census import Census as Census
from ._census import CensusRow as CensusRow
from ._census import census as census
from ._fold import FoldReport as FoldReport
from ._fold import fold_centering as fold_centering
from ._fold import fold_scale as fold_scale
from ._functional import add_layer_norm as add_layer_norm
from ._functional import add_rms_norm as add_rms_norm
from ._functional import layer_norm as layer_norm
from ._functional import layer_norm_vjp as layer_norm_vjp
from ._functional import rms_norm as rms_norm
from ._functional import rms_norm_vjp as rms_norm_vjp
from ._gated import gated_rms_norm as gated_rms_norm
from ._gated import gated_rms_norm_vjp as gated_rms_norm_vjp
from ._module import LayerNorm as LayerNorm
from ._module import RMSNorm as RMSNorm
from ._replace import replace_norms as replace_norms
from ._report import NormReport as NormReport
from ._report import NormRow as NormRow
from ._sample import OutputChange as OutputChange
from ._verify import Comparison as Comparison
from ._verify import Departure as Departure

__all__ = [
    "Census",
    "CensusRow",
    "Comparison",
    "Departure",
    "FoldReport",
    "LayerNorm",
    "NormReport",
    "NormRow",
    "OutputChange",
    "RMSNorm",
    "add_layer_norm",
    "add_rms_norm",
    "census",
    "fold_centering",
    "fold_scale",
    "gated_rms_norm",
    "gated_rms_norm_vjp",
    "layer_norm",
    "layer_norm_vjp",
    "replace_norms",
    "rms_norm",
    "rms_norm_vjp",
]
