"""Every error text of the library, so that all adapters refuse the same input in the same words.

TypeError for a wrong kind of object or dtype, ValueError for a wrong shape or value. A message
states the rule, what came, and the fix.
"""

import importlib.util
import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import array_api_compat

Axes = tuple[int, ...]

HALF_DTYPES = ("float16", "bfloat16")
FLOAT_DTYPES = (*HALF_DTYPES, "float32", "float64")

_ALIASES = {"scale": "scale (weight in torch)"}


def dtype_name(dtype: Any) -> str:
    """Name of a dtype of any framework, such as ``"bfloat16"``.

    The standard has no bfloat16 and ``numpy.isdtype`` refuses ml_dtypes' one, so dtypes are
    told apart by name.
    """
    return str(getattr(dtype, "name", None) or str(dtype).rsplit(".", 1)[-1])


def framework(name: str, array: Any) -> str:
    """Name of the framework of ``array``, such as ``"torch"``; TypeError if it is no array."""
    try:
        namespace = array_api_compat.array_namespace(array)
    except TypeError:
        raise TypeError(
            f"{_said(name)} must be an array of a framework (numpy, torch, jax, ...); "
            f"got {_type_name(array)}; convert it first, for example with numpy.asarray"
        ) from None
    return str(namespace.__name__.removeprefix("array_api_compat.").split(".")[0])


class Host(NamedTuple):
    """The framework an adapter speaks for, and the types of its arrays."""

    name: str
    array_type: type | tuple[type, ...]


def same_framework(host: Host | None, **arrays: Any) -> None:
    """All arrays that are not None must come from one framework, the ``host`` if there is one."""
    given = {name: array for name, array in arrays.items() if array is not None}
    if host is not None and all(isinstance(array, host.array_type) for array in given.values()):
        return
    names = {name: framework(name, array) for name, array in given.items()}
    if len(set(names.values())) > 1:
        got = " and ".join(f"{_said(name)} from {which}" for name, which in names.items())
        raise TypeError(
            f"all arrays must come from one framework; got {got}; convert them to one first"
        )
    if host is not None:
        name, which = next(iter(names.items()))
        raise TypeError(
            f"{_said(name)} must be a {host.name} array for normkit.{host.name}; got one from "
            f"{which}; convert it, or call normkit.{which} or normkit itself"
        )


def real_floating(**arrays: Any) -> None:
    """Every array that is not None must have one of the dtypes in ``FLOAT_DTYPES``."""
    for name, array in arrays.items():
        if array is not None and dtype_name(array.dtype) not in FLOAT_DTYPES:
            raise TypeError(
                f"{_said(name)} must be real floating ({', '.join(FLOAT_DTYPES)}); "
                f"got {dtype_name(array.dtype)}; cast it first, for example to float32"
            )


def no_mask(**arrays: Any) -> None:
    """NumPy's masked arrays are refused: the masked elements would count."""
    for name, array in arrays.items():
        if getattr(array, "mask", None) is not None:
            raise TypeError(
                f"{_said(name)} must not be masked, as every element counts; "
                f"got {_type_name(array)}; fill it first, for example with x.filled(0)"
            )


def axes(shape: Sequence[int], axis: int | Sequence[int]) -> Axes:
    """``axis`` as distinct non-negative ints in ascending order, none of them of size 0."""
    given = axis if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,)
    rank = len(shape)
    try:
        wanted = [operator.index(a) for a in given]
    except TypeError:
        wanted = []
    if len(wanted) != len(given) or any(isinstance(a, bool) for a in given):
        raise TypeError(
            f"axis must be an int or a tuple of ints; got {axis!r}; pass for example -1"
        )
    if rank == 0:
        raise ValueError(
            "x must have at least one axis to normalise over; got shape (); reshape it to (1,)"
        )
    if not wanted:
        raise ValueError("axis must name at least one axis; got (); pass for example -1")
    for a in wanted:
        if not -rank <= a < rank:
            raise ValueError(
                f"axis must lie in {-rank} .. {rank - 1} for x of shape {_tuple(shape)}; got {a}; "
                "pass an axis that x has"
            )
    ascending = tuple(sorted(a % rank for a in wanted))
    if len(set(ascending)) < len(ascending):
        raise ValueError(
            f"axis must name each axis once; got {_tuple(wanted)} for x of shape {_tuple(shape)}; "
            "drop the repeated one"
        )
    for a in ascending:
        if shape[a] == 0:
            raise ValueError(
                f"a normalised axis must hold at least one element; got axis {a} of x of shape "
                f"{_tuple(shape)}; an empty batch is fine, an empty row has no mean"
            )
    return ascending


