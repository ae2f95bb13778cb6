"""How a thing is called: with NumPy arrays in and out, whatever its framework.

An adapter announces a `Host` in the entry point group ``normkit.identify`` under the name of the
package that its modules' types come from, so that the core need not know any framework, and none
is imported that the thing under test has not imported.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from typing import Any, Protocol

from normkit import _checks

Array = Any

# Names of a norm's parameters, of modules and of functions' arguments, in any framework.
SCALE_NAMES = ("weight", "scale", "gamma", "gain", "g", "w", "a_2")
BIAS_NAMES = ("bias", "beta", "shift", "b", "b_2")
# Frameworks whose arrays a plain function is tried with, if it refuses NumPy's.
_ARRAY_FRAMEWORKS = ("torch", "jax")


class Subject(Protocol):
    """A norm under test.

    Attributes:
        framework: Whose arrays it takes.
        roles: For each parameter that can be set, "scale" or "bias".
        width: Elements of a parameter; None if there is none.
        optional: Whether the parameters may be left out of a call.
    """

    framework: str
    roles: Mapping[str, str]
    width: int | None
    optional: bool

    def __call__(self, inputs: Sequence[Array], scale: Array | None, bias: Array | None) -> Array:
        """The result for ``inputs`` with these parameters, in NumPy."""
        ...


class Host(Protocol):
    """A framework's side of it."""

    name: str

    def is_module(self, thing: Any) -> bool:
        """Whether ``thing`` holds its parameters itself."""
        ...

    def subject(self, module: Any, width: int | None) -> Subject:
        """A copy of ``module``, with parameters that can be set; the original stays as it is."""
        ...

    def array(self, values: Array) -> Any:
        """A NumPy array as one of the framework's."""
        ...

    def numpy(self, result: Any) -> Array:
        """The other way round; TypeError if it is no array."""
        ...

    def scope(self) -> AbstractContextManager[Any]:
        """Entered around a call: no gradients, and float64 where that can be switched on."""
        ...


class NumpyHost:
    """Functions of NumPy arrays."""

    name = "numpy"

    def is_module(self, thing: Any) -> bool:
        """NumPy has no modules."""
        return False

    def subject(self, module: Any, width: int | None) -> Subject:
        """Not called, as NumPy has no modules."""
        raise NotImplementedError

    def array(self, values: Array) -> Any:
        """``values``."""
        return values

    def numpy(self, result: Any) -> Array:
        """``result``, if it is an array."""
        import numpy as np

        if not isinstance(result, np.ndarray):
            raise TypeError(f"the result is {type(result).__name__}, not an array")
        return result

    def scope(self) -> AbstractContextManager[Any]:
        """Silence: probes overflow on purpose."""
        import numpy as np

        return np.errstate(all="ignore")


class Function:
    """``f(x)``, ``f(x, scale)`` or ``f(x, scale, bias)`` on the arrays of a host."""

    def __init__(self, function: Callable[..., Any], host: Host) -> None:
        self.function = function
        self.host = host
        self.framework = host.name
        self.roles: Mapping[str, str]
        self.roles, self.optional = parameters_of(function)
        self.width: int | None = None

    def __call__(self, inputs: Sequence[Array], scale: Array | None, bias: Array | None) -> Array:
        """Call it; parameters go in by position, or by name where they are keywords only."""
        given = {"scale": scale, "bias": bias}
        with self.host.scope():
            by_name = {
                name: self.host.array(given[role])
                for name, role in self.roles.items()
                if given[role] is not None
            }
            arrays = [self.host.array(a) for a in inputs]
            return first_result(self.host, _bound(self.function, arrays, by_name))


def _bound(function: Callable[..., Any], arrays: list[Any], by_name: dict[str, Any]) -> Any:
    """Call ``function``, naming only those arguments that cannot go by position."""
    if not by_name:
        return function(*arrays)
    known = inspect.signature(function).parameters
    only_by_position = [
        by_name.pop(n)
        for n, p in known.items()
        if n in by_name and p.kind is inspect.Parameter.POSITIONAL_ONLY
    ]
    return function(*arrays, *only_by_position, **by_name)


def first_result(host: Host, result: Any) -> Array:
    """The result, or the first of several, which may come with what is no array."""
    first = result[0] if isinstance(result, tuple | list) and result else result
    return host.numpy(first)


def parameters_of(function: Callable[..., Any]) -> tuple[dict[str, str], bool]:
    """Roles of a function's arguments after x, and whether all may be left out.

    Known by name; arguments that have no default and no known name are scale, then bias.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in that does not tell
        return {}, True
    empty, variadic = (
        inspect.Parameter.empty,
        (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ),
    )
    rest = [p for p in parameters[1:] if p.kind not in variadic]
    required = [p.name for p in rest if p.default is empty]
    roles = {
        p.name: role
        for p in rest
        for role, names in (("scale", SCALE_NAMES), ("bias", BIAS_NAMES))
        if p.name in names
    }
    free = [role for role in ("scale", "bias") if role not in roles.values()]
    for name in required:
        if name not in roles:
            if not free:
                raise _checks.unknown_argument(name)
            roles[name] = free.pop(0)
    return roles, not required


def needs_argument(thing: Callable[..., Any]) -> bool:
    """Whether a class or a factory has an argument without a default."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # a built-in that does not tell
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.default is p.empty and p.kind in positional for p in parameters)


def attempt(call: Callable[[], Any]) -> Any:
    """The result of a call to the thing under test, or its own error as a result."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 (another's code may raise anything)
        return error


def host_of(thing: Any) -> Host | None:
    """The host that is announced for the type of ``thing`` or for one that it derives from."""
    for base in type(thing).__mro__:
        found = announced(base.__module__.split(".")[0])
        if found is not None:
            return found
    return None


@functools.cache
def announced(package: str) -> Host | None:
    """The host announced under the name of a package, or None."""
    for found in entry_points(group="normkit.identify", name=package):
        host: Host = found.load()
        return host
    return None


def array_hosts(function: Any) -> list[Host]:
    """The hosts whose arrays a function may take, the likeliest first; none is imported for it."""
    home = str(getattr(function, "__module__", "") or "").split(".")[0]
    hosts: list[Host] = []
    own = host_of(function)
    names = [home] if home in _ARRAY_FRAMEWORKS else []
    for host in (own, *map(announced, names), NumpyHost(), *map(announced, _loaded())):
        if host is not None and host.name not in [h.name for h in hosts]:
            hosts.append(host)
    return hosts


def _loaded() -> list[str]:
    return [name for name in _ARRAY_FRAMEWORKS if name in sys.modules]
