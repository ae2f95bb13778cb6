"""JAX on the CPU: large arrays in blocks of rows, and what the primitives owe to JAX."""

import functools
from functools import partial
from typing import Any

import normkit.numpy
import numpy as np
import pytest

from normkit.testing import assert_same_bits, dtype_of

jax = pytest.importorskip("jax")
functions = pytest.importorskip("normkit.jax")

# More than 2^18 elements, so several blocks. 523 is prime and 2098 is 2 * 1049: the first block is
# shorter than the others, and in the last shape a block is one row.
_LARGE = [(523, 509), (1049, 2, 130), (5, 65_537)]


def _arrays(shape: tuple[int, ...], dtype: str) -> tuple[Any, ...]:
    """dy, x, scale and bias."""
    random = np.random.default_rng(70)
    arrays = *random.standard_normal((2, *shape)), *random.standard_normal((2, shape[-1]))
    return tuple(a.astype(dtype_of(dtype)) for a in arrays)


def _pullback(function: Any) -> Any:
    return lambda dy, *inputs: jax.vjp(function, *inputs)[1](dy)


def _agree(found: Any, wanted: Any, dtype: str) -> None:
    """Equal, but for the order of sums, which shows in one rounding of a thousand at most."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert (found == wanted).mean() > 0.999
    step = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=step)


@pytest.mark.parametrize("shape", _LARGE, ids=str)
def test_blocks_have_the_bits_of_numpy(op: str, bits_dtype: str, shape: tuple[int, ...]) -> None:
    dy, x, *parameters = _arrays(shape, bits_dtype)
    function = partial(getattr(functions, op), kernel="array_api")

    def run(dy: Any, x: Any, *parameters: Any) -> Any:
        return function(x, *parameters), _pullback(function)(dy, x, *parameters)

    compiled = jax.jit(run).lower(dy, x, *parameters).compile()
    assert compiled.as_text().count(" while(") == 2  # forward and backward
    y, gradients = compiled(dy, x, *parameters)
    assert_same_bits(np.asarray(y), getattr(normkit.numpy, op)(x, *parameters))
    wanted = getattr(normkit.numpy, f"{op}_vjp")(dy, x, *parameters)
    for found, expected in zip(gradients, wanted, strict=True):
        _agree(found, expected, bits_dtype)


def test_rows_that_are_no_list_are_not_put_in_blocks() -> None:
    """Rows along the first axis, and parameters that differ from row to row by vmap."""
    random = np.random.default_rng(72)
    x, scale = random.standard_normal((4, 96, 800)).astype(np.float32), random.random((4, 800))
    first = jax.jit(lambda x: functions.layer_norm(x, axis=1))
    assert " while(" not in first.lower(x).compile().as_text()
    assert_same_bits(np.asarray(first(x)), normkit.numpy.layer_norm(x, axis=1))
    scale = scale.astype(np.float32)
    mapped = jax.jit(jax.vmap(functions.rms_norm))
    assert " while(" not in mapped.lower(x, scale).compile().as_text()
    loop = [normkit.numpy.rms_norm(a, s) for a, s in zip(x, scale, strict=True)]
    assert_same_bits(np.asarray(mapped(x, scale)), np.stack(loop))


@pytest.mark.parametrize("kernel", ["array_api", "pairs"])
def test_only_the_inputs_are_kept_for_the_backward_pass(
    op: str, bits_dtype: str, kernel: str
) -> None:
    _, *inputs = _arrays((8, 16), bits_dtype)
    function = functools.partial(getattr(functions, op), kernel=kernel)
    _, pullback = jax.vjp(function, *map(jax.numpy.asarray, inputs))
    kept = jax.tree.leaves(pullback)
    assert sum(a.nbytes for a in kept) <= sum(a.nbytes for a in inputs)


@pytest.mark.parametrize("shape", [(8, 16), (523, 509)], ids=str)
def test_exported_programs_have_the_same_bits(op: str, shape: tuple[int, ...]) -> None:
    pytest.importorskip("flatbuffers", reason="jax.export needs it to write a program down")
    _, *inputs = _arrays(shape, "float32")
    exported = jax.export.export(jax.jit(getattr(functions, op)))(*inputs).serialize()
    found = jax.export.deserialize(exported).call(*inputs)
    assert_same_bits(np.asarray(found), getattr(normkit.numpy, op)(*inputs))


def test_exported_with_sizes_that_are_not_known() -> None:
    _, x, scale, _ = _arrays((523, 509), "float32")
    (rows,) = jax.export.symbolic_shape("rows")
    unknown = jax.ShapeDtypeStruct((rows, 509), x.dtype)
    exported = jax.export.export(jax.jit(functions.rms_norm))(unknown, scale)
    assert_same_bits(np.asarray(exported.call(x, scale)), normkit.numpy.rms_norm(x, scale))


# in_axes of dy, x, scale and bias
_MAPPED = [
    (0, 0, None, None),
    (1, 0, 0, None),
    (0, None, None, 0),
    (None, None, 0, 0),
    (0, 2, 1, 1),
]


@pytest.mark.parametrize("axes", _MAPPED, ids=str)
def test_vmap_equals_a_loop(op: str, axes: tuple[Any, ...]) -> None:
    """Forward, backward and forward mode, whatever is mapped."""
    random = np.random.default_rng(73)
    shapes = (3, 6), (3, 6), (6,), (6,)
    arrays = [
        random.standard_normal(shape if axis is None else (*shape[:axis], 4, *shape[axis:]))
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    function = getattr(functions, op)

    def run(dy: Any, *inputs: Any) -> Any:
        gradients = _pullback(function)(dy, *inputs)
        return function(*inputs), gradients, jax.jvp(function, inputs, gradients)[1]

    arrays = [jax.numpy.asarray(a, np.float32) for a in arrays]
    mapped = jax.jit(jax.vmap(run, axes))(*arrays)
    for i in range(4):
        one = [a if axis is None else a.take(i, axis) for a, axis in zip(arrays, axes, strict=True)]
        for found, wanted in zip(jax.tree.leaves(mapped), jax.tree.leaves(run(*one)), strict=True):
            np.testing.assert_allclose(found[i], wanted, rtol=2.0**-22, atol=2.0**-30)


def test_gradients_of_what_is_asked_for_alone(op: str) -> None:
    """One input at a time, and a transposed linear map whose result is the tangent."""
    dy, *inputs = map(jax.numpy.asarray, _arrays((4, 6), "float32"))
    function = getattr(functions, op)
    whole = _pullback(function)(dy, *inputs)
    for i in range(3):

        def alone(a: Any, i: int = i) -> Any:
            return function(*inputs[:i], a, *inputs[i + 1 :])

        (found,) = _pullback(alone)(dy, inputs[i])
        assert_same_bits(np.asarray(found), np.asarray(whole[i]))
        y, linear = jax.linearize(alone, inputs[i])
        (transposed,) = jax.linear_transpose(linear, inputs[i])(dy)
        np.testing.assert_allclose(transposed, whole[i], rtol=2.0**-22, atol=2.0**-24)
        assert_same_bits(np.asarray(y), np.asarray(function(*inputs)))
