"""Which convention does a norm follow? Asked of the norm itself, by crafted inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from normkit import _checks
from normkit._convention import Convention

from ._catalogue import KINDS, named
from ._compare import CRITERION
from ._forms import Called, choose_form
from ._host import Function, Subject, array_hosts, host_of, needs_argument
from ._match import Answers, Match, ask, miss, open_fields, search, with_place
from ._result import Identification, Miss
from ._structure import Finding, Structure, read_structure

_WIDTH = 64
_NEAREST = 3
_MIN_WIDTH = 8
# How `with_dtype` is written after a preset's name, and the dtypes it is tried with.
_COMPUTE_DTYPES = ("bfloat16", "float16", "float32")


def identify(
    thing: Any,
    *,
    args: Sequence[Any] | None = None,
    options: Mapping[str, Any] | None = None,
    width: int | None = None,
    kind: str | None = None,
    dtypes: Sequence[str] = _checks.FLOAT_DTYPES,
) -> Identification:
    """The convention that a norm follows: every cast, the order, eps and its place.

    ``thing`` is called on about forty crafted inputs, each of which separates some of the fields
    of a `Convention`, and compared with every preset. What no probe tells apart is reported as
    one class; a thing that follows no convention is never given the nearest one. Its parameters
    are set to the probes' values and dtypes in a copy; ``thing`` itself stays as it is.

    Args:
        thing: A torch, NNX, Linen, Keras or Equinox module, or a function ``f(x)``,
            ``f(x, scale)`` or ``f(x, scale, bias)`` of NumPy, torch or JAX arrays, whose other
            arguments have defaults. Functions' parameters are known by the names weight, scale,
            gamma, gain, g, w, bias, beta, shift and b, others by their place. With ``args``, a
            class or a factory that makes one of these.
        args: Arguments with which ``thing`` is called to make the module; None calls a class
            with ``width`` if it needs an argument, and takes anything else as it is.
        options: Keyword arguments for that call.
        width: Elements of a row; None reads it off the parameters, and is 64 where there are none.
        kind: Only "rms_norm" or "layer_norm"; None for both.
        dtypes: Dtypes of the probes. With fewer, fewer presets can be told apart. What takes no
            comparison (axis, width, eps) is read off in float32 in any case.

    Returns:
        An `Identification`. Printing it gives a report.

    Raises:
        TypeError: ``thing`` cannot be called, or an argument of it is not understood.
        ValueError: it takes no input of this width in any known form; width or kind is wrong.

    Example:
        >>> import numpy as np
        >>> def norm(x, weight):
        ...     wide = x.astype(np.float32)
        ...     ms = np.mean(wide * wide, axis=-1, keepdims=True)
        ...     return (wide / np.sqrt(ms + np.float32(1e-6))).astype(x.dtype) * weight
        >>> found = identify(norm)
        >>> found.preset, found.eps, found.fields["between"]
        ('llama', 1e-06, 'x')

    Source: the probes are explained in docs/identify.md.
    """
    _checks.probe_dtypes(dtypes)
    _checks.norm_kind(kind, tuple(KINDS))
    label = _label(thing)
    thing = _made(thing, args, options or {}, width)
    called, n = _called(thing, width)
    structure = read_structure(called, n, "float64" in dtypes)
    answers, asked = ask(called, n, structure, dtypes)
    kinds = (structure.kind,) if not structure.findings else tuple(KINDS)
    kinds = tuple(k for k in kinds if kind in (None, k))
    matches = _matches(answers, kinds)
    about = {
        "thing": label,
        "axis": called.form.axis,
        "call": called.form.name,
        "parameters": {
            name: role if role in called.roles else "unused"
            for name, role in called.subject.roles.items()
        },
        "width": n,
        "probes": len(answers.answers),
        "asked": asked,
        "criterion": CRITERION,
        "eps": structure.eps,
        "eps_place": structure.eps_place,
        "outputs": _outputs(answers),
    }
    return _concluded(answers, matches, set(called.roles), about)


def _label(thing: Any) -> str:
    home = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(home, '__module__', '')}.{home.__qualname__}"


def _made(thing: Any, args: Sequence[Any] | None, options: Mapping[str, Any], width: Any) -> Any:
    if args is None and isinstance(thing, type):
        args = (width or _WIDTH,) if needs_argument(thing) else ()
    if args is None and not options:
        return thing
    return thing(*(args or ()), **options)


def _called(thing: Any, width: int | None) -> tuple[Called, int]:
    """The thing with a form in which it can be called, and the width of its rows."""
    _checks.can_be_called(thing)
    errors: dict[str, str] = {}
    for subject in _subjects(thing, width):
        n = width or subject.width or _WIDTH
        _checks.probe_width(n, _MIN_WIDTH)
        called, refused = choose_form(subject, n)
        if called is not None:
            return called, n
        errors |= {f"{subject.framework}, {form}": why for form, why in refused.items()}
    raise _checks.no_form(width or _WIDTH, errors)


def _subjects(thing: Any, width: int | None) -> list[Subject]:
    host = host_of(thing)
    if host is not None and host.is_module(thing):
        return [host.subject(thing, width)]
    function: Callable[..., Any] = thing
    subjects: list[Subject] = [Function(function, host) for host in array_hosts(function)]
    return subjects


def _matches(answers: Answers, kinds: tuple[str, ...]) -> dict[tuple[str, str], Match]:
    """Every preset of these kinds at all probes; with a compute dtype where none fits without."""
    structure = answers.structure
    presets = named(kinds, structure.partial, structure.groups)
    found = {key: answers.match(convention) for key, convention in presets.items()}
    if any(not match.clear for match in found.values()):
        return found
    for (kind, name), convention in presets.items():
        for dtype in _COMPUTE_DTYPES:
            fixed = convention.with_dtype(dtype)
            if fixed != convention:
                found[kind, f"{name}, dtype={dtype}"] = answers.match(fixed)
    return found


def _outputs(answers: Answers) -> dict[str, str]:
    """The result's dtype for each pair of dtypes of x and scale."""
    found = {}
    for probe, result in answers.answers:
        scale = "" if probe.scale is None else f", {probe.scale.dtype.name}"
        found[f"{probe.x.dtype.name}{scale}"] = result.dtype.name
    return found


