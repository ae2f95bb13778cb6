"""How `normkit.identify` calls NNX and Linen modules."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx, traverse_util
from normkit.jax._identify import HOST as JAX

from normkit._identify._host import BIAS_NAMES, first_result

Array = Any

# Linen makes its parameters for the width of the first input.
_WIDTH = 64


class FlaxHost:
    """Flax modules, called with JAX arrays."""

    name = "flax"

    def is_module(self, thing: Any) -> bool:
        """Whether it is a module of either kind."""
        return isinstance(thing, nnx.Module | linen.Module)

    def subject(self, module: Any, width: int | None) -> "NnxModule | LinenModule":
        """A copy of the module's structure."""
        return (
            NnxModule(module, width)
            if isinstance(module, nnx.Module)
            else LinenModule(module, width)
        )

    def array(self, values: Array) -> Any:
        """A JAX array."""
        return JAX.array(values)

    def numpy(self, result: Any) -> Array:
        """The other way round."""
        return JAX.numpy(result)

    def scope(self) -> AbstractContextManager[Any]:
        """That of JAX."""
        return JAX.scope()


HOST = FlaxHost()


class _Named:
    """Parameters by path: those of ``width`` elements have a role."""

    framework = "flax"
    optional = False

    def __init__(self, leaves: Mapping[tuple[Any, ...], Any], width: int | None) -> None:
        sizes = [leaf.size for leaf in leaves.values() if getattr(leaf, "ndim", 0)]
        self.width = width or (sizes[0] if sizes else None)
        self.paths = {
            path: "bias" if path[-1] in BIAS_NAMES else "scale"
            for path, leaf in leaves.items()
            if getattr(leaf, "ndim", 0) and leaf.size == self.width
        }
        self.roles: Mapping[str, str] = {
            ".".join(map(str, path)): role for path, role in self.paths.items()
        }

    def value(self, path: tuple[Any, ...], leaf: Any, given: dict[str, Array | None]) -> Any:
        """The array to put at ``path``."""
        value = given.get(self.paths.get(path, ""))
        return leaf if value is None else JAX.array(value).reshape(leaf.shape)


class NnxModule(_Named):
    """A clone of an NNX module, whose parameters are replaced in each call."""

    def __init__(self, module: nnx.Module, width: int | None) -> None:
        self.module = nnx.clone(module)
        found = nnx.to_flat_state(nnx.state(self.module, nnx.Param))
        super().__init__({path: variable[...] for path, variable in found}, width)
        self.shapes = {path: variable[...].shape for path, variable in found}

    def __call__(self, inputs: Sequence[Array], scale: Array | None, bias: Array | None) -> Array:
        """The module's result with these parameters."""
        given = {"scale": scale, "bias": bias}
        with HOST.scope():
            for path, role in self.paths.items():
                value = given[role]
                if value is not None:
                    array = JAX.array(value).reshape(self.shapes[path])
                    setattr(_owner(self.module, path), str(path[-1]), nnx.Param(array))
            module: Any = self.module
            return first_result(HOST, module(*[JAX.array(x) for x in inputs]))


def _owner(module: Any, path: tuple[Any, ...]) -> Any:
    """The submodule that holds the parameter at ``path``."""
    for key in path[:-1]:
        module = module[key] if isinstance(key, int) else getattr(module, key)
    return module


class LinenModule(_Named):
    """A Linen module, whose parameters come from initialising it."""

    def __init__(self, module: linen.Module, width: int | None) -> None:
        self.module = module
        shape = (2, width or _WIDTH)
        self.variables = module.init(jax.random.key(0), jnp.zeros(shape, jnp.float32))
        leaves = traverse_util.flatten_dict(self.variables.get("params", {}))
        super().__init__(leaves, width or _WIDTH)

    def __call__(self, inputs: Sequence[Array], scale: Array | None, bias: Array | None) -> Array:
        """The module's result with these parameters."""
        given = {"scale": scale, "bias": bias}
        with HOST.scope():
            flat = traverse_util.flatten_dict(self.variables.get("params", {}))
            params = {path: self.value(path, leaf, given) for path, leaf in flat.items()}
            variables = {**self.variables, "params": traverse_util.unflatten_dict(params)}
            return first_result(HOST, self.module.apply(variables, *[JAX.array(x) for x in inputs]))
