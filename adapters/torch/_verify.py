"""Whether a layer gives what the module gives in whose place it is to stand."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normkit._checks import HALF_DTYPES, dtype_name
from normkit._values import Dtypes

from ._identify import HOST
from ._stand_in import Recognised, Refusal, bare

# The order of a float32 sum moves an output by at most this many ULPs of the row's largest element
# (3 were measured on torch; see docs/identify.md).
_NOISE_ULP = 8.0
# A half result may lie on the other side of a rounding, in this share of elements; a convention
# rounds twice, so that it is then off by two steps at most.
_FLIPPED, _STEPS = 0.01, 2.0

CRITERION = (
    "equal dtypes and shapes; infinity and NaN in the same places; float32 and float64 results within "
    "8 ULP of the row's largest element (for LayerNorm times 1 + max|x| / max|x - mean|, by which a "
    "mean's last bit is enlarged), in the statistics' dtype; of half results at most 1 % differ, by "
    "2 ULP at most beyond that"
)


@dataclass(frozen=True, eq=False)
class Departure:
    """An input for which two results differ.

    Attributes:
        how: What differs: "shape", "dtype", "special" (infinity or NaN) or "values".
        input: The row of x, as it was given to both; all of x where shape or dtype differ.
        index: Of the element in the row; None where shape or dtype differ.
        theirs, ours: The results there, or their shapes or dtypes.
    """

    how: str
    input: Tensor
    index: int | None
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        """One line."""
        if self.index is None:
            return f"the {self.how} of the result is {self.theirs}, normkit's {self.ours}"
        size = self.input.double().square().mean().sqrt().item()
        return (
            f"a row of {self.input.numel()} {dtype_name(self.input.dtype)} with mean square root "
            f"{size:.3g}: element {self.index} is {self.theirs:.9g}, normkit's {self.ours:.9g}"
        )


class Comparison(NamedTuple):
    """A layer beside the module.

    Attributes:
        elements: How many results were compared, of
        rows: so many rows, in
        dtypes: these dtypes.
        equal: How many had equal bits.
        worst: The largest difference, in ULPs of the row's largest element.
        departure: The first that the criterion does not allow, or None.
    """

    elements: int
    rows: int
    dtypes: tuple[str, ...]
    equal: int
    worst: float
    departure: Departure | None


def compare(
    module: nn.Module, layer: nn.Module, norm: Recognised, inputs: Iterator[Tensor]
) -> Comparison:
    """Both on all ``inputs``; stops at the first that shows a departure.

    Raises:
        Refusal: the module does not take x alone, or gives no tensor like it.
    """
    theirs, ours = bare(module), bare(layer)
    elements = rows = equal = 0
    worst, dtypes = 0.0, dict[str, None]()
    departure = None
    for x in inputs:
        with torch.no_grad():
            a, b = _called(theirs, x), ours(x)
        found = _beside(norm, layer, x, a, b)
        elements, rows = elements + found.elements, rows + found.rows
        equal, worst = equal + found.equal, max(worst, found.worst)
        dtypes |= dict.fromkeys(found.dtypes)
        departure = found.departure
        if departure is not None:
            break
    return Comparison(elements, rows, tuple(dtypes), equal, worst, departure)


def _called(module: nn.Module, x: Tensor) -> Tensor:
    try:
        y = module(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Refusal(f"cannot be called with x alone: {str(error).splitlines()[0]}") from None
    if not isinstance(y, Tensor):
        raise Refusal(f"its result is a {type(y).__name__}, not a tensor")
    return y


def _beside(norm: Recognised, layer: Any, x: Tensor, a: Tensor, b: Tensor) -> Comparison:
    if a.shape != b.shape:
        return _otherwise("shape", x, tuple(a.shape), tuple(b.shape))
    if a.dtype != b.dtype:
        return _otherwise("dtype", x, dtype_name(a.dtype), dtype_name(b.dtype))
    lying = [_rows(t, norm) for t in (x, a, b)]
    wide, theirs, ours = (HOST.numpy(t).astype(np.float64) for t in lying)
    dtype = dtype_name(a.dtype)
    far, worst = _far(norm, layer, dtype_name(x.dtype), dtype, wide, theirs, ours)
    same = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
    departure = None
    special = (np.isnan(theirs) != np.isnan(ours)) | (np.isinf(theirs) != np.isinf(ours))
    for how, where in (("special", special), ("values", far)):
        if departure is None and where.any():
            row, element = (int(i) for i in np.argwhere(where)[0])
            numbers = float(theirs[row, element]), float(ours[row, element])
            departure = Departure(how, lying[0][row].detach().clone(), element, *numbers)
    return Comparison(
        same.size, len(same), (dtype_name(x.dtype),), int(same.sum()), worst, departure
    )


def _otherwise(how: str, x: Tensor, theirs: Any, ours: Any) -> Comparison:
    return Comparison(0, 0, (dtype_name(x.dtype),), 0, 0.0, Departure(how, x, None, theirs, ours))


def _rows(t: Tensor, norm: Recognised) -> Tensor:
    if norm.axis is not None:
        return t.movedim(norm.axis, -1).reshape(-1, *norm.shape)
    return t.reshape(-1, int(np.prod(norm.shape)))


def _far(
    norm: Recognised, layer: Any, x_dtype: str, dtype: str, x: Any, theirs: Any, ours: Any
) -> tuple[Any, float]:
    """Which elements differ beyond the criterion, and the largest difference in ULPs."""
    finite = np.isfinite(theirs) & np.isfinite(ours)
    theirs, ours = np.where(finite, theirs, 0.0), np.where(finite, ours, 0.0)
    difference = np.abs(theirs - ours)
    size = np.maximum(np.abs(theirs), np.abs(ours))
    largest = np.maximum(size.max(-1, keepdims=True), 1e-300)
    scale = None if layer.weight is None else dtype_name(layer.weight.dtype)
    noise = _NOISE_ULP * _spacing(largest, coarsest(norm, x_dtype, scale, dtype))
    if norm.kind == "layer_norm":
        centred = np.abs(x - x.mean(-1, keepdims=True)).max(-1, keepdims=True)
        noise = noise * (1.0 + np.abs(x).max(-1, keepdims=True) / np.maximum(centred, 1e-300))
    worst = float((difference / _spacing(largest, dtype)).max())
    if dtype not in HALF_DTYPES:
        return difference > noise, worst
    far = difference > noise + _STEPS * _spacing(size, dtype)
    if not far.any() and (difference > noise).mean() > _FLIPPED:
        far = difference > noise
    return far, worst


def _spacing(values: Any, dtype: str) -> Any:
    """Distance between neighbouring numbers of the dtype at each value: one ULP."""
    info = torch.finfo(getattr(torch, dtype))
    return np.maximum(np.ldexp(info.eps, np.frexp(values)[1] - 1), info.tiny * info.eps)


def coarsest(norm: Recognised, x: str, scale: str | None, result: str) -> str:
    """float32, unless x, the statistics, the scale as cast and the result are all float64."""
    dtypes, c = Dtypes(x, scale, None), norm.fields
    chain = (result, dtypes.of_statistics(c), dtypes.of(c.input) or x, dtypes.of(c.scale))
    return "float64" if {*chain} <= {"float64", None} else "float32"


def inputs_of(norm: Recognised, dtype: torch.dtype, device: Any, centred: bool) -> Iterator[Tensor]:
    """Rows of the norm's own shape, dtype and device: usual, large, far off centre, tiny, zero.

    With ``centred`` each has the mean 0 exactly: LayerNorm and RMSNorm agree there.
    """
    generator = torch.Generator().manual_seed(0)
    n = int(np.prod(norm.shape))
    eps = norm.eps if norm.eps is not None else 2.0**-23
    for size, mean in (
        (1.0, 0.0),
        (3.0, 1.0),
        (100.0, 0.0),
        (1.0, 8.0),
        (max(eps, 1e-12) ** 0.5, 0.0),
    ):
        half = torch.randn(2, 15, n // 2 if centred else n, generator=generator)
        rows = half * size + (0.0 if centred else mean * size)
        rows = rows.to(dtype)
        if centred:
            rows = torch.cat([rows, -rows, torch.zeros(2, 15, n % 2, dtype=dtype)], -1)
        yield _laid_out(rows, norm).to(device)
    if eps > 0:
        yield _laid_out(torch.zeros(2, 15, n, dtype=dtype), norm).to(device)


def _laid_out(rows: Tensor, norm: Recognised) -> Tensor:
    if norm.axis is None:
        return rows.reshape(2, 15, *norm.shape)
    return rows.movedim(-1, 1).reshape(2, *norm.shape, *norm.image).contiguous()
