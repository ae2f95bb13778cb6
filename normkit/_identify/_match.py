"""Comparing what a thing answered with what conventions answer."""

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from normkit._convention import Convention

from ._catalogue import apply, difference, neighbours, with_parameters
from ._compare import Departure, departure
from ._forms import Called
from ._host import attempt
from ._probes import Probe, probes
from ._result import Miss
from ._structure import Finding, Structure

Array = Any
_MACHINE = {"float64": 2.0**-52}  # else 2^-23
# Fields that a search changes at most before it gives up.
_SEARCH_STEPS = 3


class Answer(NamedTuple):
    """A probe as it was put, parameters and all, and the thing's result."""

    probe: Probe
    result: Array


class Match(NamedTuple):
    """How a convention compares.

    Attributes:
        convention: Which.
        departures: The probes, by number, at which it departs beyond noise.
        bits: At how many exact probes only last bits differ.
        equal: At how many probes all bits are equal.
    """

    convention: Convention
    departures: tuple[tuple[int, Departure], ...]
    bits: int
    equal: int

    @property
    def clear(self) -> int:
        """At how many probes it departs beyond noise."""
        return len(self.departures)


class Answers:
    """All answers of a thing, and its eps."""

    def __init__(self, answers: list[Answer], structure: Structure) -> None:
        self.answers = answers
        self.structure = structure

    def eps(self, convention: Convention, probe: Probe) -> float | None:
        """The eps with which the convention is to answer: the thing's."""
        if convention.eps == "machine" and self.structure.machine:
            return None
        return self.eps_of(probe)

    def ours(self, convention: Convention, probe: Probe) -> Array:
        """The convention's output for a probe."""
        return apply(convention, self.eps(convention, probe), probe)

    def departure(self, answer: Answer, ours: Array) -> Departure | None:
        """How ``ours`` departs from the answer."""
        return departure(answer.probe, answer.result, ours, self.eps_of(answer.probe))

    def eps_of(self, probe: Probe) -> float:
        """The thing's eps for the dtype of this probe."""
        if self.structure.machine:
            return _MACHINE.get(probe.x.dtype.name, 2.0**-23)
        return self.structure.eps

    def match(self, convention: Convention) -> Match:
        """The convention at all probes."""
        import numpy as np

        departures, bits, equal = [], 0, 0
        for i, answer in enumerate(self.answers):
            ours = self.ours(convention, answer.probe)
            found = self.departure(answer, ours)
            if found is None:
                same = ours.dtype == answer.result.dtype
                equal += bool(same and np.array_equal(ours, answer.result, equal_nan=True))
            elif found.clear:
                departures.append((i, found))
            else:
                bits += 1
        return Match(convention, tuple(departures), bits, equal)

    def fits(self, convention: Convention) -> bool:
        """Whether it departs at no probe; stops at the first."""
        found = (self.departure(a, self.ours(convention, a.probe)) for a in self.answers)
        return all(d is None or not d.clear for d in found)


def ask(f: Called, n: int, structure: Structure, dtypes: Iterable[str]) -> tuple[Answers, int]:
    """The answers to all probes that ``f`` takes, and how many it was asked."""
    answers, asked = [], 0
    allowed = set(dtypes)
    for probe in probes(n, structure.eps, structure.eps_place):
        if not probe.dtypes <= allowed:
            continue
        asked += 1
        put = _as_put(f, probe)
        result = attempt(functools.partial(_answer, f, put))
        if not isinstance(result, Exception):  # its own refusal: no answer
            answers.append(Answer(put, result))
    return Answers(answers, structure), asked


def _answer(f: Called, put: Probe) -> Array:
    import numpy as np

    with np.errstate(all="ignore"):
        return f(put.x, put.scale, put.bias)


def _as_put(f: Called, probe: Probe) -> Probe:
    """The probe with the parameters that the thing has, neutral where the probe has none."""
    needed = not f.subject.optional
    keep = ("scale" in f.roles, "bias" in f.roles)
    return with_parameters(probe, f.neutral if needed else None, 0.0 if needed else None, keep)


def open_fields(answers: Answers, convention: Convention, roles: Iterable[str]) -> dict[str, Any]:
    """For each field, the other values with which the convention fits as well."""
    ignored = {"offset", "offset_added"}
    if "scale" not in roles:
        ignored |= {"scale", "order"}
    if "bias" not in roles:
        ignored.add("bias")
    found: dict[str, list[Any]] = {}
    for field, value, other in neighbours(convention):
        if field not in ignored and answers.fits(other):
            found.setdefault(field, []).append(value)
    return {name: tuple(values) for name, values in found.items()}


def search(answers: Answers, start: Match) -> tuple[Match, tuple[Finding, ...]]:
    """From a convention that departs, change field after field for as long as that helps."""
    best, findings = start, []
    for _ in range(_SEARCH_STEPS):
        if not best.clear:
            break
        tried = [(f, v, answers.match(c)) for f, v, c in neighbours(best.convention)]
        if not tried:
            break
        field, value, match = min(tried, key=lambda t: (t[2].clear, t[2].bits))
        if match.clear >= best.clear:
            break
        was = getattr(best.convention, field)
        findings.append(Finding(field, f"{value!r}, where the nearest preset has {was!r}"))
        best = match
    return best, tuple(findings)


def with_place(answers: Answers, convention: Convention) -> Convention | None:
    """The convention with eps at the place that was read off, if it can have it there."""
    place = answers.structure.eps_place
    root = "reciprocal" if place != "inside" and convention.root == "rsqrt" else convention.root
    try:
        return replace(convention, eps_place=place, root=root)
    except ValueError:
        return None


def miss(answers: Answers, kind: str, name: str, match: Match, found: Convention | None) -> Miss:
    """The first clear departure of a preset, with its numbers."""
    at, how = match.departures[0]
    probe, result = answers.answers[at]
    ours = answers.ours(match.convention, probe)
    row, feature = how.at or (0, 0)
    scale = probe.scale
    return Miss(
        kind=kind,
        preset=name,
        fields=difference(found, match.convention) if found is not None else (),
        departs=match.clear,
        probe=probe.name,
        separates=probe.separates,
        how=how.how,
        index=how.at,
        x=float(probe.x[row, feature]),
        scale=None if scale is None else float(scale[feature]),
        theirs=float(result[row, feature]),
        ours=float(ours[row, feature]),
        dtypes=(
            probe.x.dtype.name,
            None if scale is None else scale.dtype.name,
            result.dtype.name,
            ours.dtype.name,
        ),
    )
