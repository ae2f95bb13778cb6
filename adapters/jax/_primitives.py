"""A norm and its derivatives as JAX primitives, each computed from the inputs alone.

    normkit_norm(inputs)             y                     derivative: normkit_jvp
    normkit_jvp(inputs, tangents)    tangent of y          linear in the tangents; transposed: vjp
    normkit_vjp(inputs, dy)          dx, dscale, dbias     linear in dy; transposed: jvp

So the backward pass is the core's vjp, nothing but the inputs is kept for it, and forward mode
stays. Higher derivatives are those that JAX takes of the formula. On one CPU, y and the vjp are
computed in blocks of rows.

Inputs are x and those of scale and bias that are given; ``names`` says which.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from normkit._norm import Call, Norm, along, apply, apply_vjp

from . import _cpu
from ._arithmetic import ARITHMETIC, JaxArithmetic, SmoothArithmetic
from ._blocks import as_rows, over_blocks, worth_blocks

Names = tuple[str, ...]

_SMOOTH = SmoothArithmetic()
_ALL = ("x", "scale", "bias")


def norm_of(norm: Norm, x: Any, scale: Any, bias: Any, call: Call) -> Any:
    """``norm`` on checked public arguments."""
    inputs, names = _given(x, scale, bias)
    return _NORM.bind(*inputs, norm=norm, call=call, names=names)


def vjp_of(norm: Norm, dy: Any, x: Any, scale: Any, bias: Any, call: Call) -> tuple[Any, Any, Any]:
    """``norm.vjp`` on checked public arguments."""
    inputs, names = _given(x, scale, bias)
    found = _VJP.bind(*inputs, dy, norm=norm, call=call, names=names, moved=names)
    dx, dscale, dbias = map(dict(zip(names, found, strict=True)).get, _ALL)
    return dx, dscale, dbias


def _given(*inputs: Any) -> tuple[list[Any], Names]:
    named = {name: a for name, a in zip(_ALL, inputs, strict=True) if a is not None}
    return list(named.values()), tuple(named)


# ---- y, with and without its roundings ---------------------------------------------------------


def _apply(ar: JaxArithmetic, inputs: Sequence[Any], norm: Norm, call: Call, names: Names) -> Any:
    named = dict(zip(names, inputs, strict=True))
    with ar.scope():
        x, scale, bias = (named.get(name) for name in _ALL)
        return apply(ar, norm, x, scale, bias, call)


def _forward(*inputs: Any, **of: Any) -> Any:
    return _apply(ARITHMETIC, inputs, **of)


def _forward_in_blocks(*inputs: Any, call: Call, **of: Any) -> Any:
    x, *parameters = inputs
    parameters = [along(p, x, call.axes, jnp.reshape) for p in parameters]
    shape = as_rows(x, parameters, call.axes)
    if shape is None or not worth_blocks(x):
        return _forward(*inputs, call=call, **of)
    flat = partial(_forward, call=_of_rows(call), **of)
    parameters = [_as_row(p, shape) for p in parameters]
    (y,), _ = over_blocks(lambda x: ([flat(x, *parameters)], []), [x.reshape(shape)])
    return y.reshape(x.shape)


def _forward_by_kernel(*inputs: Any, norm: Norm, call: Call, names: Names) -> Any:
    x, *parameters = inputs
    shape = _kernel_rows(x, parameters, call)
    if shape is None:
        return _forward(*inputs, norm=norm, call=call, names=names)
    named = {name: p.reshape(-1) for name, p in zip(names[1:], parameters, strict=True)}
    with ARITHMETIC.scope():
        arrays = x.reshape(shape), named.get("scale"), named.get("bias")
        return _cpu.forward(_centre(norm), *arrays, call.eps).reshape(x.shape)


def _kernel_rows(x: Any, parameters: Sequence[Any], call: Call) -> tuple[int, int] | None:
    """(rows, width), if the kernel "numba" can take x and its parameters as they lie."""
    shape = as_rows(x, [along(p, x, call.axes, jnp.reshape) for p in parameters], call.axes)
    if shape is None or x.size == 0:
        return None
    width = math.prod(shape[1:])
    return (shape[0], width) if all(p.size == width for p in parameters) else None


def _centre(norm: Norm) -> bool | None:
    return True if norm.name == "layer_norm" else None


def _smooth(inputs: Sequence[Any], moved: Names, **of: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The formula without its roundings as a function of the inputs that move, and these."""
    where = [of["names"].index(name) for name in moved]

    def function(*moving: Any) -> Any:
        arrays = list(inputs)
        for i, array in zip(where, moving, strict=True):
            arrays[i] = array
        return _apply(_SMOOTH, arrays, **of)

    return function, [inputs[i] for i in where]


# ---- derivatives -------------------------------------------------------------------------------


