"""How `normkit.identify` calls functions of JAX arrays, and Equinox modules, which are pytrees."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normkit._identify._host import BIAS_NAMES, first_result

Array = Any


class JaxHost:
    """JAX arrays, float64 among them."""

    name = "jax"

    def is_module(self, thing: Any) -> bool:
        """Whether it is a pytree with arrays that can be called, as Equinox modules are."""
        return callable(thing) and bool(_leaves(thing))

    def subject(self, module: Any, width: int | None) -> "PytreeModule":
        """The module's structure; its arrays are replaced in each call."""
        return PytreeModule(module, width)

    def array(self, values: Array) -> jax.Array:
        """A NumPy array on the default device."""
        return jnp.asarray(values)

    def numpy(self, result: Any) -> Array:
        """A JAX array as a NumPy array."""
        if not isinstance(result, jax.Array):
            raise TypeError(f"the result is {type(result).__name__}, not a JAX array")
        return np.asarray(result)

    def scope(self) -> AbstractContextManager[Any]:
        """float64 stays float64."""
        return jax.enable_x64(True)


class EquinoxHost(JaxHost):
    """Equinox modules, with or without arrays."""

    name = "equinox"

    def is_module(self, thing: Any) -> bool:
        """Whatever is of a type of Equinox's and can be called."""
        return callable(thing)


HOST = JaxHost()
EQUINOX = EquinoxHost()


def _leaves(thing: Any) -> list[tuple[str, Any]]:
    """Name and value of each array of a pytree that has an axis."""
    found: list[tuple[Any, Any]] = jax.tree_util.tree_leaves_with_path(thing)
    return [(_name(path), leaf) for path, leaf in found if path and getattr(leaf, "ndim", 0)]


def _name(path: Any) -> str:
    """The last step of a path: an attribute, or a key."""
    return str(getattr(path[-1], "name", getattr(path[-1], "key", "")))


class PytreeModule:
    """A callable pytree, such as an Equinox module, which takes a single row."""

    framework = "jax"
    optional = False

    def __init__(self, module: Any, width: int | None) -> None:
        self.module = module
        named = _leaves(module)
        self.width = width or (int(named[0][1].size) if named else None)
        self.roles: Mapping[str, str] = {
            name: "bias" if name in BIAS_NAMES else "scale"
            for name, leaf in named
            if leaf.size == self.width
        }

    def __call__(self, inputs: Sequence[Array], scale: Array | None, bias: Array | None) -> Array:
        """The results for each row; the module sees one, as Equinox's do."""
        given = {"scale": scale, "bias": bias}
        with HOST.scope():

            def replaced(path: Any, leaf: Any) -> Any:
                value = given.get(self.roles.get(_name(path), "")) if path else None
                return leaf if value is None else HOST.array(value).reshape(leaf.shape)

            module = jax.tree_util.tree_map_with_path(replaced, self.module)
            call = module
            for _ in range(inputs[0].ndim - 1):
                call = jax.vmap(call)
            return first_result(HOST, call(*[HOST.array(x) for x in inputs]))
