"""What is measured: groups of contenders that are timed in turn."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Shape = tuple[int, ...]

FRAMEWORKS = ("torch", "jax", "numpy")
PASSES = ("forward", "forward+backward", "residual")
OPS = ("rms_norm", "layer_norm")
CONTENDERS = (
    *("torch", "torch.compile", "normkit.compile", "clone", "copy_"),
    *("flax", "equinox", "keras"),
    *("numpy", "normkit.out", "copy", "copyto"),
)
DTYPES = ("float32", "bfloat16", "float16")

# Tokens by width: one token, a few, a batch; the widths of GPT-2, Gemma 2 and Llama 3.
SHAPES: tuple[Shape, ...] = (
    (1, 4096),
    (16, 4096),
    (64, 4096),
    (512, 768),
    (4096, 768),
    (4096, 2304),
    (4096, 3584),
    (4096, 4096),
    (2048, 8192),
    (16384, 4096),
)
QUICK_SHAPES: tuple[Shape, ...] = ((1, 4096), (64, 4096), (4096, 768))
# Outgrows every cache, and takes long.
HUGE: Shape = (16384, 4096)
_HUGE_PLACES = (("torch", "float32"), ("torch", "bfloat16"))
# Compilation takes seconds a shape, so that compiled contenders run on a few.
COMPILED_SHAPES: tuple[Shape, ...] = ((1, 4096), (4096, 768), (4096, 4096))
# Memory is measured at the first of these.
WEIGHED_SHAPES: tuple[Shape, ...] = ((4096, 4096), (4096, 768))

ITEM_SIZE = {"float32": 4, "bfloat16": 2, "float16": 2}

# Full-size arrays that one element of the result costs at least, read or written: x, y; for the
# backward pass dy, x, dx more; for a residual sum x, residual, sum, y.
STREAMS = {"forward": 2, "forward+backward": 5, "residual": 4}


def size(shape: Sequence[int]) -> str:
    """A shape as it is named on the command line."""
    return "x".join(map(str, shape))


class Group(NamedTuple):
    """Contenders that are timed in turn on the same data.

    ``contenders`` are names such as "normkit rms_norm"; None stands for all that are installed,
    ``compiled`` for whether those are among them that torch compiles.
    """

    framework: str
    passes: str
    shape: Shape
    dtype: str
    threads: int
    contenders: tuple[str, ...] | None = None
    compiled: bool = False

    @property
    def bytes_of_x(self) -> int:
        """Size of the input."""
        return math.prod(self.shape) * ITEM_SIZE[self.dtype]


class Filters(NamedTuple):
    """What the command line asks for; None stands for all."""

    shapes: Sequence[Shape] | None = None
    dtypes: Sequence[str] | None = None
    passes: Sequence[str] | None = None
    frameworks: Sequence[str] | None = None
    ops: Sequence[str] | None = None
    contenders: Sequence[str] | None = None

    def take(self, group: Group) -> bool:
        """Whether a group is asked for; contenders are filtered by `wants`."""
        return all(
            wanted is None or value in wanted
            for wanted, value in (
                (self.shapes, group.shape),
                (self.dtypes, group.dtype),
                (self.passes, group.passes),
                (self.frameworks, group.framework),
            )
        )

    def wants(self, contender: str) -> bool:
        """Whether a contender is asked for; normkit always is, or there would be no ratio."""
        name, _, op = contender.partition(" ")
        if op and self.ops is not None and op not in self.ops:
            return False
        return self.contenders is None or name in self.contenders or name == "normkit"


def full(threads: Sequence[int]) -> Iterator[Group]:
    """Every shape, dtype and pass that says something of its own."""
    for count, framework, passes in itertools.product(threads, FRAMEWORKS, PASSES):
        if framework == "numpy" and passes == "forward+backward":
            continue  # the plain formula has none
        for shape, dtype in itertools.product(SHAPES, DTYPES):
            if shape == HUGE and (framework, dtype) not in _HUGE_PLACES:
                continue
            group = Group(framework, passes, shape, dtype, count)
            yield group._replace(compiled=shape in COMPILED_SHAPES)


def quick(threads: Sequence[int]) -> Iterator[Group]:
    """Three shapes, two dtypes, and nothing that takes long to compile."""
    for group in full(threads):
        if group.framework != "torch" and group.passes == "residual":
            continue
        if group.shape in QUICK_SHAPES and group.dtype != "float16":
            yield group._replace(compiled=False)


def weighed(groups: Sequence[Group], shapes: Sequence[Shape] | None) -> list[Group]:
    """Those of the groups whose memory is measured: at one large shape, or at the given ones."""
    here = {group.shape for group in groups}
    shapes = shapes or [s for s in WEIGHED_SHAPES if s in here][:1]
    threads = max(group.threads for group in groups)
    return [
        group
        for group in groups
        if group.shape in shapes
        and group.threads == threads
        and group.dtype != "float16"
        and group.passes != "residual"
    ]
