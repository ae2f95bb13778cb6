"""A convention: where an implementation of a norm casts, rounds and adds eps, as data."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from normkit import _checks

DTYPES = _checks.FLOAT_DTYPES

# What a field that names a dtype may hold; it depends on the arrays of a call. None is "as it
# comes out".
DTYPE_RULES = (
    "x",
    "scale",
    "scale_if_half",
    "promote",
    "float32",
    "at_least_float32",
    "wide",
    *(d for d in DTYPES if d != "float32"),
)

_PERMITTED: dict[str, tuple[Any, ...]] = {
    "kind": ("rms_norm", "layer_norm", "gated_rms_norm"),
    "eps_place": ("inside", "outside", "floor"),
    "input": (None, "scale", "promote", "at_least_float32", *DTYPES),
    "statistics": ("exact", "x", "float32", "at_least_float32"),
    "reduction": ("mean", "sum"),
    "variance": ("two_pass", "fused", "fast", "fast_clamped"),
    "root": ("reciprocal", "rsqrt", "divide"),
    "order": ("normalize_first", "scale_statistic", "scale_first", "scale_input", "affine"),
    "between": (None, *DTYPE_RULES),
    "scale": (None, *DTYPE_RULES),
    "offset_added": ("after_cast", "before_cast"),
    "bias": (None, *DTYPE_RULES),
    "output": (None, *DTYPE_RULES),
    "gate": (None, "before", "after"),
    "activation": ("silu", "sigmoid"),
}


@dataclass(frozen=True)
class Convention:
    """The choices on which implementations of one norm differ.

    Write d for x (LayerNorm: x - mean(x)), n for the size of a row, r for
    1 / sqrt(mean(d^2) + eps) and s for scale + offset; the norm is d r s + bias. An operation is
    done once and rounded once, to the promotion of its operands' dtypes (float16 with bfloat16 is
    float32); a Python number takes the array's dtype. The fields, in the order in which they act,
    say where else a value is cast, and which of several equal formulas is computed. Nothing else
    rounds. float64 is not rounded step by step; bits may differ between frameworks there.

    Fields that name a dtype take one ("float16", "bfloat16", "float32", "float64") or a rule:
    "x", "scale" the dtype of that array as passed (without scale, no cast); "scale_if_half" that
    of scale where it is a half dtype, else no cast; "promote" the promotion of x, scale and bias;
    "at_least_float32" float32 for a half dtype of x, else x's; "wide" float32 for a half dtype of
    x, else float64. None leaves the dtype that comes out.

    Args:
        kind: "rms_norm", "layer_norm" or "gated_rms_norm": the function that takes it.
        eps: What ``eps=None`` stands for, in units of x squared, or of x where ``eps_place`` is
            not "inside". "machine" is the spacing of numbers at 1 in the statistics' dtype.
        eps_place: "inside": r = 1 / sqrt(mean(d^2) + eps). "outside":
            r = 1 / (|d| / sqrt(n) + eps). "floor": r = sqrt(n) / max(|d|, eps). |d| is the root of
            the sum of squares, one operation.
        input: Cast of x before anything else, and for good.
        statistics: Dtype of squares, mean, variance and root. In a dtype, squares and differences
            are rounded to it, then their exact sum, the mean, eps, and mean + eps (in a half dtype
            the sum is float32 and the mean is rounded once, as frameworks do). "x" is the dtype
            that x has after ``input``. "exact" is normkit's own: float64, LayerNorm's mean
            subtracted twice, and r = 0 for a row of zeros at eps 0.
        reduction: "mean": r as above. "sum": not LayerNorm; the sum of d^2 in place of its mean,
            which is n = 1 in the formulas of ``eps_place``. The result has the length 1.
        variance: LayerNorm only. "two_pass": mean((x - mean)^2). "fused": one operation, rounded
            once. "fast": mean(x^2) - mean^2. "fast_clamped": that, at least 0.
        root: "reciprocal" rounds the root, then its reciprocal. "rsqrt" rounds 1 / sqrt once.
            "divide" rounds the root and divides d by it. In a half dtype the first two are float32
            operations, then rounded.
        order: "normalize_first": (d r) s. "scale_statistic": d (r s). "scale_first": (d s) r.
            "scale_input": the norm of x s. "affine": x a + (bias - mean a) with a = r s.
        between: Cast of the first product of ``order``, before the second.
        scale: Cast of scale.
        offset: Added to scale: 1 for an implementation that stores scale - 1.
        offset_added: "after_cast": to the cast scale. "before_cast": in scale's own dtype.
        bias: Cast of bias.
        output: Cast of the result.
        partial: Not LayerNorm: the share of the features, the first int(partial n), whose mean
            square is taken; all are scaled by it.
        groups: Number of equal parts of a row, each with its own statistics. scale and bias run
            over the whole row. With several axes the row is flattened in ascending order.
        gate: Gated RMSNorm only. "before": x, cast as ``input`` has it, times the activation is
            normalised. "after": the norm, before the cast ``output``, times the activation.
        activation: Of the gate, which is cast to the dtype of the statistics: "silu",
            g / (1 + exp(-g)), or "sigmoid", 1 / (1 + exp(-g)); one operation.

    Raises:
        TypeError: eps, offset, partial or groups is no number.
        ValueError: a field has an unknown value, or two fields contradict each other.

    Example:
        >>> from dataclasses import replace
        >>> from normkit.conventions import RMS_NORM
        >>> RMS_NORM["gemma"]
        Convention(input='float32', statistics='float32', scale='float32', offset=1.0)
        >>> grouped = replace(RMS_NORM["llama"], groups=8)
        >>> grouped.groups, grouped.eps
        (8, 1e-06)

    Source: docs/conventions.md has the presets, with the implementation that each follows.
    """

    kind: str = "rms_norm"
    eps: float | str = 1e-6
    eps_place: str = "inside"
    input: str | None = None
    statistics: str = "exact"
    variance: str = "two_pass"
    root: str = "reciprocal"
    order: str = "normalize_first"
    between: str | None = None
    scale: str | None = None
    offset: float = 0.0
    offset_added: str = "after_cast"
    bias: str | None = None
    output: str | None = "x"
    partial: float = 1.0
    groups: int = 1
    reduction: str = "mean"
    gate: str | None = None
    activation: str = "silu"

    # ``text`` of each instance, made once: torch.compile can read an attribute, not make JSON.
    _text: ClassVar[str]

    def __post_init__(self) -> None:
        """Refuse what no implementation can do."""
        for name, values in _PERMITTED.items():
            _checks.one_of(name, getattr(self, name), values)
        eps = self.eps
        checked = {
            "eps": eps if eps == "machine" else _checks.epsilon(eps),
            "offset": _checks.finite("offset", self.offset),
            "partial": _checks.finite("partial", self.partial),
            "groups": _checks.whole("groups", self.groups),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        _checks.no_contradiction(self)
        object.__setattr__(self, "_text", json.dumps(self.changed()))

    def __repr__(self) -> str:
        """The fields that differ from the defaults."""
        return f"Convention({', '.join(f'{k}={v!r}' for k, v in self.changed().items())})"

    def changed(self) -> dict[str, Any]:
        """The fields that differ from the defaults of the class, by name."""
        each = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}
        return {name: value for name, (value, default) in each.items() if value != default}

    @property
    def text(self) -> str:
        """The convention as JSON, for `from_text`."""
        return self._text

    @classmethod
    def from_text(cls, text: str) -> "Convention":
        """The convention whose ``text`` this is."""
        return cls(**json.loads(text))

    @property
    def rounds_once(self) -> bool:
        """Whether every field but eps is that of "standard", which kernels may rely on."""
        return (
            self.statistics == "exact"
            and self.between == self.scale == self.bias == "wide"
            and self.input is None
            and self.eps_place == "inside"
            and self.order == "normalize_first"
            and self.offset == 0
            and self.output == "x"
            and self.partial == 1
            and self.groups == 1
            and self.reduction == "mean"
            and self.gate is None
        )

    def with_dtype(self, dtype: str) -> "Convention":
        """With ``dtype`` wherever "promote" stands: what the ``dtype`` argument does in Flax."""
        casts = ("input", "between", "scale", "bias", "output")
        found: dict[str, Any] = {f: dtype for f in casts if getattr(self, f) == "promote"}
        return replace(self, **found) if found else self
