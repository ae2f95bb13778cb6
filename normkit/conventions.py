"""Conventions: whose roundings a norm follows, as data.

`RMS_NORM`, `LAYER_NORM` and `GATED_RMS_NORM` map names to a `Convention`; every function and module
takes either as ``convention``. `PRESETS` says beside each where it comes from and what it was compared with. A
convention of your own is made from scratch, or from a preset by `dataclasses.replace`.

>>> from normkit.conventions import LAYER_NORM, RMS_NORM
>>> RMS_NORM["llama"].between, RMS_NORM["torch"].eps, LAYER_NORM["keras"].eps
('x', 'machine', 0.001)
"""

from normkit._convention import Convention
from normkit._presets import GATED_RMS_NORM, LAYER_NORM, PRESETS, RMS_NORM, Preset

__all__ = ["GATED_RMS_NORM", "LAYER_NORM", "PRESETS", "RMS_NORM", "Convention", "Preset"]