def parameter_shape(name: str, parameter: Any, shape: Sequence[int], normalised: Axes) -> None:
    """A scale or bias must have the sizes of the normalised axes."""
    if parameter is None:
        return
    expected = tuple(shape[a] for a in normalised)
    if tuple(parameter.shape) != expected:
        raise ValueError(
            f"{_said(name)} must have shape {_tuple(expected)}, the sizes of the normalised axes "
            f"{_tuple(normalised)} of x of shape {_tuple(shape)} in ascending order; "
            f"got {_tuple(parameter.shape)}; reshape it or change axis"
        )


def normalised_sizes(shape: Sequence[int], normalised: Axes, expected: Sequence[int]) -> None:
    """x must have the sizes a module was built for along its normalised axes."""
    if tuple(shape[a] for a in normalised) != tuple(expected):
        raise ValueError(
            f"x must have the sizes {_tuple(expected)} along the normalised axes "
            f"{_tuple(normalised)}; "
            f"got shape {_tuple(shape)}; build the layer for this width or change axis"
        )


def feature_count(shape: Sequence[int], sizes: Sequence[int], expected: int) -> None:
    """x must have as many features as a module was built for; ``sizes`` are its feature axes'."""
    if math.prod(sizes) != expected:
        raise ValueError(
            f"x must have num_features = {expected} elements along feature_axes; "
            f"got {_tuple(sizes)} of shape {_tuple(shape)}; build the layer for this width"
        )


def same_shape(name: str, array: Any, shape: Sequence[int]) -> None:
    """``array`` must have the shape of x."""
    if tuple(array.shape) != tuple(shape):
        raise ValueError(
            f"{_said(name)} must have the shape of x, {_tuple(shape)}; "
            f"got {_tuple(array.shape)}; broadcast it first"
        )


def same_dtype(name: str, array: Any, x: Any) -> None:
    """``array`` must have the dtype of x."""
    if array.dtype != x.dtype:
        raise TypeError(
            f"{_said(name)} must have the dtype of x, {dtype_name(x.dtype)}; "
            f"got {dtype_name(array.dtype)}; cast one of the two"
        )


def same_device(name: str, array: Any, x: Any) -> None:
    """``array`` must lie where x does."""
    if array.device != x.device:
        raise ValueError(
            f"{_said(name)} must be on the device of x, {x.device}; got {array.device}; move one of "
            f"the two"
        )


def no_memory(shape: Any) -> ValueError:
    """For a tensor whose storage was freed, as a sharded model does between its uses."""
    return ValueError(
        f"a tensor must hold its numbers; got one of shape {tuple(shape)} whose storage was freed; "
        f"gather it first"
    )


def epsilon(eps: Any) -> float:
    """``eps`` as a Python float, so that a typed scalar cannot change a result's dtype."""
    number = isinstance(eps, numbers.Real) and not isinstance(eps, bool)
    if not number and tuple(getattr(eps, "shape", (0,))) != ():
        raise TypeError(f"eps must be a real number; got {_type_name(eps)}; pass for example 1e-6")
    try:
        value = float(eps)
    except TypeError:  # a traced value among others: kernels are chosen before values exist
        raise TypeError(
            f"eps must be a real number that is known before the call is traced; "
            f"got {_type_name(eps)}; pass a Python float, for example 1e-6"
        ) from None
    if not 0 <= value < math.inf:  # not math.isfinite, which torch.compile cannot trace
        raise ValueError(
            f"eps must be finite and at least 0, in units of x squared; got {value}; "
            "pass for example 1e-6"
        )
    return value


