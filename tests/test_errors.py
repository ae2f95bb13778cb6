"""The one error contract: the same text from the core and from every adapter."""

import importlib
import re
import subprocess
import sys
from typing import Any

import normkit.numpy
import numpy as np
import pytest
from backends import Subject

import normkit
from normkit._kernel import Kernel, choose
from normkit._norm import Call
from normkit.cli.backends import find_backends

_X = np.ones((2, 4), np.float32)
_SCALE = np.ones(4, np.float32)

# (what is wrong, changed arguments, error type, the whole text)
_CASES: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (
        "integer x",
        {"x": np.ones((2, 4), np.int32)},
        TypeError,
        (
            "x must be real floating (float16, bfloat16, float32, float64); got int32; "
            "cast it first, for example to float32"
        ),
    ),
    (
        "bool x",
        {"x": np.ones((2, 4), bool)},
        TypeError,
        (
            "x must be real floating (float16, bfloat16, float32, float64); got bool; "
            "cast it first, for example to float32"
        ),
    ),
    (
        "complex x",
        {"x": np.ones((2, 4), np.complex64)},
        TypeError,
        (
            "x must be real floating (float16, bfloat16, float32, float64); got complex64; "
            "cast it first, for example to float32"
        ),
    ),
    (
        "integer scale",
        {"scale": np.ones(4, np.int32)},
        TypeError,
        (
            "scale (weight in torch) must be real floating (float16, bfloat16, float32, float64); "
            "got int32; cast it first, for example to float32"
        ),
    ),
    (
        "complex bias",
        {"bias": np.ones(4, np.complex64)},
        TypeError,
        (
            "bias must be real floating (float16, bfloat16, float32, float64); got complex64; "
            "cast it first, for example to float32"
        ),
    ),
    (
        "scale too short",
        {"scale": np.ones(3, np.float32)},
        ValueError,
        (
            "scale (weight in torch) must have shape (4,), the sizes of the normalised axes (1,) of x "
            "of shape (2, 4) in ascending order; got (3,); reshape it or change axis"
        ),
    ),
    (
        "scale of the whole shape",
        {"scale": _X},
        ValueError,
        (
            "scale (weight in torch) must have shape (4,), the sizes of the normalised axes (1,) of x "
            "of shape (2, 4) in ascending order; got (2, 4); reshape it or change axis"
        ),
    ),
    (
        "scalar bias",
        {"bias": np.float32(1).reshape(())},
        ValueError,
        (
            "bias must have shape (4,), the sizes of the normalised axes (1,) of x of shape (2, 4) in "
            "ascending order; got (); reshape it or change axis"
        ),
    ),
    (
        "axis out of range",
        {"axis": 2},
        ValueError,
        "axis must lie in -2 .. 1 for x of shape (2, 4); got 2; pass an axis that x has",
    ),
    (
        "negative axis out of range",
        {"axis": (-1, -3)},
        ValueError,
        "axis must lie in -2 .. 1 for x of shape (2, 4); got -3; pass an axis that x has",
    ),
    (
        "repeated axis",
        {"axis": (1, -1)},
        ValueError,
        "axis must name each axis once; got (1, -1) for x of shape (2, 4); drop the repeated one",
    ),
    (
        "no axis",
        {"axis": ()},
        ValueError,
        "axis must name at least one axis; got (); pass for example -1",
    ),
    (
        "fractional axis",
        {"axis": 1.5},
        TypeError,
        "axis must be an int or a tuple of ints; got 1.5; pass for example -1",
    ),
    (
        "bool axis",
        {"axis": True},
        TypeError,
        "axis must be an int or a tuple of ints; got True; pass for example -1",
    ),
    (
        "0-d x",
        {"x": np.float32(1).reshape(()), "scale": None},
        ValueError,
        "x must have at least one axis to normalise over; got shape (); reshape it to (1,)",
    ),
    (
        "empty normalised axis",
        {"x": np.ones((2, 0), np.float32), "scale": None},
        ValueError,
        (
            "a normalised axis must hold at least one element; got axis 1 of x of shape (2, 0); an "
            "empty batch is fine, an empty row has no mean"
        ),
    ),
    (
        "negative eps",
        {"eps": -1e-6},
        ValueError,
        (
            "eps must be finite and at least 0, in units of x squared; got -1e-06; pass for example "
            "1e-6"
        ),
    ),
    (
        "eps NaN",
        {"eps": float("nan")},
        ValueError,
        "eps must be finite and at least 0, in units of x squared; got nan; pass for example 1e-6",
    ),
    (
        "infinite eps",
        {"eps": float("inf")},
        ValueError,
        "eps must be finite and at least 0, in units of x squared; got inf; pass for example 1e-6",
    ),
    (
        "eps of text",
        {"eps": "1e-6"},
        TypeError,
        "eps must be a real number; got str; pass for example 1e-6",
    ),
    (
        "eps for each row",
        {"eps": np.ones(2)},
        TypeError,
        "eps must be a real number; got numpy.ndarray; pass for example 1e-6",
    ),
]

