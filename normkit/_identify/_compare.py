"""Whether two outputs for one probe differ beyond the noise that a float32 sum leaves."""

from typing import Any, NamedTuple

from ._probes import Probe

Array = Any

# Float32 noise: the order of a sum moves an output by at most this many ULPs of the row's largest
# element (3 were measured on torch, 6 on XLA); an output of a half dtype only by flipping a
# rounding, which it does in less than 1 % of all elements.
_NOISE_ULP = 8.0
_HALF_ULP = 1.5
_SHARE = 0.01
# A half result that is off by less than this part of the row's largest is a 0 that came out 1e-9.
_NEGLIGIBLE = 2.0**-16
# No flipped rounding, of bfloat16 even, moves an element by this part of the row's largest.
_WRONG = 2.0**-6
# Relative errors below which an output counts as right to float64 or to float32.
_FLOAT64, _FLOAT32 = 2.0**-45, 2.0**-19

CRITERION = (
    "float32 outputs within 8 ULP of the row's largest element, half outputs within 1 % flipped "
    "roundings, none off by more than 2^-6 of it, equal dtypes, infinities and NaN in the same places"
)


class Departure(NamedTuple):
    """How two outputs differ: "dtype", "special", "share" or, for last bits only, "bits"."""

    how: str
    at: tuple[int, int] | None

    @property
    def clear(self) -> bool:
        """Whether the difference exceeds float32 noise."""
        return self.how != "bits"


def departure(probe: Probe, theirs: Array, ours: Array, eps: float) -> Departure | None:
    """The first way in which the outputs differ, or None."""
    import numpy as np

    if theirs.dtype != ours.dtype:
        return Departure("dtype", None)
    a, b = theirs.astype(np.float64), ours.astype(np.float64)
    if probe.judge != "values":
        judge = _JUDGES[probe.judge]
        same = judge(probe, a, eps) == judge(probe, b, eps)
        return None if same else Departure("special", _largest_difference(a, b))
    special = (np.isnan(a) != np.isnan(b)) | (np.isinf(a) != np.isinf(b))
    if special.mean() > _SHARE:
        return Departure("special", _first(special))
    far = _beyond_noise(a, b, theirs.dtype.name)
    if far.mean() > _SHARE:
        return Departure("share", _first(far))
    wrong = _difference(a, b) > _WRONG
    if wrong.any():
        return Departure("share", _first(wrong))
    differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
    if probe.exact and differ.any():
        return Departure("bits", _first(differ))
    return None


def _difference(a: Array, b: Array) -> Array:
    """Differences as parts of the row's largest element, 0 where one is not finite."""
    import numpy as np

    finite = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    largest = np.maximum(np.abs(a), np.abs(b)).max(-1, keepdims=True)
    return np.abs(a - b) / np.where(largest > 0, largest, 1.0)


def _beyond_noise(a: Array, b: Array, dtype: str) -> Array:
    import numpy as np

    from normkit.testing import ulp

    finite = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    largest = np.maximum(np.abs(a), np.abs(b)).max(-1, keepdims=True)
    largest = np.maximum(largest, 1e-300)
    difference = np.abs(a - b)
    if dtype in ("float16", "bfloat16"):
        far = difference / ulp(largest, dtype) > _HALF_ULP
        if far.mean() > _SHARE:
            return far
        return difference > _NEGLIGIBLE * largest
    # float64 norms with float32 statistics leave float32 noise
    return difference / ulp(largest, "float32") > _NOISE_ULP


def _first(where: Array) -> tuple[int, int]:
    import numpy as np

    row, feature = np.argwhere(where)[0]
    return int(row), int(feature)


def _largest_difference(a: Array, b: Array) -> tuple[int, int]:
    import numpy as np

    difference = np.abs(np.nan_to_num(a, nan=0, posinf=1e300, neginf=-1e300) - np.nan_to_num(b))
    row, feature = np.unravel_index(int(difference.argmax()), difference.shape)
    return int(row), int(feature)


def _survives(probe: Probe, y: Array, eps: float) -> bool:
    """A norm, or zeros, infinities and NaN."""
    import numpy as np

    return bool((np.isfinite(y) & (np.abs(y) > 0.01)).mean() > 0.5)


def _is_right(probe: Probe, y: Array, eps: float) -> bool:
    return closeness(probe, y, eps) < 0.1


def _has_nan(probe: Probe, y: Array, eps: float) -> bool:
    import numpy as np

    return bool(np.isnan(y).any())


def _accuracy(probe: Probe, y: Array, eps: float) -> str:
    error = closeness(probe, y, eps)
    return "float64" if error < _FLOAT64 else "float32" if error < _FLOAT32 else "other"


_JUDGES = {"survives": _survives, "right": _is_right, "nan": _has_nan, "accuracy": _accuracy}


def closeness(probe: Probe, y: Array, eps: float) -> float:
    """Largest relative error of ``y`` as an RMSNorm or LayerNorm, with s or 1 + s, of the closest."""
    import numpy as np

    x = probe.x.astype(np.float64)
    s = 1.0 if probe.scale is None else probe.scale.astype(np.float64)
    b = 0.0 if probe.bias is None else probe.bias.astype(np.float64)
    found = []
    for d in (x, x - x.mean(-1, keepdims=True)):
        ms = (d * d).mean(-1, keepdims=True) + eps
        h = d / np.sqrt(np.where(ms > 0, ms, 1.0))
        for t in (h * s + b, h * (s + 1) + b):
            largest = np.abs(t).max()
            if largest > 0:
                found.append(float(np.nan_to_num(np.abs(y - t), nan=9.0).max() / largest))
    return min(found)
