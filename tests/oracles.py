"""The oracle by the name of the op, computed once for each case of a test run."""

import functools
from typing import Any

from normkit.testing import (
    Case,
    Exact,
    contract_floor,
    exact_layer_norm,
    exact_layer_norm_vjp,
    exact_rms_norm,
    exact_rms_norm_vjp,
    hard_inputs,
    real_activations,
)

EXACT = {"rms_norm": exact_rms_norm, "layer_norm": exact_layer_norm}
EXACT_VJP = {"rms_norm": exact_rms_norm_vjp, "layer_norm": exact_layer_norm_vjp}


@functools.cache
def hard_cases(op: str, dtype: str) -> list[tuple[Case, Exact, Any]]:
    """(case, exact result, floor) of every family."""
    return [_with_oracle(case) for case in hard_inputs(op, dtype)]


@functools.cache
def real_cases(dtype: str) -> list[tuple[Case, Exact, Any]]:
    """(case, exact result, floor) of the five recorded layers."""
    return [_with_oracle(case) for case in real_activations(dtype)]


def _with_oracle(case: Case) -> tuple[Case, Exact, Any]:
    exact = EXACT[case.op](case.x, case.scale, case.bias, eps=case.eps)
    return case, exact, contract_floor(case.x, exact, case.scale, case.bias)
