"""The one table of backends that the suite runs on.

`normkit.cli.backends` finds the adapters on their devices. Added here: the core's own functions
on other array API libraries, compiled and traced variants, read-only input, and Linen.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import normkit
from normkit.cli.backends import Backend, find_backends

FORWARD = ("rms_norm", "layer_norm")
HALF = ("bfloat16", "float16")
DTYPES = (*HALF, "float32", "float64")


@dataclass(frozen=True)
class Subject:
    """A backend under test.

    Attributes:
        label: ``framework:variant``, the test's id.
        backend: How to run an op on NumPy arrays.
        vjp: Gradients by the backend's own differentiation, as `normkit.rms_norm_vjp` returns them:
            called with ``(function, dy, x, scale, bias, options)`` on the backend's arrays.
        dtypes: What the backend can hold.
        ops: The public functions it has.
        exact_bits: Whether the bits are promised to equal NumPy's.
    """

    label: str
    backend: Backend
    vjp: Callable[..., Any] | None
    dtypes: tuple[str, ...] = DTYPES
    ops: tuple[str, ...] = (*FORWARD, "add_rms_norm", "add_layer_norm")
    exact_bits: bool = True

    def run(self, op: str, *arrays: Any, **options: Any) -> Any:
        """``op`` on NumPy arrays; NumPy arrays come back."""
        return self.backend.run(op, *arrays, **options)

    def gradients(self, op: str, dy: Any, x: Any, scale: Any, bias: Any, **options: Any) -> Any:
        """(dx, dscale, dbias) as NumPy arrays, by the backend's own differentiation."""
        if self.vjp is None:
            return self.run(f"{op}_vjp", dy, x, scale, bias, **options)
        put = self.backend.put
        arrays = [None if a is None else put(a) for a in (dy, x, scale, bias)]
        found = self.vjp(getattr(self.backend.functions, op), *arrays, options)
        return tuple(None if g is None else self.backend.get(g) for g in found)


def _torch_vjp(function: Any, dy: Any, x: Any, scale: Any, bias: Any, options: Any) -> Any:
    import torch

    inputs = [None if a is None else a.detach().requires_grad_() for a in (x, scale, bias)]
    present = [a for a in inputs if a is not None]
    found = iter(torch.autograd.grad(function(*inputs, **options), present, dy))
    return tuple(None if a is None else next(found) for a in inputs)


def _jax_vjp(function: Any, dy: Any, x: Any, scale: Any, bias: Any, options: Any) -> Any:
    import jax

    return jax.vjp(lambda *inputs: function(*inputs, **options), x, scale, bias)[1](dy)


def subjects() -> tuple[list[Subject], dict[str, str]]:
    """All subjects that are here, and the reason for each that is not."""
    found, missing = find_backends()
    here: list[Subject] = []
    for backend in found:
        here += _of(backend)
    here += _core_on_other_libraries()
    return here, missing


def _of(backend: Backend) -> Iterator[Subject]:
    bits = backend.device == "cpu"
    if backend.framework == "numpy":
        yield Subject("numpy:cpu", backend, None)
        yield Subject("numpy:readonly", backend._replace(put=_read_only), None)
        formulas = Mapped(backend.functions, functools.partial(_with_kernel, "array_api"))
        yield Subject("numpy:array_api", backend._replace(functions=formulas), None)
    elif backend.framework == "torch":
        yield Subject(backend.label, backend, _torch_vjp, exact_bits=bits)
        core = backend._replace(functions=normkit)
        yield Subject(f"core-torch:{backend.device}", core, _torch_vjp, exact_bits=bits)
        if bits:
            compiled = backend._replace(functions=Mapped(backend.functions, _compiled()))
            yield Subject("torch:compile", compiled, _torch_vjp)
    elif backend.framework == "jax":
        yield Subject(backend.label, backend, _jax_vjp, exact_bits=bits)
        jitted = backend._replace(functions=Mapped(backend.functions, _jitted))
        yield Subject(f"jax:jit-{backend.device}", jitted, _jax_vjp, exact_bits=bits)
        core = backend._replace(functions=normkit)
        yield Subject(f"core-jax:{backend.device}", core, _jax_vjp, exact_bits=bits)
    else:
        yield Subject(f"flax:nnx-{backend.device}", backend, _jax_vjp, ops=FORWARD, exact_bits=bits)
        linen = backend._replace(functions=_linen_functions())
        yield Subject(f"flax:linen-{backend.device}", linen, _jax_vjp, ops=FORWARD, exact_bits=bits)


