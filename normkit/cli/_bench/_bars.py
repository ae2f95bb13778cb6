"""What normkit is to reach, as data, and whether it does."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ._plan import DTYPES, Group, Shape
from ._ratios import Ratio, ratio, select

_HALF = ("bfloat16", "float16")
_FEW: tuple[Shape, ...] = ((1, 4096), (16, 4096))
_LARGE: tuple[Shape, ...] = ((4096, 768), (4096, 4096))
_GPT: tuple[Shape, ...] = ((4096, 768),)

_RMS, _LAYER = "normkit rms_norm", "normkit layer_norm"
_BOTH = "forward+backward"


class Bar(NamedTuple):
    """``ours`` is at least ``faster`` times as fast as ``theirs``, at each shape and dtype.

    A number below 1 allows ours to be slower.
    """

    framework: str
    passes: str
    ours: str
    theirs: str
    faster: float
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = DTYPES

    def __str__(self) -> str:
        """The sentence."""
        slower = f", at most {1 / self.faster:.3g} times the time" if self.faster < 1 else ""
        return (
            f"{self.framework}, {self.passes}: {self.ours} at least {self.faster:.3g} times as fast "
            f"as {self.theirs}{slower}"
        )


class SavedBar(NamedTuple):
    """torch's autograd keeps x and a few statistics a row for the backward pass, and no more."""

    ours: str
    statistics: int
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        """The sentence."""
        return (
            f"torch: {self.ours} keeps for the backward pass no more than x and "
            f"{self.statistics} float64 a row"
        )

    @property
    def group(self) -> Group:
        """Where it is measured."""
        return Group("torch", _BOTH, self.shape, self.dtype, 1, (self.ours,))

    @property
    def limit(self) -> int:
        """In bytes."""
        return self.group.bytes_of_x + 8 * self.statistics * self.shape[0]


class Verdict(NamedTuple):
    """A bar at one shape, dtype and number of threads."""

    bar: Bar
    shape: Shape
    dtype: str
    threads: int
    kernel: str
    measured: Ratio

    @property
    def met(self) -> bool:
        """By the median."""
        return self.measured.middle >= self.bar.faster


BARS = (
    Bar("torch", "forward", _RMS, "torch rms_norm", 3, _LARGE, ("float32",)),
    Bar("torch", "forward", _RMS, "torch rms_norm", 5, _LARGE, _HALF),
    Bar("torch", "forward", _RMS, "torch rms_norm", 1, _FEW),
    Bar("torch", _BOTH, _RMS, "torch rms_norm", 5, _LARGE),
    Bar("torch", "forward", _LAYER, "torch layer_norm", 1, ((64, 4096), *_GPT), _HALF),
    Bar("torch", "forward", _LAYER, "torch layer_norm", 0.85, ((64, 4096), *_GPT), ("float32",)),
    Bar("torch", "forward", _LAYER, "torch layer_norm", 2, ((4096, 4096),)),
    Bar("torch", "forward", _LAYER, "torch layer_norm", 0.7, _FEW),
    Bar("torch", _BOTH, _LAYER, "torch layer_norm", 1.5, _LARGE),
    Bar("torch", "forward", _RMS, "clone", 1 / 1.5, _GPT, ("float32",)),
    Bar("torch", "forward", _RMS, "clone", 1 / 3, _GPT, ("bfloat16",)),
    Bar("torch", "forward", _RMS, "clone", 1, ((4096, 4096),), ("float32",)),
    Bar("torch", "forward", _RMS, "torch.compile rms_norm", 1, _GPT),
    Bar("torch", _BOTH, _RMS, "torch.compile rms_norm", 1.5, _GPT),
    Bar("numpy", "forward", _RMS, "numpy rms_norm", 3.5, _GPT, ("float32",)),
    Bar("jax", _BOTH, _RMS, "flax rms_norm", 3, _GPT, ("bfloat16",)),
    Bar("jax", _BOTH, _RMS, "flax rms_norm", 1.5, _GPT, ("float32",)),
    Bar("jax", "forward", _RMS, "flax rms_norm", 1 / 1.5, _GPT, ("float32", "bfloat16")),
)

SAVED_BARS = (
    SavedBar(_RMS, 1, (4096, 4096), "bfloat16"),
    SavedBar(_LAYER, 2, (4096, 4096), "bfloat16"),
)


def groups(threads: Sequence[int], bars: Sequence[Bar] = BARS) -> list[Group]:
    """What must be measured to judge the bars, and no more."""
    contenders: dict[Group, list[str]] = {}
    for count in threads:
        for bar in bars:
            for shape in bar.shapes:
                for dtype in bar.dtypes:
                    group = Group(bar.framework, bar.passes, shape, dtype, count)
                    names = contenders.setdefault(group, [])
                    names += [name for name in (bar.ours, bar.theirs) if name not in names]
    return [group._replace(contenders=tuple(names)) for group, names in contenders.items()]


def verdicts(result: dict[str, Any], bars: Sequence[Bar] = BARS) -> Iterator[Verdict]:
    """Each bar at each place where it was measured."""
    for bar in bars:
        for shape in bar.shapes:
            for dtype in bar.dtypes:
                place = {"framework": bar.framework, "passes": bar.passes}
                for entry in select(result, **place, shape=list(shape), dtype=dtype):
                    measured = ratio(entry, bar.theirs, bar.ours)
                    if measured is not None:
                        yield Verdict(
                            bar, shape, dtype, entry["threads"], entry["kernel"], measured
                        )


def saved(result: dict[str, Any], bar: SavedBar) -> int | None:
    """The bytes that were kept; None where that was not measured."""
    for entry in result["memory"]:
        place = (entry["framework"], entry["passes"], tuple(entry["shape"]), entry["dtype"])
        if place == bar.group[:4] and bar.ours in entry["saved"]:
            return int(entry["saved"][bar.ours])
    return None