_NO_CONVENTION = "convention must be a name known for {op}; got 'lama'; pass one of 'standard', "
_BY_NAME = {case[0]: case for case in _CASES}


@pytest.mark.parametrize("wrong", _BY_NAME)
def test_message(backend: Subject, op: str, wrong: str) -> None:
    _, changed, kind, text = _BY_NAME[wrong]
    given = {"x": _X, "scale": _SCALE, "bias": None, **changed}
    arrays = [given.pop(name) for name in ("x", "scale", "bias")]
    own = [a for a in arrays[1:] if a is not None and a.shape != (4,)]
    if backend.label.startswith("flax") and own:
        pytest.skip("a Flax layer makes its parameters itself, in the right shape")
    if backend.label == "torch:compile" and wrong == "fractional axis":
        pytest.skip("the compiler makes the number symbolic, which no message can print")
    with pytest.raises(Exception, match=re.escape(text)) as caught:
        backend.run(op, *arrays, **given)
    if backend.label != "torch:compile":  # which puts the text into an error of its own
        assert type(caught.value) is kind
        assert str(caught.value) == text


@pytest.mark.parametrize("wrong", _BY_NAME)
@pytest.mark.parametrize("adapter", ["numpy", "torch", "jax"])
def test_message_of_every_function(adapter: str, wrong: str) -> None:
    """add_* and *_vjp refuse what the norms refuse."""
    backend = _adapter(adapter)
    _, changed, kind, text = _BY_NAME[wrong]
    given = {"x": _X, "scale": _SCALE, "bias": None, **changed}
    x, scale, bias = (given.pop(name) for name in ("x", "scale", "bias"))
    float_x = np.ones(x.shape, np.float32)
    for function in ("rms_norm", "layer_norm"):
        with pytest.raises(kind, match=f"^{re.escape(text)}$"):
            backend.run(f"add_{function}", x, x, scale, bias, **given)
        with pytest.raises(kind, match=f"^{re.escape(text)}$"):
            backend.run(f"{function}_vjp", float_x, x, scale, bias, **given)


def test_shape_and_dtype_of_residual_and_gradient(backend: Subject, op: str) -> None:
    if f"add_{op}" not in backend.ops:
        pytest.skip("Flax layers have no residual")
    shape = "must have the shape of x, (2, 4); got (4,); broadcast it first"
    _raises(backend, ValueError, f"residual {shape}", f"add_{op}", _X, _SCALE, _SCALE)
    text = "residual must have the dtype of x, float32; got float64; cast one of the two"
    _raises(backend, TypeError, text, f"add_{op}", _X, _X.astype(np.float64), _SCALE)
    if backend.label != "torch:compile":
        _raises(backend, ValueError, f"dy {shape}", f"{op}_vjp", _SCALE, _X, _SCALE)