def _concluded(
    answers: Answers,
    matches: dict[tuple[str, str], Match],
    roles: set[str],
    about: dict[str, Any],
) -> Identification:
    structure = answers.structure
    ranked = sorted(matches.items(), key=lambda item: _rank(structure, item[1]))
    fits = [key for key, match in ranked if not match.clear and not structure.findings]
    findings, best = structure.findings, None
    if fits:
        best = matches[fits[0]]
    elif ranked and not findings and answers.answers:
        best, findings = _nearest_by_field(answers, ranked[0][1])
    convention = None if best is None else _with_eps(best.convention, structure)
    misses = [(key, match) for key, match in ranked if match.clear][:_NEAREST]
    settled = bool(best and not best.clear)
    return Identification(
        **about,
        kind=None if structure.findings else structure.kind,
        presets=tuple(name for _, name in fits),
        convention=convention if settled else None,
        fields=_fields(convention) if settled else {},
        open_fields=open_fields(answers, best.convention, roles) if best and settled else {},
        findings=findings,
        agreed=0 if best is None else len(answers.answers) - best.clear,
        equal_bits=0 if best is None else best.equal,
        misses=tuple(miss(answers, *key, match, convention) for key, match in misses),
    )


def _rank(structure: Structure, match: Match) -> tuple[int, int, int, bool]:
    """Fewest clear departures, fewest in bits, most equal bits, then the preset with this eps."""
    machine = match.convention.eps == "machine"
    own = structure.machine if machine else match.convention.eps == structure.eps
    return match.clear, match.bits, -match.equal, not own


def _nearest_by_field(answers: Answers, nearest: Match) -> tuple[Match, tuple[Finding, ...]]:
    """From the nearest preset: eps where it was read off, then field by field."""
    place = answers.structure.eps_place
    was = nearest.convention.eps_place
    findings: tuple[Finding, ...] = ()
    if was != place:
        moved = with_place(answers, nearest.convention)
        if moved is not None:
            nearest = answers.match(moved)
        findings = (Finding("eps_place", f"{place!r}, where the nearest preset has {was!r}"),)
    best, more = search(answers, nearest)
    if best.clear:
        probe = answers.answers[best.departures[0][0]].probe
        findings += (Finding("probe", f"departs at '{probe.name}': {probe.separates}"),)
    return best, findings + more


def _with_eps(convention: Convention, structure: Structure) -> Convention:
    return replace(convention, eps="machine" if structure.machine else structure.eps)


def _fields(convention: Convention | None) -> dict[str, Any]:
    if convention is None:
        return {}
    return {
        name: getattr(convention, name)
        for name in convention.__dataclass_fields__
        if not name.startswith("_")
    }


__all__ = ["Finding", "Identification", "Miss", "identify"]
