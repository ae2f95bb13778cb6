"""Crafted inputs on which two conventions differ in one field at least.

Two things keep the noise of a float32 sum out. Rows of small integers add up exactly in every
order, and orders of multiplication are told apart by overflow, not by last bits.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

Array = Any

BF16, F16, F32, F64 = "bfloat16", "float16", "float32", "float64"
# The two of one range, and what a probe's name says of them.
_FLOAT32_AND_BFLOAT16 = ((F32, ""), (BF16, ", bfloat16"))
# Rows of a probe. More of a wide one would only cost time; fewer than 8 hide a rare rounding.
_ROWS, _ELEMENTS = 32, 2**15


@dataclass(frozen=True, eq=False)
class Probe:
    """One input.

    Attributes:
        name: Short, and unique.
        separates: What it tells apart.
        x: (rows, n), rows even.
        scale, bias: (n,) or None.
        exact: Every sum in it is exact in float32, so that last bits count too.
        judge: "values" compares elements within float32 noise, "survives" asks whether a norm
            comes out at all, "right" whether it is within a tenth of the formula, "nan" whether
            there is a NaN, "accuracy" to how many digits it is right.
    """

    name: str
    separates: str
    x: Array
    scale: Array | None
    bias: Array | None
    exact: bool = False
    judge: str = "values"

    @property
    def dtypes(self) -> set[str]:
        """Names of the dtypes of its arrays."""
        arrays = (self.x, self.scale, self.bias)
        return {a.dtype.name for a in arrays if a is not None}


def cast(values: Array | None, dtype: str) -> Array | None:
    """``values`` rounded once to the dtype of that name."""
    import ml_dtypes
    import numpy as np

    if values is None:
        return None
    target = ml_dtypes.bfloat16 if dtype == BF16 else dtype
    with np.errstate(all="ignore"):
        return np.asarray(values, np.float64).astype(target)


def row_count(n: int) -> int:
    """Rows of a probe of width ``n``."""
    return max(8, min(_ROWS, _ELEMENTS // n // 2 * 2))


@functools.lru_cache(maxsize=8)
def probes(n: int, eps: float, eps_place: str) -> tuple[Probe, ...]:
    """All probes of width ``n`` for a norm with this eps."""
    rows = _Rows(n)
    made = [
        *_dtype_probes(rows),
        *_scale_probes(rows),
        *_eps_probes(rows, eps),
        *_order_probes(rows),
        *_statistics_probes(rows),
        *_random_probes(n),
    ]
    return tuple(made)


class _Rows:
    """The rows and parameters that probes are made of, in float64."""

    def __init__(self, n: int) -> None:
        import numpy as np

        rng = np.random.default_rng(5)
        features = np.arange(n)
        self.n = n
        # Small integers of mean 0: exact sums for both norms, while the root is not exact.
        whole = rng.integers(-9, 10, (row_count(n), n)).astype(float)
        for row in whole:
            _make_mean_zero(row)
        self.whole = whole
        self.grainy = whole + rng.integers(-60, 60, whole.shape) / 2**12  # in no half dtype
        self.odd = 1 + rng.integers(-60, 60, n) / 128  # exact in bfloat16
        self.fine = self.odd + rng.integers(-60, 60, n) / 2**14  # exact in float32 only
        self.shift = rng.integers(-60, 60, n) / 256
        self.fine_shift = self.shift + rng.integers(-60, 60, n) / 2**15
        self.signs = np.where(features % 2, 1.0, -1.0)  # mean 0, mean square 1
        if n % 2:
            self.signs[-1] = 0.0
        self.first_half = features < n // 2
        steps = rng.integers(0, 2, (2 * row_count(n), n)) * 2.0**-13
        self.nearly_constant = 1000.1 + 37 * np.arange(len(steps))[:, None] + steps


def _make_mean_zero(row: Array) -> None:
    """Change small integers so that they add up to 0 and stay small."""
    total, at = int(row.sum()), 0
    while total:
        step = max(-9 - row[at], min(9 - row[at], -total))
        row[at] += step
        total += int(step)
        at += 1


def _probe(
    name: str,
    separates: str,
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    dtypes: tuple[str, str] = (F32, F32),
    exact: bool = False,
    judge: str = "values",
) -> Probe:
    import numpy as np

    x = np.atleast_2d(x)
    if len(x) % 2:  # a module may want two batch axes
        x = np.concatenate([x, x])
    x_dtype, dtype = dtypes
    return Probe(
        name,
        separates,
        cast(x, x_dtype),
        cast(scale, dtype),
        cast(bias, dtype),
        exact,
        judge,
    )


def _dtype_probes(rows: _Rows) -> list[Probe]:
    casts = "output dtype; casts; cast before the scale; statistics dtype; offset"
    made = [
        _probe(
            f"mixed {x} {s}",
            casts,
            rows.whole,
            rows.fine if s == F32 else rows.odd,
            dtypes=(x, s),
            exact=True,
        )
        for x, s in itertools.product((F32, BF16, F16), repeat=2)
    ]
    made += [
        _probe(
            f"fine float32 x, scale {s}",
            "cast of x to the scale's dtype",
            rows.grainy,
            rows.odd,
            dtypes=(F32, s),
        )
        for s in (BF16, F16)
    ]
    unscaled = "cast before the scale, without one"
    made.append(_probe("no scale bfloat16", unscaled, rows.whole, dtypes=(BF16, BF16), exact=True))
    return made


def _scale_probes(rows: _Rows) -> list[Probe]:
    import numpy as np

    small = 2.0**-9 * np.where(np.arange(rows.n) % 2, 1, -1.5)
    return [
        _probe("zero scale", "offset (0 gives 0)", rows.whole, np.zeros(rows.n)),
        _probe(
            "bias bfloat16",
            "bias: before or after a cast",
            rows.whole,
            rows.odd,
            rows.fine_shift,
            (BF16, BF16),
            exact=True,
        ),
        _probe(
            "bias float32 on bfloat16",
            "bias cast",
            rows.whole,
            rows.fine,
            rows.fine_shift,
            (BF16, F32),
            exact=True,
        ),
        _probe(
            "small scale bfloat16",
            "offset added in the scale's dtype or in float32 (1 + 2^-9 is 1 in bfloat16)",
            rows.whole,
            small,
            dtypes=(BF16, BF16),
        ),
    ]


def _eps_probes(rows: _Rows, eps: float) -> list[Probe]:
    made = []
    for dtype, label in _FLOAT32_AND_BFLOAT16:
        put = functools.partial(_probe, dtypes=(dtype, dtype))
        vanishing = "eps: y / x = 1/sqrt(eps) inside, 1/eps outside, sqrt(n)/eps floor"
        made.append(put(f"eps vanishing row{label}", vanishing, rows.signs * 2.0**-40))
        if eps > 0:
            beside = "eps value and place: 1/sqrt(2), 1/2 or 1 of the vanishing row's ratio"
            made.append(put(f"eps beside the row{label}", beside, rows.signs * eps**0.5))
            if eps > 1e-18:  # its square must not vanish in float32
                outside = f"eps beside the row, outside{label}"
                made.append(put(outside, "eps place", rows.signs * eps))
    return made


def _order_probes(rows: _Rows) -> list[Probe]:
    import numpy as np

    full, signs = np.full(rows.n, 1.0), rows.signs
    overflows = [
        _probe(f"order: {name} overflows{label}", separates, x, scale, dtypes=(dtype, dtype))
        for dtype, label in _FLOAT32_AND_BFLOAT16
        for name, separates, x, scale in (
            ("r s", "d (r s) against (d r) s", signs * 2.0**-60, full * 2.0**127),
            ("d s", "(d s) r against (d r) s", signs * 2.0**50, full * 2.0**100),
        )
    ]
    return [
        *overflows,
        _probe(
            "order: scale before the statistics",
            "x s is normalised",
            rows.whole,
            np.where(np.arange(rows.n) < max(1, rows.n // 8), 64.0, 1.0),
        ),
        _probe(
            "affine",
            "x a + (b - mean a): x a overflows",
            2.0**8 + signs,
            full * 2.0**121,
            judge="survives",
        ),
    ]


def _statistics_probes(rows: _Rows) -> list[Probe]:
    import numpy as np

    n, signs = rows.n, rows.signs
    return [
        _probe("constant row", "mean subtraction; LayerNorm gives the bias", np.full(n, 3.0)),
        _probe(
            "huge row",
            "float32 squares overflow to a row of zeros; exact statistics do not",
            rows.whole * 1e20,
            judge="survives",
        ),
        _probe(
            "float16 300",
            "statistics in float16 overflow",
            rows.whole * 100,
            dtypes=(F16, F16),
            judge="survives",
        ),
        _probe(
            "off centre",
            "variance form: E[x^2] - mean^2 loses the variance",
            1e4 + np.arange(n) % 4,
            judge="right",
        ),
        _probe(
            "nearly constant rows",
            "fast variance below 0: NaN unless clamped",
            rows.nearly_constant,
            judge="nan",
        ),
        _probe(
            "partial",
            "features beyond the first p n do not count",
            np.where(rows.first_half, signs, 64 * signs),
        ),
        _probe(
            "groups",
            "a large half leaves the other half alone",
            np.where(rows.first_half, 64 * signs, signs),
        ),
        _probe(
            "float64",
            "float64 rounded to float32 at the outset",
            signs * (1 + 2.0**-30 * np.arange(n)),
            np.ones(n),
            dtypes=(F64, F64),
            judge="accuracy",
        ),
        _probe(
            "off centre bfloat16",
            "variance form and mean in a half dtype",
            rows.whole + 40,
            dtypes=(BF16, BF16),
        ),
        _probe(
            "off centre bfloat16, scale float32",
            "casts of a LayerNorm",
            rows.whole + 7,
            rows.fine,
            rows.shift,
            (BF16, F32),
        ),
    ]


def _random_probes(n: int) -> list[Probe]:
    """Rows of many sizes, for what no crafted row thinks of."""
    import numpy as np

    rng = np.random.default_rng(6)
    shape = (row_count(n), n)
    x = (rng.standard_normal(shape) + 0.3) * np.exp(rng.uniform(-7, 3, (shape[0], 1)))
    scale, bias = 1 + 0.3 * rng.standard_normal(n), 0.2 * rng.standard_normal(n)
    anything = "anything"
    return [
        _probe("random float32", anything, x, scale, bias),
        _probe("random bfloat16", anything, x, scale, bias, (BF16, BF16)),
        _probe("random bfloat16, scale float32", anything, x, scale, bias, (BF16, F32)),
    ]