def convention_name(name: Any) -> None:
    """What is no `Convention` must be the name of one."""
    if not isinstance(name, str):
        raise TypeError(
            f"convention must be a name or a normkit.Convention; got {_type_name(name)}; "
            "pass for example 'standard'"
        )


def no_convention(
    name: str, kind: str, other_kinds: Sequence[str], known: Iterable[str]
) -> ValueError:
    """The error for a name that is none of ``kind``'s."""
    where = f", which is one of {other_kinds[0]} only" if other_kinds else ""
    names = ", ".join(f"{k!r}" for k in known)
    return ValueError(
        f"convention must be a name known for {kind}; got {name!r}{where}; pass one of {names}, "
        "or a normkit.Convention"
    )


def same_kind(given: str, wanted: str) -> None:
    """A convention must be one of the norm that it is passed to."""
    if given != wanted:
        raise ValueError(
            f"the convention must be one of {wanted}, as gate, order, root and eps differ between the "
            f"norms; got one of {given}; pass one with kind={wanted!r}"
        )


def parts_of_row(n: int, partial: float, groups: int) -> None:
    """A row of n elements must have the parts that the convention takes statistics of."""
    if n % groups:
        raise ValueError(
            f"a row must be divisible into the convention's groups={groups}; got {int(n)} "
            "elements along the normalised axes; change groups or the width"
        )
    if int(partial * n) < 1:
        raise ValueError(
            f"the convention's partial={partial} must leave at least one element of a row; "
            f"got {int(n)} along the normalised axes; raise partial"
        )


def whole_rows(partial: float, groups: int, axis_name: Any) -> None:
    """Rows that are split over devices have no parts of their own."""
    if axis_name is not None and (partial != 1 or groups != 1):
        raise ValueError(
            f"a row that is split over axis_name={axis_name!r} must be one group; got "
            f"partial={partial}, groups={groups}; gather the row first"
        )


def has_dtype(xp: Any, name: str) -> None:
    """The convention's dtypes must be those of the framework."""
    if not hasattr(xp, name):
        raise TypeError(
            f"the convention rounds to {name}, a dtype that the framework must have; "
            f"{xp.__name__} has none; use another convention or framework"
        )


def one_of(field: str, value: Any, permitted: Sequence[Any]) -> None:
    """A field of a convention must have a value that is known."""
    if value not in permitted:
        known = ", ".join(map(repr, permitted))
        raise ValueError(
            f"a convention's {field} must be one of {known}; got {value!r}; pass one of them"
        )


def finite(field: str, value: Any) -> float:
    """A field of a convention that is a number, as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"a convention's {field} must be a real number; got {_type_name(value)}; pass a float"
        )
    number = float(value)
    if not math.isfinite(number) or (field == "partial" and not 0 < number <= 1):
        range_ = "lie in 0 < p <= 1" if field == "partial" else "be finite"
        raise ValueError(
            f"a convention's {field} must {range_}; got {number}; pass for example 1.0"
        )
    return number


def whole(field: str, value: Any) -> int:
    """A field of a convention that is a count, as an int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"a convention's {field} must be an int; got {_type_name(value)}; pass for example 1"
        )
    if value < 1:
        raise ValueError(
            f"a convention's {field} must be at least 1; got {int(value)}; pass for example 1"
        )
    return int(value)


_GATE_FIX = {True: "gate='before' or gate='after'", False: "kind='gated_rms_norm'"}