def _jvp(*inputs_and_tangents: Any, moved: Names, **of: Any) -> Any:
    count = len(of["names"])
    function, moving = _smooth(inputs_and_tangents[:count], moved, **of)
    return jax.jvp(function, moving, list(inputs_and_tangents[count:]))[1]


def _vjp(*inputs_and_dy: Any, norm: Norm, call: Call, names: Names, moved: Names) -> list[Any]:
    *inputs, dy = inputs_and_dy
    named = dict(zip(names, inputs, strict=True))
    with ARITHMETIC.scope():
        x, scale, bias = (named.get(name) for name in _ALL)
        found = apply_vjp(ARITHMETIC, norm, dy, x, scale, bias, call)
    return [found[_ALL.index(name)] for name in moved]


def _vjp_in_blocks(*inputs_and_dy: Any, call: Call, moved: Names, **of: Any) -> list[Any]:
    x, *parameters, dy = inputs_and_dy
    parameters = [along(p, x, call.axes, jnp.reshape) for p in parameters]
    shape = as_rows(x, parameters, call.axes)
    if shape is None or not worth_blocks(x):
        return _vjp(*inputs_and_dy, call=call, moved=moved, **of)
    rows_first = tuple(sorted(moved, key=lambda name: name != "x"))
    flat = partial(_vjp, call=_of_rows(call), moved=rows_first, **of)
    count = rows_first.count("x")
    with ARITHMETIC.scope():
        # gradients have the dtype of their parameter: those of wide ones are not yet rounded
        wide = [ARITHMETIC.widen(_as_row(p, shape)) for p in parameters]

        def block(x: Any, dy: Any) -> tuple[list[Any], list[Any]]:
            found = flat(x, *wide, dy)
            return found[:count], found[count:]

        dx, totals = over_blocks(block, [x.reshape(shape), dy.reshape(shape)])
        found = dict(zip(rows_first, [*dx, *totals], strict=True))
        named = dict(zip(of["names"], inputs_and_dy, strict=False))
        return [
            ARITHMETIC.narrow(found[name], named[name].dtype).reshape(named[name].shape)
            for name in moved
        ]


def _vjp_by_kernel(
    *inputs_and_dy: Any, norm: Norm, call: Call, names: Names, moved: Names
) -> list[Any]:
    x, *parameters, dy = inputs_and_dy
    shape = _kernel_rows(x, parameters, call)
    if shape is None:
        return _vjp(*inputs_and_dy, norm=norm, call=call, names=names, moved=moved)
    named = dict(zip(names, inputs_and_dy, strict=False))
    scale = named["scale"].reshape(-1) if "scale" in named else None
    with ARITHMETIC.scope():
        rows = dy.reshape(shape), x.reshape(shape)
        found = _cpu.backward(_centre(norm), *rows, scale, "bias" in moved, call.eps)
        gradients = dict(zip(_ALL, found, strict=True))
        return [
            ARITHMETIC.narrow(gradients[name], named[name].dtype).reshape(named[name].shape)
            for name in moved
        ]


def _smooth_vjp(*inputs_and_dy: Any, moved: Names, **of: Any) -> list[Any]:
    *inputs, dy = inputs_and_dy
    function, moving = _smooth(inputs, moved, **of)
    y, pullback = jax.vjp(function, *moving)
    return list(pullback(dy.astype(y.dtype)))


def _of_rows(call: Call) -> Call:
    """``call`` for x as a list of rows."""
    return call._replace(axes=tuple(range(1, 1 + len(call.axes))))


def _as_row(parameter: Any, shape: tuple[int, ...]) -> Any:
    return parameter.reshape(1, *parameter.shape[parameter.ndim - len(shape) + 1 :])


# ---- the primitives ----------------------------------------------------------------------------


def _primitive(
    name: str,
    operations: Callable[..., Any],
    in_blocks: Callable[..., Any],
    by_kernel: Callable[..., Any],
    abstract: Any,
) -> Primitive:
    """A primitive that is ``operations``, and on one CPU ``in_blocks`` or ``by_kernel``."""
    primitive = Primitive(name)
    primitive.multiple_results = several = operations is _vjp

    def on_cpu(ctx: Any, *args: Any, **params: Any) -> Any:
        # XLA shares operations among devices, but not the turns of a loop
        module, function = ctx.module_context, operations
        if getattr(module.axis_context, "num_devices", 0) == 1:
            # what is exported may run where the kernel is not
            kernel = params["call"].kernel == "numba" and not module.lowering_parameters.for_export
            function = by_kernel if kernel else in_blocks
        return mlir.lower_fun(function, multiple_results=several)(ctx, *args, **params)

    static = ("norm", "call", "names", *(["moved"] if operations is not _forward else []))
    primitive.def_impl(jax.jit(primitive.bind, static_argnames=static))
    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(operations, multiple_results=several))
    mlir.register_lowering(primitive, on_cpu, platform="cpu")
    batching.primitive_batchers[primitive] = partial(_batch, primitive)
    return primitive


