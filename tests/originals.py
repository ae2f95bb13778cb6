"""Installed originals as ``f(x, scale, bias, eps) -> y`` on NumPy arrays; a gate comes last."""

import importlib
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from normkit.cli.backends import Backend, find_backends
from normkit.testing import dtype_of

Original = Callable[..., Any]

_BACKENDS: dict[str, Backend] = {b.label: b for b in find_backends()[0]}


def _on(label: str, function: Any) -> Original:
    """``function`` of a framework's arrays as one of NumPy's."""
    backend = _BACKENDS[label]

    def run(x: Any, scale: Any, bias: Any, eps: Any, *gate: Any) -> Any:
        put = [None if a is None else backend.put(a) for a in (x, scale, bias, *gate)]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of mixed dtypes and the like: the original's affair
            return backend.get(function(*put[:3], eps, *put[3:]))

    return run


def on_torch(function: Any) -> Original:
    """A PyTorch function."""
    import torch

    def quiet(*arguments: Any) -> Any:
        with torch.no_grad():
            return function(*arguments)

    return _on("torch:cpu", quiet)


def on_jax(function: Any) -> Original:
    """A JAX function, eager."""
    return _on("jax:cpu", function)


# ---- PyTorch -----------------------------------------------------------------------------------


def torch_function(kind: str) -> Original:
    """F.rms_norm or F.layer_norm."""
    functional: Any = importlib.import_module("torch.nn.functional")
    if kind == "rms_norm":
        return on_torch(lambda x, s, b, eps: functional.rms_norm(x, x.shape[-1:], s, eps))
    return on_torch(lambda x, s, b, eps: functional.layer_norm(x, x.shape[-1:], s, b, eps))


def transformers_class(
    name: str,
    module: str,
    build: Any = lambda cls, n: cls(n),
    call: Any = lambda layer, *inputs: layer(*inputs),
    channel_axis: bool = False,
) -> Original:
    """A class of transformers, with the given parameters and eps put into it."""
    cls = getattr(importlib.import_module(f"transformers.models.{module}"), name)

    def run(x: Any, scale: Any, bias: Any, eps: Any, *gate: Any) -> Any:
        layer = build(cls, x.shape[-1])
        _put_parameters(layer, scale, bias)
        _put_eps(layer, eps)
        if not channel_axis:
            return call(layer, x, *gate)
        image = x.reshape(x.shape[0], 1, 1, -1).permute(0, 3, 1, 2).contiguous()
        return call(layer, image).permute(0, 2, 3, 1).reshape(x.shape)

    return on_torch(run)


def _put_parameters(layer: Any, scale: Any, bias: Any) -> None:
    import torch

    for path, _ in list(layer.named_parameters()):
        owner, _, leaf = path.rpartition(".")
        new = bias if leaf in ("bias", "beta") else scale
        if new is not None:
            parameter = torch.nn.Parameter(new, requires_grad=False)
            setattr(layer.get_submodule(owner), leaf, parameter)


def _put_eps(layer: Any, eps: float) -> None:
    for part in layer.modules():
        for name in ("eps", "variance_epsilon", "norm_eps"):
            if isinstance(getattr(part, name, None), int | float):
                setattr(part, name, eps)


def open_gate(layer: Any, x: Any) -> Any:
    """A norm gated by silu, under a gate whose silu is exactly 1 in float32."""
    import torch

    candidates = 1.2784 + torch.arange(0, 1000) * 2.0**-23
    gate = candidates[torch.nn.functional.silu(candidates) == 1][0]
    return layer(x, gate.expand(x.shape))