def no_contradiction(c: Any) -> None:
    """The fields of the convention ``c`` must have a meaning together."""
    rms, exact = c.kind != "layer_norm", c.statistics == "exact"
    gated = c.kind == "gated_rms_norm"
    a_dtype = "pass the dtype of the statistics"
    for contradiction, reason in (
        (
            rms and c.variance != "two_pass",
            f"variance={c.variance!r} must go with a mean, and rms_norm has none; leave it out",
        ),
        (
            rms and c.order == "affine",
            (
                "order='affine' must have a mean to fold into the bias, and rms_norm has none; "
                "pass order='scale_statistic'"
            ),
        ),
        (
            not rms and c.order == "scale_input",
            (
                "order='scale_input' must go with kind='rms_norm', as no layer_norm scales before "
                "the statistics; pass another order"
            ),
        ),
        (
            not rms and c.reduction != "mean",
            (
                f"reduction={c.reduction!r} must go with kind='rms_norm', as a variance is a mean; "
                "leave it out"
            ),
        ),
        (
            gated == (c.gate is None),
            (
                f"gate={c.gate!r} must go with kind={'rms_norm' if gated else 'gated_rms_norm'!r}, "
                f"got kind={c.kind!r}; pass {_GATE_FIX[gated]}"
            ),
        ),
        (
            not gated and c.activation != "silu",
            f"activation={c.activation!r} must go with a gate, and {c.kind} has none; leave it out",
        ),
        (
            not rms and c.partial != 1,
            (
                f"partial={c.partial} must go with kind='rms_norm', as layer_norm's mean is undefined "
                "on the features left out; leave it out"
            ),
        ),
        (
            exact and c.variance != "two_pass",
            f"variance={c.variance!r} must go with rounded statistics, and 'exact' rounds none; "
            + a_dtype,
        ),
        (
            exact and c.root == "divide",
            "root='divide' must go with rounded statistics, and 'exact' rounds none; " + a_dtype,
        ),
        (
            exact and c.eps_place == "floor",
            "eps_place='floor' must go with rounded statistics, and 'exact' rounds none; "
            + a_dtype,
        ),
        (
            c.root == "divide" and c.order not in ("normalize_first", "scale_input"),
            (
                f"root='divide' must go with order='normalize_first', as order={c.order!r} needs a "
                "factor r; pass root='reciprocal'"
            ),
        ),
        (
            c.eps_place != "inside" and c.root == "rsqrt",
            (
                "root='rsqrt' must go with eps_place='inside', as a root comes last there only; "
                "pass root='reciprocal' or 'divide'"
            ),
        ),
        (
            c.offset_added == "before_cast" and (c.offset == 0 or c.scale is None),
            (
                "offset_added='before_cast' must go with an offset and a cast of scale; got "
                f"offset={c.offset}, scale={c.scale!r}; leave it out"
            ),
        ),
        (
            c.partial != 1 and c.groups != 1,
            (
                f"partial={c.partial} must go with groups=1, as it is open which features of a group "
                "are meant; leave one of them out"
            ),
        ),
    ):
        if contradiction:
            raise ValueError(f"a convention's {reason}")


def dtype_of_result(name: str, array: Any, y: Any) -> None:
    """``array``, to which the result is written, must have its dtype."""
    if array.dtype != y.dtype:
        raise TypeError(
            f"{_said(name)} must have the dtype of the result, {dtype_name(y.dtype)}; "
            f"got {dtype_name(array.dtype)}; pass an array of that dtype"
        )


def no_layout(name: str, layout: str, fix: str) -> TypeError:
    """The error for a torch tensor whose elements do not lie in rows."""
    return TypeError(f"{_said(name)} must be a dense or jagged tensor; got {layout}; {fix}")


def bias_without_affine() -> ValueError:
    """The error for a module that is to have a bias and no affine parameters."""
    return ValueError(
        "bias=True must come with elementwise_affine=True, as the bias is an affine parameter; "
        "got elementwise_affine=False; drop one of the two"
    )


def no_kernel(name: str | None, reasons: dict[str, str]) -> ValueError:
    """The error for a call that no row of a kernel table serves."""
    why = "; ".join(f"{row}: {reason}" for row, reason in reasons.items())
    if name is not None and name not in reasons:
        return ValueError(f"kernel must be one of the table's; got {name!r}; known: {why}")
    return ValueError(f"a kernel must support these arrays; none does here ({why}); name another")


def unknown_argument(name: str) -> TypeError:
    """The error for a function whose arguments `identify` does not understand."""
    return TypeError(
        f"a norm must be f(x), f(x, scale) or f(x, scale, bias), all else with a default; "
        f"got one with the argument {name!r} too; wrap it, for example in "
        "lambda x, weight: f(x, weight, 1e-6)"
    )


