"""The oracle by the name of the op, computed once for each case of a test run."""

import functools
from typing import Any

import numpy as np

from normkit.testing import (
    Case,
    Exact,
    contract_floor,
    exact_layer_norm,
    exact_layer_norm_vjp,
    exact_rms_norm,
    exact_rms_norm_vjp,
    hard_inputs,
    long_rows,
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


@functools.cache
def long_cases(op: str, dtype: str) -> list[tuple[Case, Any, Exact, Any]]:
    """(case, at, exact result at these elements, their floor) of every row of up to 10^6 elements.

    Equal elements of a row have equal results, so ``at`` names one of each value, in ascending
    order. Of float64, where nearly all differ, 500 and the ends of the range. A row in another
    order has the same exact result, which is computed once.
    """
    known: dict[bytes, tuple[Exact, Any]] = {}
    found = []
    for case in long_rows(op, dtype):
        values, at = np.unique(case.x[0].astype(np.float64), return_index=True)
        if dtype == "float64":
            values, at = (a[np.linspace(0, a.size - 1, 500).astype(int)] for a in (values, at))
        key = np.sort(case.x[0]).tobytes()
        if key not in known:
            exact = EXACT[op](case.x, eps=case.eps, at=at)
            known[key] = exact, contract_floor(case.x[:, at], exact)
        found.append((case, at, *known[key]))
    return found


def _with_oracle(case: Case) -> tuple[Case, Exact, Any]:
    exact = EXACT[case.op](case.x, case.scale, case.bias, eps=case.eps)
    return case, exact, contract_floor(case.x, exact, case.scale, case.bias)


def gradient_floors(case: Case, dy: Any) -> tuple[Any, Any, Any]:
    """Absolute errors of (dx, dscale, dbias) that do not count: 2^-42 of what each sum adds up.

    dx is the small difference of r g, r mean(g) and r h mean(g h) where dy resembles y; dscale and
    dbias sum over the rows. 2^-53 of a float64 sum, with 11 bits for its length and its factors.
    """
    x, g = case.x.astype(np.float64), np.abs(dy.astype(np.float64))
    total = g.sum(axis=0)
    size = np.maximum(np.abs(x).max(axis=-1, keepdims=True), case.eps**0.5)
    size = np.where(size > 0, size, 1.0)  # x / size neither overflows nor vanishes when squared
    d = x / size
    if case.op == "layer_norm":
        d = d - d.mean(axis=-1, keepdims=True)
    v = (d * d).mean(axis=-1, keepdims=True) + (case.eps**0.5 / size) ** 2
    r = np.where(v > 0, 1 / np.sqrt(np.where(v > 0, v, 1)), 0)
    h = np.abs(d) * r
    g = g if case.scale is None else g * np.abs(case.scale.astype(np.float64))
    row = g + g.mean(axis=-1, keepdims=True) + h * (g * h).mean(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        dx = r / size * row
    if case.x.dtype == np.float64:
        dx = dx + 2.0 ** (42 - 1022)  # XLA counts float64's subnormal numbers as 0
    return 2.0**-42 * dx, 2.0**-42 * total * h.max(), 2.0**-42 * total
