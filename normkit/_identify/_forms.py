"""The ways in which a norm may want its input, and the choice among them."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ._host import Subject, attempt

Array = Any
Call = Callable[[Sequence[Array]], Array]

# silu(1.2784645) is 1 exactly in float32, as is sigmoid(100): the gate then does nothing.
_GATES = {"silu": 1.2784645, "sigmoid": 100.0}


class Form(NamedTuple):
    """A way to call: ``run(call, x)`` gives y of the shape (rows, n) of ``x``."""

    name: str
    axis: int
    run: Callable[[Call, Array], Array]


def _batches(call: Call, x: Array) -> Array:
    rows, n = x.shape
    return call([x.reshape(2, rows // 2, n)])


def _rows(call: Call, x: Array) -> Array:
    return call([x])


def _gated(gate: float) -> Callable[[Call, Array], Array]:
    def run(call: Call, x: Array) -> Array:
        import numpy as np

        return call([x, np.full(x.shape, gate, np.float32)])

    return run


def _images(call: Call, x: Array) -> Array:
    import numpy as np

    rows, n = x.shape
    y = call([np.ascontiguousarray(x.reshape(rows, n, 1, 1))])
    return y if y.shape[:2] == (rows, n) else y[:0]


def _sequences(call: Call, x: Array) -> Array:
    import numpy as np

    rows, n = x.shape
    y = call([np.ascontiguousarray(np.swapaxes(x.reshape(2, rows // 2, n), 1, 2))])
    return np.swapaxes(y, 1, 2)


def _query_and_key(call: Call, x: Array) -> Array:
    both = x.reshape(1, 1, *x.shape)
    return call([both, both])


FORMS = (
    Form("f(x)", -1, _batches),
    *(Form(f"f(x, gate) with {n}(gate) = 1", -1, _gated(g)) for n, g in _GATES.items()),
    Form("f(x) with channels first, 4 axes", 1, _images),
    Form("f(x) with channels first, 3 axes", 1, _sequences),
    Form("f(x) with one batch axis", -1, _rows),
    Form("f(query, key)", -1, _query_and_key),
)


class Called(NamedTuple):
    """A subject with the form in which it takes x.

    Attributes:
        roles: "scale" and "bias", where it has such a parameter and uses it.
        neutral: The scale at which it gives the norm: 0 where it adds 1 to it.
    """

    subject: Subject
    form: Form
    roles: frozenset[str]
    neutral: float = 1.0

    def __call__(self, x: Array, scale: Array | None = None, bias: Array | None = None) -> Array:
        """y for x of shape (rows, n); parameters that are None are neutral."""
        scale, bias = self.parameters(x, scale, bias)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = self.form.run(lambda inputs: self.subject(inputs, scale, bias), x)
        return y.reshape(x.shape)

    def parameters(
        self, x: Array, scale: Array | None, bias: Array | None
    ) -> tuple[Array | None, Array | None]:
        """The parameters that a call gets: those given, and neutral ones where it needs some."""
        import numpy as np

        n = x.shape[-1]
        dtype = x.dtype if scale is None else scale.dtype
        needed = not self.subject.optional
        if scale is None and needed:
            scale = np.full(n, self.neutral).astype(dtype)
        if bias is None and needed:
            bias = np.zeros(n, dtype)
        return scale if "scale" in self.roles else None, bias if "bias" in self.roles else None


def choose_form(subject: Subject, n: int) -> tuple[Called | None, dict[str, str]]:
    """The first form that gives a norm of a trial input, else the first that runs; else errors."""
    import numpy as np

    rng = np.random.default_rng(3)
    x = (rng.standard_normal((8, n)) * 3 + 1).astype(np.float32)
    runs: list[Called] = []
    errors: dict[str, str] = {}
    for form in FORMS:
        called = Called(subject, form, frozenset(subject.roles.values()))
        used = attempt(functools.partial(_with_roles, called, x))
        if isinstance(used, Exception):
            errors[form.name] = f"{type(used).__name__}: {used}".splitlines()[0][:200]
        elif _looks_like_a_norm(x, used(x)):
            return used, errors
        else:
            runs.append(used)
    return (runs[0] if runs else None), errors


def _with_roles(called: Called, x: Array) -> Called:
    """Without parameters that do nothing; and with the scale that leaves the norm alone."""
    import numpy as np

    called(x)  # it must take x at all
    n, roles = x.shape[-1], set(called.roles)
    zero, one = np.zeros(n, np.float32), np.ones(n, np.float32)
    with np.errstate(all="ignore"):
        if "bias" in roles and _same(called(x, None, zero), called(x, None, one)):
            roles.discard("bias")
        if "scale" in roles:
            unscaled = called(x, zero)
            if _same(unscaled, called(x, one)):
                roles.discard("scale")
            elif np.abs(unscaled.astype(np.float64)).max() > 0.01:
                called = called._replace(neutral=0.0)
    return called._replace(roles=frozenset(roles))


def _same(a: Array, b: Array) -> bool:
    import numpy as np

    return bool(np.array_equal(a, b, equal_nan=True))


def _looks_like_a_norm(x: Array, y: Array) -> bool:
    """Has y a mean square of 1, and does it follow x?"""
    import numpy as np

    y = np.nan_to_num(y.astype(np.float64))
    size = float(np.square(y).mean())
    if y.std() == 0:
        return False
    return 0.9 < size < 1.1 and float(np.corrcoef(x.ravel(), y.ravel())[0, 1]) > 0.9