class Mapped:
    """Public functions, each passed through a wrapper."""

    def __init__(self, functions: Any, wrap: Callable[[Any], Any]) -> None:
        self._functions, self._wrap = functions, wrap

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self._functions, name))


def _with_kernel(kernel: str, function: Any) -> Any:
    if function.__name__.startswith("gated"):  # which have no other kernel
        return function
    return functools.partial(function, kernel=kernel)


_JITTED: dict[tuple[Any, str], Any] = {}


def _jitted(function: Any) -> Any:
    """jax.jit of ``function`` with its options fixed, the same object for the same options."""
    import jax

    def run(*arrays: Any, **options: Any) -> Any:
        key = function, repr(sorted(options.items()))
        if key not in _JITTED:
            _JITTED[key] = jax.jit(functools.partial(function, **options))
        return _JITTED[key](*arrays)

    return run


def _compiled() -> Callable[[Any], Any]:
    import torch

    @functools.cache
    def wrap(function: Any) -> Any:
        # dynamic: one compilation serves all shapes of one rank
        compiled = torch.compile(function, fullgraph=True, dynamic=True)

        def run(*arrays: Any, **options: Any) -> Any:
            # one function here meets more dtypes, ranks and options than any model does
            with torch._dynamo.config.patch(recompile_limit=1000):
                return compiled(*arrays, **options)

        return run

    return wrap


def _read_only(array: Any) -> Any:
    array = np.array(array, order="F")
    array.flags.writeable = False
    return array


def _linen_functions() -> Any:
    layers = importlib.import_module("normkit.flax.linen")

    def function(layer_type: Any) -> Any:
        def run(
            x: Any,
            scale: Any = None,
            bias: Any = None,
            *,
            eps: Any = None,
            axis: Any = -1,
            convention: Any = "standard",
        ) -> Any:
            layer = layer_type(
                use_scale=scale is not None,
                use_bias=bias is not None,
                reduction_axes=axis,
                feature_axes=axis,
                convention=convention,
                **({} if eps is None and convention == "standard" else {"epsilon": eps}),
            )
            found = {"scale": scale, "bias": bias}
            return layer.apply({"params": {k: v for k, v in found.items() if v is not None}}, x)

        return run

    return SimpleNamespace(rms_norm=function(layers.RMSNorm), layer_norm=function(layers.LayerNorm))


def _core_on_other_libraries() -> Iterator[Subject]:
    import array_api_strict
    import dask.array

    plain = ("float32", "float64")  # the standard's own; bfloat16 and float16 are outside of it

    def backend(name: str, put: Any, get: Any) -> Backend:
        return Backend(name, "cpu", Mapped(normkit, _quiet), put, get)

    strict = backend("array_api_strict", array_api_strict.asarray, np.asarray)
    yield Subject("core-strict:cpu", strict, None, plain)

    def chunked(array: Any) -> Any:
        return dask.array.from_array(array, chunks=tuple(max(1, s // 2) for s in array.shape))

    def computed(array: Any) -> Any:
        return _quiet(array.compute)(scheduler="synchronous")

    yield Subject("core-dask:cpu", backend("dask", chunked, computed), None, plain)


def _quiet(function: Any) -> Any:
    """Both libraries compute with NumPy, whose warnings about NaN and infinity are theirs."""

    def run(*arrays: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arrays, **options)

    return run