def query_of_zaya() -> Original:
    """The query part of ZayaQKNorm, whose eps is the spacing at 1 of the dtype of x."""
    module: Any = importlib.import_module("transformers.models.zaya.modeling_zaya")

    def run(x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        config = SimpleNamespace(head_dim=x.shape[-1], num_key_value_heads=1)
        both = x[None, :, None]
        return module.ZayaQKNorm(config)(both, both)[0][0, :, 0]

    return on_torch(run)


# ---- MLX and ONNX ------------------------------------------------------------------------------


def mlx(kind: str) -> Original:
    """mlx.core.fast's function on the CPU."""
    mx: Any = importlib.import_module("mlx.core")
    dtypes = {name: getattr(mx, name) for name in ("float32", "bfloat16", "float16")}
    names = {dtype: name for name, dtype in dtypes.items()}

    def put(array: Any) -> Any:
        if array is None:
            return None
        return mx.array(array.astype(np.float32)).astype(dtypes[array.dtype.name])

    def run(x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        if kind == "rms_norm":
            y = mx.fast.rms_norm(put(x), put(scale), eps)
        else:
            y = mx.fast.layer_norm(put(x), put(scale), put(bias), eps)
        return np.array(y.astype(mx.float32)).astype(dtype_of(names[y.dtype]))

    return run


def onnx(kind: str) -> Original:
    """The body that the specification gives for the operator, run node by node.

    A runtime is free to compute it otherwise, and onnxruntime does.
    """
    library: Any = importlib.import_module("onnx")
    reference: Any = importlib.import_module("onnx.reference")
    operator, version = {
        "rms_norm": ("RMSNormalization", 23),
        "layer_norm": ("LayerNormalization", 17),
    }[kind]
    outputs = ("Y",) if kind == "rms_norm" else ("Y", "Mean", "InvStdDev")

    def body(dtypes: list[str], attributes: dict[str, Any]) -> Any:
        helper, kinds = library.helper, library.TensorProto
        names = ["X", "Scale", "B"][: len(dtypes)]
        node = helper.make_node(operator, names, outputs, **attributes)
        shapes = (("rows", "n"), ("n",), ("n",))
        types = [
            helper.make_tensor_type_proto(getattr(kinds, dtype.upper().replace("32", "")), shape)
            for dtype, shape in zip(dtypes, shapes, strict=False)
        ]
        found = library.defs.get_schema(operator, version).get_context_dependent_function(
            node.SerializeToString(), [t.SerializeToString() for t in types]
        )
        function = library.FunctionProto()
        function.ParseFromString(found)
        return function

    def run(x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        arrays = [a for a in (x, scale, bias) if a is not None]
        attributes = {"axis": -1, "epsilon": eps, "stash_type": 1}
        function = body([a.dtype.name for a in arrays], attributes)
        evaluator = reference.ReferenceEvaluator(function)
        inputs = dict(zip(function.input, arrays, strict=True))
        return evaluator.run(["Y"], inputs, attributes=attributes)[0]

    return run


# ---- JAX ---------------------------------------------------------------------------------------


def linen(kind: str, dtype: Any = None, **options: Any) -> Original:
    """flax.linen's layer."""
    layers: Any = importlib.import_module("flax.linen")

    def run(x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        given = {k: v for k, v in (("scale", scale), ("bias", bias)) if v is not None}
        if kind == "rms_norm":
            layer = layers.RMSNorm(epsilon=eps, dtype=dtype, **options)
        else:
            layer = layers.LayerNorm(epsilon=eps, dtype=dtype, use_bias=bias is not None, **options)
        return layer.apply({"params": given}, x)

    return on_jax(run)


def nnx(kind: str, dtype: Any = None, **options: Any) -> Original:
    """flax.nnx's layer."""
    layers: Any = importlib.import_module("flax.nnx")

    def run(x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        make = layers.RMSNorm if kind == "rms_norm" else layers.LayerNorm
        layer = make(x.shape[-1], epsilon=eps, dtype=dtype, rngs=layers.Rngs(0), **options)
        layer.scale = layers.Param(scale)
        if bias is not None:
            layer.bias = layers.Param(bias)
        return layer(x)

    return on_jax(run)


def equinox(kind: str) -> Original:
    """Equinox's layer on each row."""
    eqx: Any = importlib.import_module("equinox")
    jax: Any = importlib.import_module("jax")

    def run(x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        make = eqx.nn.RMSNorm if kind == "rms_norm" else eqx.nn.LayerNorm
        layer = make(x.shape[-1], eps=eps, use_weight=True, use_bias=bias is not None)
        layer = eqx.tree_at(lambda t: t.weight, layer, scale)
        if bias is not None:
            layer = eqx.tree_at(lambda t: t.bias, layer, bias)
        return jax.vmap(layer)(x)

    return on_jax(run)


def haiku(kind: str, **options: Any) -> Original:
    """Haiku's module, eager: under jit XLA drops roundings of bfloat16."""
    hk: Any = importlib.import_module("haiku")

    def run(x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        def norm(z: Any) -> Any:
            if kind == "rms_norm":
                return hk.RMSNorm(-1, eps=eps, create_scale=True, name="n")(z)
            layer = hk.LayerNorm(-1, False, False, eps=eps, name="n", **options)
            return layer(z, scale=scale, offset=bias)

        parameters = {"n": {"scale": scale}} if kind == "rms_norm" else {}
        return hk.without_apply_rng(hk.transform(norm)).apply(parameters, x)

    return on_jax(run)


def keras(kind: str, policy: str | None = None) -> Original:
    """Keras 3 on the backend of this process: its operation, or its layer under a policy."""
    library: Any = importlib.import_module("keras")
    backend = library.backend.backend()

    def run(x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        if policy is None and kind == "rms_norm":
            return library.ops.rms_normalization(x, scale, epsilon=eps)
        if policy is None:
            return library.ops.layer_normalization(x, scale, bias, epsilon=eps)
        name = "RMSNormalization" if kind == "rms_norm" else "LayerNormalization"
        layer = getattr(library.layers, name)(epsilon=eps, dtype=policy)
        layer.build(x.shape)
        layer.set_weights([np.asarray(p) for p in (scale, bias) if p is not None])
        return layer(x)

    if backend == "jax":
        return on_jax(run)
    return on_torch(run) if backend == "torch" else lambda *a: np.asarray(run(*a))