def can_be_called(thing: Any) -> None:
    """What is to be identified must be a function or a module."""
    if not callable(thing):
        raise TypeError(
            f"a norm must be a function or a module; got {_type_name(thing)}; "
            "pass what is called with x"
        )


def library(name: Any, known: Sequence[str]) -> None:
    """A state is one of a known library."""
    if name not in known:
        raise ValueError(f"a library must be one of {', '.join(known)}; got {name!r}; pass one")


def parameter_of_norm(path: Any, last: Any, known: Iterable[str]) -> None:
    """A parameter inside a norm has a name that the library gives to one."""
    if last not in known:
        raise ValueError(
            f"a norm's parameter must be one of {', '.join(known)}; got {path!r}; leave its module "
            "out of norms, or name another library"
        )


def norms_in_state(missing: Sequence[Any]) -> None:
    """Every norm that is named has a parameter in the state."""
    if missing:
        raise ValueError(
            f"norms must be paths of modules with parameters in the state; got {missing}, which have "
            "none; take them out"
        )


def path_of_norm(path: str, known: Sequence[str]) -> None:
    """A path in ``names`` is that of a norm of the model."""
    if path not in known:
        raise ValueError(
            f"names must map the paths of norms; got {path!r}, which is none; the norms are "
            f"{', '.join(map(repr, known)) or 'none at all'}"
        )


def parameters_of_norm(path: str, given: Sequence[str], own: Sequence[str]) -> None:
    """A state has just the parameters that a norm has."""
    if set(given) != set(own):
        raise ValueError(
            f"the state must have the parameters of the norm {path!r}, {', '.join(own) or 'none'}; "
            f"got {', '.join(given) or 'none'}; build the norm with these, or map another path"
        )


def shape_of_parameter(name: str, got: Sequence[int], own: Sequence[int]) -> None:
    """An array has the shape of the parameter whose place it takes."""
    if tuple(got) != tuple(own):
        raise ValueError(
            f"an array for {name} must have its shape {_tuple(own)}; got {_tuple(got)}; "
            "map another path, or reshape it"
        )


def kept_dtype(before: Any, after: Any) -> None:
    """JAX has kept the dtype of an array."""
    if dtype_name(before) != dtype_name(after):
        raise TypeError(
            f"arrays must have a dtype that JAX keeps; got {dtype_name(before)}, which becomes "
            f"{dtype_name(after)}; cast it first, or set jax_enable_x64"
        )


