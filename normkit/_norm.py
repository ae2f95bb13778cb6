"""A norm as data: what an adapter wraps, and how arguments become the formulas' arguments."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from normkit import _checks
from normkit._arithmetic import Arithmetic, Array, arithmetic_of
from normkit._checks import Axes, Host
from normkit._convention import Convention
from normkit._kernel import Kernel, choose
from normkit._presets import convention_of
from normkit._rounded import rounded_forward, smooth_vjp
from normkit._values import default_eps


class Norm(NamedTuple):
    """One norm: its formulas, written once, for conventions that round once.

    ``forward(ar, x, scale, bias, eps, axes) -> y`` and
    ``vjp(ar, dy, x, scale, bias, eps, axes) -> (dx, dscale, dbias)`` take checked arguments:
    ``ar`` the `Arithmetic`, scale and bias None or broadcastable to x with as many axes, axes
    ascending and non-negative. Those of the gated norm take more (normkit._gated).
    """

    name: str
    forward: Callable[..., Array]
    vjp: Callable[..., Any]


class Call(NamedTuple):
    """The checked options of one call."""

    eps: float
    axes: Axes
    convention: Convention
    kernel: str | None = None


def check_call(
    norm: Norm,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    *,
    eps: Any,
    axis: int | Sequence[int],
    convention: str | Convention,
    kernel: str | None = None,
    axis_name: Any = None,
    host: Host | None = None,
    **like_x: Array,
) -> Call:
    """Check the arguments of a public function; ``like_x`` are arrays of the shape of x."""
    arrays = {"x": x, "scale": scale, "bias": bias, **like_x}
    _checks.same_framework(host, **arrays)
    _checks.real_floating(**arrays)
    axes = _checks.axes(x.shape, axis)
    _checks.parameter_shape("scale", scale, x.shape, axes)
    _checks.parameter_shape("bias", bias, x.shape, axes)
    for name, array in like_x.items():
        _checks.same_shape(name, array, x.shape)
    c = convention_of(convention, norm.name)
    if c.partial != 1 or c.groups != 1:
        _checks.parts_of_row(math.prod([x.shape[a] for a in axes]), c.partial, c.groups)
        _checks.whole_rows(c.partial, c.groups, axis_name)
    value = default_eps(c, x, scale, bias) if eps is None else _checks.epsilon(eps)
    return Call(value, axes, c, kernel)


def check_options(norm: Norm, eps: Any, convention: str | Convention) -> None:
    """Check what a module is built with, before there is an array."""
    convention_of(convention, norm.name)
    if eps is not None:
        _checks.epsilon(eps)


def saved_options(norm: Norm, eps: Any, convention: str | Convention) -> dict[str, Any]:
    """What is no parameter of a layer and belongs to its trained ones, as plain data."""
    c = convention_of(convention, norm.name)
    return {"eps": c.eps if eps is None else eps, "convention": c.text}


def along(parameter: Array | None, x: Array, axes: Axes, reshape: Callable[..., Array]) -> Any:
    """``parameter`` with size 1 on the axes of x other than ``axes``; as it is, if laid out so."""
    if parameter is None or parameter.ndim == x.ndim:
        return parameter
    return reshape(parameter, tuple(size if a in axes else 1 for a, size in enumerate(x.shape)))


def apply(
    ar: Arithmetic, norm: Norm, x: Array, scale: Array | None, bias: Array | None, call: Call
) -> Array:
    """``norm.forward`` on checked public arguments."""
    scale, bias = (along(p, x, call.axes, ar.xp.reshape) for p in (scale, bias))
    if call.convention.rounds_once:
        return norm.forward(ar, x, scale, bias, call.eps, call.axes)
    return rounded_forward(ar, x, scale, bias, call.eps, call.axes, call.convention)


def apply_vjp(
    ar: Arithmetic,
    norm: Norm,
    dy: Array,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    call: Call,
) -> tuple[Array, Array | None, Array | None]:
    """``norm.vjp`` on checked public arguments; the gradients have the parameters' shapes."""
    wide_scale, wide_bias = (along(p, x, call.axes, ar.xp.reshape) for p in (scale, bias))
    arguments = (ar, dy, x, wide_scale, wide_bias)
    if call.convention.rounds_once:
        dx, dscale, dbias = norm.vjp(*arguments, call.eps, call.axes)
    else:
        dx, dscale, dbias = smooth_vjp(*arguments, call.eps, call.axes, call.convention)
    if scale is not None:
        dscale = ar.xp.reshape(dscale, tuple(scale.shape))
    if bias is not None:
        dbias = ar.xp.reshape(dbias, tuple(bias.shape))
    return dx, dscale, dbias


def formulas(arithmetic: Callable[[Array], Arithmetic]) -> tuple[Kernel, Kernel]:
    """The rows that every table ends with: the formulas in float64, and the formulas in pairs.

    ``arithmetic(x)`` is the framework's own.
    """

    def row(name: str, of: Callable[[Array], Arithmetic], unsupported: Any) -> Kernel:
        def forward(norm: Norm, x: Array, scale: Any, bias: Any, call: Call) -> Array:
            ar = of(x).for_rows_of(x)
            with ar.scope():
                return apply(ar, norm, x, scale, bias, call)

        def vjp(norm: Norm, dy: Array, x: Array, scale: Any, bias: Any, call: Call) -> Any:
            ar = of(x).for_rows_of(x)
            with ar.scope():
                return apply_vjp(ar, norm, dy, x, scale, bias, call)

        return Kernel(name, "any", forward, vjp, unsupported)

    def no_float64(x: Array, call: Call) -> str | None:
        return None if arithmetic(x).has_float64(x) else "the device has no float64"

    return (
        row("array_api", arithmetic, no_float64),
        row("pairs", lambda x: arithmetic(x).pairs(x), only_rounded_once),
    )


def only_rounded_once(x: Array, call: Call) -> str | None:
    """Why a kernel for normkit's own rounding cannot serve a convention with roundings of its own."""
    if call.convention.rounds_once:
        return None
    return "pairs only round as convention 'standard' does"


KERNELS = formulas(arithmetic_of)


def call_norm(
    norm: Norm, x: Array, scale: Array | None, bias: Array | None, **options: Any
) -> Array:
    """The public forward of ``norm`` on arrays of any framework."""
    call = check_call(norm, x, scale, bias, **options)
    return choose(KERNELS, x, call).forward(norm, x, scale, bias, call)


def call_norm_vjp(
    norm: Norm, dy: Array, x: Array, scale: Array | None, bias: Array | None, **options: Any
) -> tuple[Array, Array | None, Array | None]:
    """The public vjp of ``norm`` on arrays of any framework."""
    call = check_call(norm, x, scale, bias, dy=dy, **options)
    dx, dscale, dbias = choose(KERNELS, x, call).vjp(norm, dy, x, scale, bias, call)
    return dx, dscale, dbias
