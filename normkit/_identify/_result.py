"""What `identify` gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normkit._convention import Convention

from ._structure import Finding


@dataclass(frozen=True)
class Miss:
    """A preset that does not fit, and the first input where it departs.

    Attributes:
        kind, preset: Its name.
        fields: Those in which it differs from the convention found, if one was.
        departs: At how many probes it departs clearly.
        probe: The first of these, and
        separates: what that probe tells apart.
        how: "dtype": the result has another dtype. "special": infinity, NaN or no norm in one of
            the two. "share": different numbers.
        index: (row, feature) of the first element that differs; None for "dtype".
        x, scale: The input there. ``scale`` is None where there was none.
        theirs, ours: The thing's result there, and the preset's.
        dtypes: Of x, scale, their result and ours.
    """

    kind: str
    preset: str
    fields: tuple[str, ...]
    departs: int
    probe: str
    separates: str
    how: str
    index: tuple[int, int] | None
    x: float
    scale: float | None
    theirs: float
    ours: float
    dtypes: tuple[str, str | None, str, str]

    def __str__(self) -> str:
        """One line."""
        if self.how == "dtype":
            x, scale, theirs, ours = self.dtypes
            found = f"x {x}, scale {scale}: result {theirs}, the preset gives {ours}"
        else:
            scale_text = "" if self.scale is None else f", scale {self.scale:.9g}"
            found = (
                f"x {self.x:.9g}{scale_text}: {self.theirs:.9g}, the preset gives {self.ours:.9g}"
            )
        return f"{self.kind}/{self.preset} departs at {self.departs} probes, first '{self.probe}': {found}"


@dataclass(frozen=True)
class Identification:
    """Which convention a norm follows.

    Attributes:
        thing: What was asked.
        kind: "rms_norm" or "layer_norm"; None if it is neither.
        presets: The presets that no probe tells from it, best first; empty if none fits.
        convention: The first preset with the eps read off. Where no preset fits it is the
            convention found field by field, or None.
        fields: The values of all fields of ``convention``.
        open_fields: For each field that the probes leave open, the other values that fit as well.
        findings: Where it departs from every convention, or from every preset, by field.
        eps: As read off; 0.0 if none is visible.
        eps_place: "inside", "outside" or "floor".
        outputs: The result's dtype for each pair of dtypes of x and scale.
        axis: The axis normalised.
        call: The form in which it was called.
        parameters: The role, "scale" or "bias", of each parameter by name.
        width: Elements of a row in the probes.
        probes: How many probes it answered, of
        asked: so many.
        agreed: At how many the convention agrees by the criterion.
        equal_bits: At how many it has equal bits.
        criterion: What agreement means.
        misses: The nearest presets that do not fit, nearest first.
    """

    thing: str
    kind: str | None
    presets: tuple[str, ...]
    convention: Convention | None
    fields: Mapping[str, Any]
    open_fields: Mapping[str, tuple[Any, ...]]
    findings: tuple[Finding, ...]
    eps: float
    eps_place: str
    outputs: Mapping[str, str]
    axis: int
    call: str
    parameters: Mapping[str, str]
    width: int
    probes: int
    asked: int
    agreed: int
    equal_bits: int
    criterion: str
    misses: tuple[Miss, ...]

    @property
    def preset(self) -> str | None:
        """The best preset, or None."""
        return self.presets[0] if self.presets else None

    @property
    def departs(self) -> tuple[str, ...]:
        """The fields named in ``findings``."""
        return tuple(dict.fromkeys(finding.field for finding in self.findings))

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        return {
            "schema": "normkit-identify-1",
            "thing": self.thing,
            "kind": self.kind,
            "presets": list(self.presets),
            "fields": dict(self.fields),
            "open_fields": {name: list(values) for name, values in self.open_fields.items()},
            "findings": [finding._asdict() for finding in self.findings],
            "eps": self.eps,
            "eps_place": self.eps_place,
            "outputs": dict(self.outputs),
            "axis": self.axis,
            "call": self.call,
            "parameters": dict(self.parameters),
            "width": self.width,
            "probes": self.probes,
            "asked": self.asked,
            "agreed": self.agreed,
            "equal_bits": self.equal_bits,
            "criterion": self.criterion,
            "misses": [_plain(miss) for miss in self.misses],
        }

    def __str__(self) -> str:
        """The report, as `normkit identify` prints it."""
        return "\n".join(_lines(self))


def _plain(miss: Miss) -> dict[str, Any]:
    """A miss for JSON, which has neither infinity nor NaN: those become text."""
    values = {**vars(miss), "fields": list(miss.fields), "dtypes": list(miss.dtypes)}
    for name in ("x", "scale", "theirs", "ours"):
        value = values[name]
        if value is not None and not abs(value) < float("inf"):
            values[name] = str(value)
    return values


def _lines(found: Identification) -> list[str]:
    lines = [found.thing]
    if found.presets:
        lines.append(f"  convention    {found.kind}: {', '.join(found.presets)}")
        if len(found.presets) > 1:
            lines.append("                (no probe tells these apart here; best first)")
    elif found.convention is not None:
        lines.append(f"  convention    none of the presets; {found.kind} with the fields below")
    else:
        lines.append("  convention    none")
    lines += [f"  departs       {field}: {text}" for field, text in found.findings]
    if found.kind is not None:
        eps = f"{found.eps:.6g} {found.eps_place}" if found.eps else "none visible"
        lines.append(f"  eps           {eps}")
    lines += [f"  {name:<14}{value!r}{_others(found, name)}" for name, value in _shown(found)]
    if found.outputs:
        pairs = (f"{pair} -> {dtype}" for pair, dtype in found.outputs.items())
        lines.append(f"  results       {'; '.join(pairs)}")
    parameters = ", ".join(f"{name} as {role}" for name, role in found.parameters.items())
    lines.append(
        f"  called        {found.call}, width {found.width}; {parameters or 'no parameters'}"
    )
    if found.convention is not None:
        lines.append(
            f"  confidence    {found.agreed} of {found.probes} probes agree, {found.equal_bits} of "
            f"them bit for bit ({found.asked} were asked): {found.criterion}"
        )
    lines += [f"  not           {miss}" for miss in found.misses]
    return lines


def _shown(found: Identification) -> list[tuple[str, Any]]:
    """The fields worth a line: all that may matter, without those at a value that does nothing."""
    idle = {"partial": 1.0, "groups": 1, "offset": 0.0}
    skipped = {"kind", "eps", "eps_place"}
    if found.fields.get("offset") == 0:
        skipped.add("offset_added")
    if found.kind == "rms_norm":
        skipped.add("variance")
    if "bias" not in found.parameters.values():
        skipped.add("bias")
    if "scale" not in found.parameters.values():
        skipped |= {"scale", "order"}
    return [
        (name, value)
        for name, value in found.fields.items()
        if name not in skipped and idle.get(name, ...) != value
    ]


def _others(found: Identification, name: str) -> str:
    others = found.open_fields.get(name, ())
    return f" (or {', '.join(map(repr, others))}: not told apart)" if others else ""
