"""For tests: an exact oracle, distances in ULPs, the accuracy contract, and hard inputs.

>>> import numpy as np, normkit
>>> from normkit.testing import assert_ulp, exact_rms_norm
>>> x = np.linspace(-3, 5, 1000, dtype=np.float32)
>>> assert_ulp(normkit.rms_norm(x), exact_rms_norm(x))
"""

from normkit.testing._assertions import MAX_ULP as MAX_ULP
from normkit.testing._assertions import MAX_ULP_FLOAT64 as MAX_ULP_FLOAT64
from normkit.testing._assertions import assert_same_bits as assert_same_bits
from normkit.testing._assertions import assert_ulp as assert_ulp
from normkit.testing._assertions import contract_floor as contract_floor
from normkit.testing._assertions import worst_ulp as worst_ulp
from normkit.testing._exact import Exact as Exact
from normkit.testing._formats import FORMATS as FORMATS
from normkit.testing._formats import Format as Format
from normkit.testing._formats import bits_differ as bits_differ
from normkit.testing._formats import dtype_of as dtype_of
from normkit.testing._formats import ulp as ulp
from normkit.testing._formats import ulp_distance as ulp_distance
from normkit.testing._inputs import SHAPES as SHAPES
from normkit.testing._inputs import Case as Case
from normkit.testing._inputs import hard_inputs as hard_inputs
from normkit.testing._inputs import long_rows as long_rows
from normkit.testing._inputs import real_activations as real_activations
from normkit.testing._inputs import worked_example as worked_example
from normkit.testing._oracle import exact_layer_norm as exact_layer_norm
from normkit.testing._oracle import exact_layer_norm_vjp as exact_layer_norm_vjp
from normkit.testing._oracle import exact_rms_norm as exact_rms_norm
from normkit.testing._oracle import exact_rms_norm_vjp as exact_rms_norm_vjp

__all__ = [
    "FORMATS",
    "MAX_ULP",
    "MAX_ULP_FLOAT64",
    "SHAPES",
    "Case",
    "Exact",
    "Format",
    "assert_same_bits",
    "assert_ulp",
    "bits_differ",
    "contract_floor",
    "dtype_of",
    "exact_layer_norm",
    "exact_layer_norm_vjp",
    "exact_rms_norm",
    "exact_rms_norm_vjp",
    "hard_inputs",
    "long_rows",
    "real_activations",
    "ulp",
    "ulp_distance",
    "worked_example",
    "worst_ulp",
]