def test_convention(backend: Subject, op: str) -> None:
    if backend.label.startswith("flax"):
        pytest.skip("covered by test_module_options")
    _raises(backend, ValueError, _NO_CONVENTION.format(op=op), op, _X, convention="lama")
    text = (
        "convention must be a name or a normkit.Convention; got NoneType; "
        "pass for example 'standard'"
    )
    _raises(backend, TypeError, text, op, _X, convention=None)


def _raises(
    backend: Subject, kind: type[Exception], text: str, op: str, *arrays: Any, **options: Any
) -> None:
    with pytest.raises(Exception, match=re.escape(text)) as caught:
        backend.run(op, *arrays, **options)
    assert backend.label == "torch:compile" or type(caught.value) is kind


def _adapter(name: str) -> Any:
    found = [b for b in find_backends()[0] if b.label == f"{name}:cpu"]
    if not found:
        pytest.skip(find_backends()[1][f"{name}:cpu"])
    return found[0]


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("function", ["rms_norm", "layer_norm"])
def test_arrays_of_two_frameworks(name: str, function: str) -> None:
    backend = _adapter(name)
    other = _adapter("torch" if name == "numpy" else "numpy")
    x, scale = backend.put(_X), other.put(_SCALE)
    text = (
        f"all arrays must come from one framework; got x from {name} and scale (weight in torch) "
        f"from {other.framework}; convert them to one first"
    )
    for functions in (backend.functions, normkit):
        with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
            getattr(functions, function)(x, scale)
    text = (
        f"x must be a {name} array for normkit.{name}; got one from {other.framework}; "
        f"convert it, or call normkit.{other.framework} or normkit itself"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        getattr(backend.functions, function)(other.put(_X))


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_what_is_no_array(name: str) -> None:
    backend = _adapter(name)
    for given, kind in ([[1.0, 2.0]], "list"), (1.0, "float"):
        text = (
            f"x must be an array of a framework (numpy, torch, jax, ...); got {kind}; convert it "
            "first, for example with numpy.asarray"
        )
        for functions in (backend.functions, normkit):
            with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
                functions.rms_norm(given)


def test_flax_layers_refuse_arrays_of_other_frameworks() -> None:
    nnx = pytest.importorskip("flax.nnx")
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    layers, linen = (importlib.import_module(f"normkit.flax{m}") for m in ("", ".linen"))
    text = re.escape("x must be a jax array for normkit.jax; got one from torch")
    for name in ("RMSNorm", "LayerNorm"):
        with pytest.raises(TypeError, match=text):
            getattr(layers, name)(4, rngs=nnx.Rngs(0))(torch.ones(2, 4))
        with pytest.raises(TypeError, match=text):
            getattr(linen, name)().init(jax.random.key(0), torch.ones(2, 4))


def test_module_options() -> None:
    """Modules refuse eps and convention when they are built, not at the first call."""
    torch = pytest.importorskip("normkit.torch")
    flax = pytest.importorskip("normkit.flax")
    from flax import nnx

    builders = [
        lambda eps=1e-6, **options: torch.RMSNorm(4, eps, **options),
        lambda eps=1e-6, **options: torch.LayerNorm(4, eps, **options),
        lambda eps=1e-6, **options: flax.RMSNorm(4, epsilon=eps, rngs=nnx.Rngs(0), **options),
        lambda eps=1e-6, **options: flax.LayerNorm(4, epsilon=eps, rngs=nnx.Rngs(0), **options),
    ]
    for build in builders:
        with pytest.raises(ValueError, match=r"^eps must be finite and at least 0, .* got -1.0;"):
            build(-1.0)
        text = _NO_CONVENTION.partition("{op}")[0]
        with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
            build(convention="lama")


def test_module_width() -> None:
    torch = pytest.importorskip("torch")
    layers = importlib.import_module("normkit.torch")
    text = (
        "x must have the sizes (4,) along the normalised axes (1,); got shape (2, 5); build the "
        "layer for this width or change axis"
    )
    for layer in (layers.RMSNorm(4), layers.LayerNorm(4, elementwise_affine=False)):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            layer(torch.ones(2, 5))
    text = "bias=True must come with elementwise_affine=True"
    with pytest.raises(ValueError, match=text):
        layers.RMSNorm(4, elementwise_affine=False, bias=True)


def test_flax_width() -> None:
    nnx = pytest.importorskip("flax.nnx")
    jnp = pytest.importorskip("jax.numpy")
    layer = importlib.import_module("normkit.flax").RMSNorm(4, use_scale=False, rngs=nnx.Rngs(0))
    text = (
        "x must have num_features = 4 elements along feature_axes; got (5,) of shape (2, 5); "
        "build the layer for this width"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        layer(jnp.ones((2, 5)))


def test_traced_eps_is_refused() -> None:
    jax = pytest.importorskip("jax")
    rms_norm = importlib.import_module("normkit.jax").rms_norm
    text = "eps must be a real number that is known before the call is traced; got jax"
    with pytest.raises(TypeError, match=text):
        jax.jit(lambda x, eps: rms_norm(x, eps=eps))(jax.numpy.ones(4), 1e-6)


@pytest.mark.parametrize("framework", ["torch", "jax", "flax"])
def test_missing_framework(framework: str) -> None:
    """Hidden from the import system, a framework is missed with the extra to install."""
    code = (
        "import importlib.util as u; find = u.find_spec;"
        f"u.find_spec = lambda name, *a: None if name == {framework!r} else find(name, *a);"
        f"import normkit.{framework}"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"ImportError: normkit.{framework} needs {framework}, which is not installed; "
        f"run: pip install 'normkit[{framework}]'"
    )


def test_masked_array_is_refused() -> None:
    masked = np.ma.masked_less(np.float32([[1, -1, 2, 3]]), 0)
    text = "must not be masked, as every element counts; got numpy.ma.MaskedArray; fill it first"
    with pytest.raises(TypeError, match=f"^x {re.escape(text)}"):
        normkit.numpy.rms_norm(masked)
    with pytest.raises(
        TypeError, match=f"^{re.escape('scale (weight in torch)')} {re.escape(text)}"
    ):
        normkit.numpy.layer_norm(_X, masked[0])


def test_out_of_the_wrong_kind() -> None:
    with pytest.raises(ValueError, match=r"^out must have the shape of x, \(2, 4\); got \(4,\);"):
        normkit.numpy.rms_norm(_X, out=np.empty(4, np.float32))
    with pytest.raises(
        TypeError, match=r"^out must have the dtype of the result, float32; got float64;"
    ):
        normkit.numpy.rms_norm(_X, out=np.empty((2, 4)))


def _kernels(**reasons: str | None) -> list[Kernel]:
    return [Kernel(k, "any", len, len, lambda x, call, why=why: why) for k, why in reasons.items()]


def _named(kernel: str | None) -> Call:
    return Call(1e-6, (1,), normkit.Convention(), kernel)


def test_choice_of_a_kernel() -> None:
    kernels = _kernels(fast="needs an accelerator", array_api=None)
    assert choose(kernels, _X, _named(None)).name == "array_api"
    assert choose(kernels, _X, _named("array_api")).name == "array_api"
    text = (
        "a kernel must support these arrays; none does here (fast: needs an accelerator; "
        "array_api: supported); name another"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        choose(kernels, _X, _named("fast"))
    text = "kernel must be one of the table's; got 'faster'; known: fast: needs an accelerator; "
    with pytest.raises(ValueError, match=re.escape(text)):
        choose(kernels, _X, _named("faster"))
    with pytest.raises(ValueError, match=r"none does here \(fast: no\)"):
        choose(_kernels(fast="no"), _X, _named(None))