def other_options(layer: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The warning for parameters that were saved by a layer with other options."""
    differ = [name for name in own if saved.get(name) != own[name]]
    return "; ".join(
        f"{layer} should have the {name} that its parameters were saved with, {saved.get(name)!r}; "
        f"it has {own[name]!r}; build it with the former"
        for name in differ
    )


def torch_module(model: Any, is_module: bool) -> None:
    """A census is of a torch module."""
    if not is_module:
        raise TypeError(
            f"a model must be a torch.nn.Module; got {_type_name(model)}; "
            "pass the model itself, not its class or its weights"
        )


def replacement_target(target: Any, keep_bias: bool) -> None:
    """Norms become the same norm of normkit, or RMSNorm."""
    if target not in (None, "rms_norm"):
        raise ValueError(
            f"target must be None, for the same norm, or 'rms_norm'; got {target!r}; leave it out"
        )
    if keep_bias and target is None:
        raise ValueError(
            "keep_bias is for target='rms_norm'; got it without target, where a bias always stays; "
            "leave it out"
        )


def names_something(pattern: str, found: bool, norms: Sequence[str]) -> None:
    """A name in a selection must fit a module."""
    if not found:
        some = ", ".join(sorted(norms)[:3]) or "none"
        raise ValueError(
            f"a name in select must be that of a norm; got {pattern!r}, which fits none; "
            f"the model has {some}{', ...' if len(norms) > 3 else ''}"
        )


def cannot_change(name: str, what: str, when: str) -> ValueError:
    """The error for a model in which no module can be replaced."""
    return ValueError(
        f"a model's modules must be its own to replace; {name or 'the model'} is {what}, which "
        f"keeps hold of the old ones; do it {when}"
    )


def still_there(name: str, is_there: bool) -> None:
    """Only what was put in a place is taken out again."""
    if not is_there:
        raise ValueError(
            f"undo must find the layers that were put in; at {name!r} there is another by now; "
            "undo what came later first"
        )


def same_outputs(before: Sequence[Any], after: Sequence[Any]) -> None:
    """A model gives outputs of the same shapes for the same sample."""
    if before != after:
        raise ValueError(
            f"a model must give outputs of the same shapes for one sample; got {before}, then "
            f"{after}; pass a sample whose outputs do not depend on chance"
        )


def no_linear_layer(name: str, kind: str, side: str) -> TypeError:
    """The error for a layer whose weights cannot take over a linear map."""
    what = "writer" if side == "out" else "reader"
    return TypeError(
        f"a {what} must be a linear layer of floating weights (Linear, Conv1D of transformers"
        f"{', Embedding, a convolution, or a parameter' if side == 'out' else ''}); "
        f"{name} is {kind}; name another, or leave the model as it is"
    )


def no_description(model: str, known: Iterable[str], arguments: str) -> ValueError:
    """The error for a model of which nothing says what reads and writes where."""
    return ValueError(
        f"a model must be of a kind that normkit has a description of ({', '.join(known)}); got "
        f"{model}, which has none inside; pass {arguments}"
    )


def not_exact(what: str, reason: str) -> ValueError:
    """The error for a fold that would give another function."""
    return ValueError(
        f"{what} must leave the outputs as they are; here it would not: {reason}; "
        "the model is as it was"
    )


def needs_sample(why: str) -> ValueError:
    """The error where there is no batch to prove a fold with."""
    return ValueError(
        f"a fold must be proved on a batch; {why}; pass sample=, the model's argument, a tuple of "
        "them, or a mapping of names"
    )


def fold_fits(fold: str, name: str, found: bool) -> None:
    """A name in a description must be that of a module or parameter."""
    if not found:
        raise ValueError(
            f"a name given to {fold} must be that of a module or a parameter; got {name!r}, which "
            "fits none; look at model.named_modules()"
        )


def probe_width(width: Any, least: int) -> None:
    """A row must be long enough for the probes."""
    if not isinstance(width, int) or isinstance(width, bool):
        raise TypeError(f"width must be an int; got {width!r}; pass for example 64")
    if width < least:
        raise ValueError(
            f"width must be at least {least}, or the probes say little; got {width}; "
            "build the norm for a longer row"
        )


def probe_dtypes(dtypes: Sequence[str]) -> None:
    """Probes come in the library's dtypes."""
    if not dtypes or any(d not in FLOAT_DTYPES for d in dtypes):
        raise ValueError(
            f"dtypes must be some of {', '.join(FLOAT_DTYPES)}; got {tuple(dtypes)}; "
            "pass for example ('float32', 'bfloat16')"
        )


def norm_kind(kind: Any, known: Sequence[str]) -> None:
    """A kind must be one of the known norms, or None for all."""
    if kind is not None and kind not in known:
        raise ValueError(
            f"kind must be one of {', '.join(known)}, or None for any; got {kind!r}; leave it out"
        )


def no_form(width: int, errors: dict[str, str]) -> ValueError:
    """The error for a thing that takes the trial input in no form."""
    reasons = list(dict.fromkeys(errors.values()))[:4]
    tried = "; ".join(reasons)
    return ValueError(
        f"a norm must give a result of the shape of x for x of width {width}; got none in any "
        f"of {len(errors)} forms ({tried}); pass width=, or a function that calls it"
    )


def require(module: str, extra: str) -> None:
    """ImportError with the extra to install, where ``module`` is not installed."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"normkit.{extra} needs {module}, which is not installed; "
            f"run: pip install 'normkit[{extra}]'",
            name=module,
        )


def _said(name: str) -> str:
    return _ALIASES.get(name, name)


def _tuple(shape: Sequence[int]) -> str:
    """The text of a tuple, made of strings: torch.compile cannot print a tuple of traced sizes."""
    sizes = [f"{int(size)}" for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def _type_name(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
