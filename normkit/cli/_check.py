"""`normkit check`: every backend against the exact oracle and against NumPy, bit for bit."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from normkit.cli.backends import Backend
from normkit.testing import (
    MAX_ULP,
    MAX_ULP_FLOAT64,
    Case,
    Exact,
    bits_differ,
    contract_floor,
    exact_layer_norm,
    exact_rms_norm,
    hard_inputs,
    real_activations,
    ulp,
    worked_example,
    worst_ulp,
)

DTYPES = ("float32", "bfloat16", "float16", "float64")

# On an accelerator the promise is wider: its kernels may work in float32.
MAX_ULP_ACCELERATOR = {"float32": 1.0, "bfloat16": 0.51, "float16": 0.51, "float64": 4.0}

_ORACLES: dict[str, Callable[..., Exact]] = {
    "rms_norm": exact_rms_norm,
    "layer_norm": exact_layer_norm,
}


class Row(NamedTuple):
    """One line of the report: a backend and a dtype.

    ULPs are those of each element, for float64 those of the row's largest element.
    ``bits_differ`` counts elements whose bits differ from the NumPy result's; 0 is promised on
    the CPU for all dtypes but float64.
    """

    framework: str
    device: str
    dtype: str
    worst_ulp_real: float
    worst_ulp_hard: float
    worst_case: str
    bits_differ: int
    elements: int
    limit_ulp: float
    ok: bool


class _Expected(NamedTuple):
    case: Case
    exact: Exact
    floor: Any
    reference: Any
    real: bool


def check_backends(backends: list[Backend], dtypes: tuple[str, ...] = DTYPES) -> Iterator[Row]:
    """One `Row` for each dtype and backend, as each is done."""
    reference = next(b for b in backends if b.framework == "numpy")
    for dtype in dtypes:
        expected = [_expect(case, reference, real) for case, real in _cases(dtype)]
        for backend in backends:
            yield _check(backend, dtype, expected)


def _cases(dtype: str) -> Iterator[tuple[Case, bool]]:
    for case in (*worked_example(dtype).values(), *real_activations(dtype)):
        yield case, True
    for op in _ORACLES:
        for case in hard_inputs(op, dtype):
            yield case, False


def _run(backend: Backend, case: Case) -> Any:
    return backend.run(case.op, case.x, case.scale, case.bias, eps=case.eps)


def _expect(case: Case, reference: Backend, real: bool) -> _Expected:
    exact = _ORACLES[case.op](case.x, case.scale, case.bias, eps=case.eps)
    floor = contract_floor(case.x, exact, case.scale, case.bias)
    return _Expected(case, exact, floor, _run(reference, case), real)


def _check(backend: Backend, dtype: str, expected: list[_Expected]) -> Row:
    worst = {True: 0.0, False: 0.0}
    worst_case, differing, elements = "", 0, 0
    for case, exact, floor, reference, real in expected:
        result = _run(backend, case)
        if dtype == "float64":
            error = _ulp_of_largest(result, exact)
        else:
            # the real activations are held to the bare ULP; the floor is for built-in cancellation
            error = worst_ulp(result, exact, 0.0 if real else floor)
        if error > max(worst.values()):
            worst_case = f"{case.op}, {case.name}"
        worst[real] = max(worst[real], error)
        differing += bits_differ(result, reference)
        elements += result.size
    on_cpu = backend.device == "cpu"
    limit = MAX_ULP_ACCELERATOR[dtype]
    if on_cpu:
        limit = MAX_ULP_FLOAT64 if dtype == "float64" else MAX_ULP
    same_bits = differing == 0 or dtype == "float64" or not on_cpu
    ok = max(worst.values()) <= limit and same_bits
    return Row(
        backend.framework,
        backend.device,
        dtype,
        worst[True],
        worst[False],
        worst_case,
        differing,
        elements,
        limit,
        ok,
    )


def _ulp_of_largest(result: Any, exact: Exact) -> float:
    """The worst error in ULPs of the largest element of its row; NaN and infinity must be right."""
    if not np.isfinite(result).all() or not np.isfinite(exact.values).all():
        return worst_ulp(result, exact, MAX_ULP_FLOAT64 * ulp(_largest(exact), "float64"))
    if result.size == 0:
        return 0.0
    return float(np.max(exact.error(result) / ulp(_largest(exact), "float64")))


def _largest(exact: Exact) -> Any:
    values = np.where(np.isfinite(exact.values), np.abs(exact.values), 0.0)
    return np.max(values, axis=-1, keepdims=True)
