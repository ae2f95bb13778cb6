"""What a norm does, read off a few rows: axis, width of the statistics, mean, size, eps."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._forms import Called
from ._host import attempt
from ._probes import cast

Array = Any

# Rows this large leave any usual eps without effect; rows this small leave only eps, and their
# squares are still normal numbers.
_LARGE, _HUGE = 2.0**10, 2.0**40
_TINY = {"float32": 2.0**-60, "float64": 2.0**-200}
# Nothing measured here is nearer to another answer than this.
_NEAR = 0.01
# y / x of a tiny row, beyond which eps is taken for absent: it is then 1 / |x|, or near.
_NO_EPS = {"float32": 2.0**50, "float64": 2.0**190}
_BLOCKS = 64
_FLOAT32_MACHINE, _FLOAT64_MACHINE = 2.0**-23, 2.0**-52


class Finding(NamedTuple):
    """Something that no convention does: the field it concerns, and what was found."""

    field: str
    found: str


class Structure(NamedTuple):
    """What was read off.

    Attributes:
        kind: "rms_norm" or "layer_norm".
        eps: 0 where there is none to be seen.
        eps_place: "inside", "outside", "floor".
        machine: Whether eps is the spacing of numbers at 1, in float64 too.
        partial, groups: As in a convention.
        findings: Why it is no norm of a convention; empty if it may be one.
    """

    kind: str
    eps: float
    eps_place: str
    machine: bool
    partial: float
    groups: int
    findings: tuple[Finding, ...]


def read_structure(f: Called, n: int, float64: bool) -> Structure:
    """Everything about ``f`` that takes no convention to compare with."""
    findings = list(_across_rows(f, n))
    if not findings:
        findings += _not_invariant(f, n)
    seen, groups = _features_seen(f, n)
    if not findings and not seen:
        text = "no feature of a row depends on the others"
        findings.append(Finding("axis", text))
    kind = _kind(f, n)
    if not findings and groups == 1 and seen == n:
        findings += _wrong_size(f, n, kind)
    if findings:
        return Structure(kind, 0.0, "inside", False, 1.0, 1, tuple(findings))
    part = _part(n, kind, seen, groups)
    eps, place = read_eps(f, n, part, "float32")
    eps = _FLOAT32_MACHINE if _is_near(eps, _FLOAT32_MACHINE) else eps
    machine = _is_machine(f, n, part, eps, float64)
    return Structure(kind, eps, place, machine, _share(seen, n), groups, ())


def _values(f: Called, x: Array, dtype: str = "float32") -> Array:
    import numpy as np

    return f(np.asarray(cast(x, dtype))).astype(np.float64)


def _signs(n: int) -> Array:
    """A row of mean 0 and mean square 1, twice."""
    import numpy as np

    row = np.where(np.arange(n) % 2, 1.0, -1.0)
    if n % 2:
        row[-1] = 0.0
    return np.stack([row, row])


def _across_rows(f: Called, n: int) -> Iterator[Finding]:
    """Does one row change the others?"""
    import numpy as np

    x = np.random.default_rng(1).standard_normal((8, n))
    other = x.copy()
    other[0] *= _LARGE
    if np.abs(_values(f, other)[1:] - _values(f, x)[1:]).max() > _NEAR:
        yield Finding("axis", "a row of the batch changes the others: not the last axis alone")


def _features_seen(f: Called, n: int) -> tuple[int, int]:
    """How many leading features the statistics see, and how many groups a row has.

    Each block of features in turn is enlarged; what is seen makes others smaller, those of its
    own group. A first block that is only in part seen is looked at feature by feature.
    """
    import numpy as np

    edges = np.unique(np.linspace(0, n, min(n, _BLOCKS) + 1).astype(int))
    blocks = list(itertools.pairwise(edges))
    touched = _touched(f, n, blocks)
    if not touched[0].any():
        return 0, 1
    unseen = [i for i, t in enumerate(touched) if not t.any()]
    if not unseen:
        # the size of a group: what the first block touches, and itself
        return n, max(1, round(n / (int(touched[0].sum()) + int(blocks[0][1]))))
    first = blocks[unseen[0]][0]
    before = blocks[max(unseen[0] - 1, 0)][0]
    single = _touched(f, n, [(j, j + 1) for j in range(before, first)])
    return int(before + sum(t.any() for t in single)), 1


def _share(seen: int, n: int) -> float:
    """The simplest p with int(p n) = seen."""
    for denominator in range(1, n + 1):
        p = math.ceil(seen * denominator / n) / denominator
        if int(p * n) == seen:
            return p
    return seen / n


def _touched(f: Called, n: int, blocks: list[tuple[int, int]]) -> Array:
    """For each block, which features outside it become smaller when it is enlarged."""
    import numpy as np

    base = _signs(n)[:1]
    y = np.abs(_values(f, np.concatenate([base, base])))[:1]
    x = np.repeat(base, len(blocks) + len(blocks) % 2, 0)
    for i, (start, stop) in enumerate(blocks):
        x[i, start:stop] = 64.0 * math.sqrt(n)
    smaller = (np.abs(_values(f, x)[: len(blocks)]) < 0.9 * y) & (y > 0)
    for i, (start, stop) in enumerate(blocks):
        smaller[i, start:stop] = False
    return smaller


def _not_invariant(f: Called, n: int) -> Iterator[Finding]:
    """Does a row four times as large give the same? At size 1, a large eps may have its share."""
    import numpy as np

    x = np.random.default_rng(2).standard_normal((8, n))
    for size, share in ((1.0, 0.25), (_LARGE, _NEAR)):
        y = _values(f, size * x)
        if not np.abs(_values(f, 4 * size * x) - y).max() <= share * np.abs(y).max():
            yield Finding("statistics", "a row four times as large does not give the same result")
            return


def _kind(f: Called, n: int) -> str:
    """A constant row is 0 after LayerNorm."""
    import numpy as np

    return "layer_norm" if np.abs(_values(f, np.full((2, n), 3.0))).max() < 0.1 else "rms_norm"


def _wrong_size(f: Called, n: int, kind: str) -> Iterator[Finding]:
    """Has the result a mean square of 1?"""
    import numpy as np

    x = _LARGE * (np.random.default_rng(4).standard_normal((2, n)) + 1.0)
    y = _values(f, x)
    size = float((y * y).mean())
    unbiased, total = (n - 1) / n, 1 / n
    if abs(size - unbiased) < _NEAR / n:
        yield Finding("variance", f"unbiased: divided by n - 1 = {n - 1}, not by n")
    elif abs(size - 1) < _NEAR:  # a half dtype inside leaves no more
        return
    elif abs(size / total - 1) < _NEAR:
        text = "'sum': divided by the root of the sum of squares, not of their mean"
        yield Finding("reduction", text)
    else:
        centred = "the mean is subtracted" if kind == "layer_norm" else "no mean is subtracted"
        text = f"{centred}, but mean(y^2) is {size:.6g}, not 1: the statistics are of other values"
        yield Finding("statistics", text)


class _Part(NamedTuple):
    """What the statistics of a row's first feature see, in a row of signs.

    Attributes:
        features: How many.
        first: d / x of the first feature.
        root: Root of the mean of d^2.
    """

    features: int
    first: float
    root: float


def _part(n: int, kind: str, seen: int, groups: int) -> _Part:
    row = _signs(n)[0, : seen // groups]
    d = row - row.mean() if kind == "layer_norm" else row
    return _Part(len(row), float(d[0] / row[0]), math.sqrt(float((d * d).mean())))


def read_eps(f: Called, n: int, part: _Part, dtype: str) -> tuple[float, str]:
    """(eps, place), from a row so small that eps alone rules and from one as large as it."""

    def factor(size: float) -> float:
        """r times the scale, of a row of signs of this size."""
        x = size * _signs(n)
        return float(abs(_values(f, x, dtype)[0, 0] / x[0, 0] / part.first))

    for size in (_HUGE, _LARGE):  # float16 inside does not hold the first
        scale = factor(size) * size * part.root
        if 0 < scale < math.inf:
            break
    else:
        return 0.0, "inside"
    r0 = factor(_TINY[dtype]) / scale
    if not 0 < r0 < _NO_EPS[dtype]:
        return 0.0, "inside"
    ratio = factor(1 / r0 / part.root) / r0 / scale
    places = {
        "inside": (math.sqrt(0.5), r0**-2),
        "outside": (0.5, 1 / r0),
        "floor": (1.0, math.sqrt(part.features) / r0),
    }
    place = min(places, key=lambda p: abs(places[p][0] - ratio))
    return float(f"{places[place][1]:.6g}"), place  # float32 gives no more digits


def _is_machine(f: Called, n: int, part: _Part, eps: float, float64: bool) -> bool:
    """Whether eps is 2^-23 and, where it can be seen, 2^-52 in float64."""
    if eps != _FLOAT32_MACHINE:
        return False
    if not float64:
        return True
    wide = attempt(lambda: read_eps(f, n, part, "float64")[0])
    return isinstance(wide, Exception) or _is_near(wide, _FLOAT64_MACHINE)


def _is_near(a: float, b: float) -> bool:
    """Equal to the digits of a float32 reading."""
    return math.isclose(a, b, rel_tol=1e-5)