def _abstract_y(*avals: Any, call: Call, names: Names, **of: Any) -> Any:
    x = avals[0]
    if call.convention.rounds_once:
        return x
    y = jax.eval_shape(
        partial(_forward, call=call, names=names, norm=of["norm"]), *avals[: len(names)]
    )
    return x.update(dtype=y.dtype)


def _abstract_gradients(*avals: Any, names: Names, moved: Names, **of: Any) -> list[Any]:
    return [avals[names.index(name)] for name in moved]


def _batch(primitive: Primitive, arrays: Sequence[Any], at: Sequence[Any], **of: Any) -> Any:
    """The mapped axis becomes the first one, along which unmapped parameters repeat.

    Not in the vjp, where each of the mapped calls has gradients of its own.
    """
    names, axes = of["names"], of["call"].axes
    roles = [*names, *(("x",) if primitive is _VJP else of.get("moved", ()))]
    size = next(a.shape[i] for a, i in zip(arrays, at, strict=True) if i is not None)
    mapped = {role for role, i in zip(roles, at, strict=True) if i is not None} | {"x"}
    mapped |= set(names if primitive is _VJP else ())

    def front(array: Any, i: int | None, role: str) -> Any:
        if i is not None:
            return jnp.moveaxis(array, i, 0)
        return jnp.broadcast_to(array, (size if role in mapped else 1, *array.shape))

    arrays = [front(*each) for each in zip(arrays, at, roles, strict=True)]
    row = arrays[0][0]
    laid_out = [jax.vmap(lambda a: along(a, row, axes, jnp.reshape))(a) for a in arrays]
    call = of["call"]._replace(axes=tuple(a + 1 for a in axes))
    found = primitive.bind(*laid_out, **{**of, "call": call})
    if primitive is not _VJP:
        return found, 0
    shapes = [arrays[names.index(name)].shape for name in of["moved"]]
    return [g.reshape(s) for g, s in zip(found, shapes, strict=True)], [0] * len(found)


_NORM = _primitive("normkit_norm", _forward, _forward_in_blocks, _forward_by_kernel, _abstract_y)
_JVP = _primitive("normkit_jvp", _jvp, _jvp, _jvp, _abstract_y)
_VJP = _primitive("normkit_vjp", _vjp, _vjp_in_blocks, _vjp_by_kernel, _abstract_gradients)


def _differentiate_norm(inputs: Sequence[Any], tangents: Sequence[Any], **of: Any) -> Any:
    moving = [not isinstance(t, ad.Zero) for t in tangents]
    moved = tuple(name for name, moves in zip(of["names"], moving, strict=True) if moves)
    some = [t for t, moves in zip(tangents, moving, strict=True) if moves]
    return _NORM.bind(*inputs, **of), _JVP.bind(*inputs, *some, moved=moved, **of)


def _differentiate(
    primitive: Primitive,
    operations: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    **of: Any,
) -> Any:
    """The derivative of a derivative: JAX's own, of ``operations``."""
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def function(*some: Any) -> Any:
        arrays = list(primals)
        for i, array in zip(moving, some, strict=True):
            arrays[i] = array
        return operations(*arrays, **of)

    # without checkpoint, JAX would keep the wide rows
    points, directions = ([a[i] for i in moving] for a in (primals, tangents))
    _, found = jax.jvp(jax.checkpoint(function), points, directions)
    return primitive.bind(*primals, **of), found


def _transpose_jvp(ct: Any, *inputs_and_tangents: Any, moved: Names, **of: Any) -> list[Any]:
    count = len(of["names"])
    wanted = [ad.is_undefined_primal(t) for t in inputs_and_tangents[count:]]
    none = [None] * len(inputs_and_tangents)
    if isinstance(ct, ad.Zero):
        return none
    names = tuple(name for name, wants in zip(moved, wanted, strict=True) if wants)
    found = iter(_VJP.bind(*inputs_and_tangents[:count], ct, moved=names, **of))
    return none[:count] + [next(found) if wants else None for wants in wanted]


def _transpose_vjp(cts: Sequence[Any], *inputs_and_dy: Any, moved: Names, **of: Any) -> list[Any]:
    *inputs, dy = inputs_and_dy
    some = [(name, ct) for name, ct in zip(moved, cts, strict=True) if not isinstance(ct, ad.Zero)]
    if not some:
        return [None] * len(inputs_and_dy)
    found = _JVP.bind(*inputs, *(ct for _, ct in some), moved=tuple(n for n, _ in some), **of)
    return [None] * len(inputs) + [found.astype(dy.aval.dtype)]


ad.primitive_jvps[_NORM] = _differentiate_norm
ad.primitive_jvps[_JVP] = partial(_differentiate, _JVP, _jvp)
ad.primitive_jvps[_VJP] = partial(_differentiate, _VJP, _smooth_vjp)
ad.primitive_transposes[_JVP] = _transpose_jvp
ad.primitive_transposes[_VJP] = _transpose_vjp
