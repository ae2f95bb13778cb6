"""normkit.flax and normkit.flax.linen as a Flax user meets them."""

import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flax")

import jax
import jax.numpy as jnp
import normkit.flax as nk
import normkit.flax.linen as nkl
import normkit.jax
import normkit.numpy
from flax import linen, nnx

from normkit.conventions import RMS_NORM
from normkit.testing import assert_same_bits

_NAMES = ["RMSNorm", "LayerNorm"]
_X = np.random.default_rng(20).standard_normal((3, 5, 8)).astype(np.float32)
# float32 noise of the host's own layer: some ULPs of values below 16
_HOST_NOISE = 16 * 2.0**-21


def _function(name: str) -> Any:
    return {"RMSNorm": normkit.jax.rms_norm, "LayerNorm": normkit.jax.layer_norm}[name]


@pytest.mark.parametrize("name", _NAMES)
def test_nnx_state_exchange(name: str) -> None:
    mine = getattr(nk, name)(8, rngs=nnx.Rngs(0))
    host = getattr(nnx, name)(8, epsilon=mine.epsilon, use_fast_variance=False, rngs=nnx.Rngs(0))
    assert jax.tree.structure(nnx.to_pure_dict(nnx.state(mine))) == jax.tree.structure(
        nnx.to_pure_dict(nnx.state(host))
    )
    host.scale[...] = jnp.linspace(-1, 2, 8)
    nnx.update(mine, nnx.state(host))
    assert np.abs(mine(_X) - host(jnp.asarray(_X))).max() < _HOST_NOISE
    mine.scale[...] = jnp.linspace(3, 4, 8)
    nnx.update(host, nnx.state(mine))
    assert np.abs(mine(_X) - host(jnp.asarray(_X))).max() < _HOST_NOISE


@pytest.mark.parametrize("name", _NAMES)
def test_nnx_jit_grad_and_split(name: str) -> None:
    layer = getattr(nk, name)(8, rngs=nnx.Rngs(0))
    x = jnp.asarray(_X)
    eager = layer(x)
    assert_same_bits(np.asarray(nnx.jit(lambda m, x: m(x))(layer, x)), np.asarray(eager))
    gradients = nnx.grad(lambda m, x: (m(x) ** 3).sum())(layer, x)
    expected = jax.grad(
        lambda s: (_function(name)(x, s, *_bias(layer), eps=layer.epsilon) ** 3).sum()
    )
    wanted = expected(layer.scale[...])
    # one rounding of float32 more or less, in sums of 15 products
    np.testing.assert_allclose(gradients["scale"][...], wanted, rtol=2.0**-20)
    graph, state = nnx.split(layer)
    assert_same_bits(np.asarray(nnx.merge(graph, state)(x)), np.asarray(eager))


def _bias(layer: Any) -> list[Any]:
    return [] if layer.bias is None else [layer.bias[...]]


@pytest.mark.parametrize("name", _NAMES)
def test_linen_init_apply_and_exchange(name: str) -> None:
    mine = getattr(nkl, name)()
    host = getattr(linen, name)(use_fast_variance=False, epsilon=mine.epsilon)
    variables = mine.init(jax.random.key(0), _X)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(
        jnp.shape, host.init(jax.random.key(0), _X)
    )
    variables = jax.tree.map(lambda p: jnp.linspace(-1, 2, 8), variables)
    assert np.abs(mine.apply(variables, _X) - host.apply(variables, _X)).max() < _HOST_NOISE
    jitted = jax.jit(mine.apply)(variables, _X)
    assert_same_bits(np.asarray(jitted), np.asarray(mine.apply(variables, _X)))


@pytest.mark.parametrize("name", _NAMES)
def test_nnx_and_linen_are_twins(name: str) -> None:
    scale, bias = jnp.linspace(-1, 2, 8), jnp.linspace(0, 1, 8)
    layer = getattr(nk, name)(8, use_bias=True, rngs=nnx.Rngs(0))
    layer.scale[...], layer.bias[...] = scale, bias
    twin = getattr(nkl, name)(use_bias=True)
    y = twin.apply({"params": {"scale": scale, "bias": bias}}, _X)
    assert_same_bits(np.asarray(y), np.asarray(layer(_X)))


@pytest.mark.parametrize("name", _NAMES)
def test_initialisers_and_dtypes(name: str) -> None:
    layer = getattr(nk, name)(
        8,
        use_bias=True,
        param_dtype=jnp.bfloat16,
        scale_init=nnx.initializers.constant(2.0),
        bias_init=nnx.initializers.constant(1.0),
        rngs=nnx.Rngs(0),
    )
    assert layer.scale[...].dtype == layer.bias[...].dtype == jnp.bfloat16
    assert float(layer.scale[...][0]) == 2.0
    assert float(layer.bias[...][0]) == 1.0
    bare = getattr(nk, name)(8, use_scale=False, use_bias=False, rngs=nnx.Rngs(0))
    assert jax.tree.leaves(nnx.state(bare)) == []


@pytest.mark.parametrize("name", _NAMES)
def test_result_dtype(name: str) -> None:
    """x's, also with float32 parameters; ``dtype`` widens x before, or rounds the result."""
    half = jnp.asarray(_X, jnp.bfloat16)
    build = getattr(nk, name)
    assert build(8, rngs=nnx.Rngs(0))(half).dtype == jnp.bfloat16
    widened = build(8, dtype=jnp.float32, rngs=nnx.Rngs(0))(half)
    eps = build(8, rngs=nnx.Rngs(0)).epsilon
    assert_same_bits(
        np.asarray(widened), np.asarray(_function(name)(half.astype(jnp.float32), eps=eps))
    )
    narrowed = build(8, dtype=jnp.float16, rngs=nnx.Rngs(0))(jnp.asarray(_X))
    assert_same_bits(
        np.asarray(narrowed), np.asarray(_function(name)(_as_jax(_X), eps=eps).astype(jnp.float16))
    )
    twin = getattr(nkl, name)(dtype=jnp.float32)
    assert twin.apply(twin.init(jax.random.key(0), half), half).dtype == jnp.float32


def _as_jax(x: Any) -> Any:
    return jnp.asarray(x)


@pytest.mark.parametrize("name", _NAMES)
def test_several_and_different_axes(name: str) -> None:
    """Statistics over reduction_axes, parameters along feature_axes, as in Flax."""
    x = jnp.asarray(_X)
    mine = getattr(nk, name)(8, reduction_axes=(1, 2), feature_axes=-1, rngs=nnx.Rngs(0))
    host = getattr(nnx, name)(
        8,
        epsilon=mine.epsilon,
        reduction_axes=(1, 2),
        feature_axes=-1,
        use_fast_variance=False,
        rngs=nnx.Rngs(0),
    )
    mine.scale[...] = host.scale[...] = jnp.linspace(-1, 2, 8)
    assert np.abs(mine(x) - host(x)).max() < _HOST_NOISE
    whole = getattr(nk, name)(40, reduction_axes=(1, 2), feature_axes=(1, 2), rngs=nnx.Rngs(0))
    assert_same_bits(
        np.asarray(whole(x)), np.asarray(_function(name)(x, axis=(1, 2), eps=whole.epsilon))
    )
    twin = getattr(nkl, name)(reduction_axes=(1, 2), feature_axes=(1, 2))
    variables = twin.init(jax.random.key(0), x)
    assert variables["params"]["scale"].shape == (5, 8)
    assert_same_bits(np.asarray(twin.apply(variables, x)), np.asarray(whole(x)))


@pytest.mark.parametrize("name", _NAMES)
def test_rows_split_over_a_mapped_axis(name: str) -> None:
    """Four parts of each row, statistics summed across them: the bits of the whole row."""
    x = jnp.asarray(_X)
    parts = x.reshape(3, 5, 4, 2)

    def layer(x: Any) -> Any:
        return getattr(nk, name)(2, axis_name="parts", rngs=nnx.Rngs(0))(x)

    y = jax.vmap(layer, in_axes=2, out_axes=2, axis_name="parts")(parts)
    whole = getattr(nk, name)(8, rngs=nnx.Rngs(0))(x)
    assert_same_bits(np.asarray(y.reshape(3, 5, 8)), np.asarray(whole))


@pytest.mark.parametrize("function", [normkit.jax.rms_norm, normkit.jax.layer_norm])
def test_split_float64_rows_share_their_scale(function: Any) -> None:
    """One part of the row is huge, the others are not: all must be scaled alike."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.float64([1e200, 2e200, 3e150, -1e-200]))
        whole = function(x, eps=0.0)
        split = jax.vmap(lambda x: function(x, eps=0.0, axis_name="parts"), axis_name="parts")
        parts = split(x[:, None])[:, 0]
        slope = 1e200 * jax.grad(lambda x: split(x[:, None]).sum())(x)
        expected = 1e200 * jax.grad(lambda x: function(x, eps=0.0).sum())(x)
    # float64 sums of four terms in another order
    np.testing.assert_allclose(parts, whole, rtol=2.0**-50, atol=2.0**-50)
    np.testing.assert_allclose(slope, expected, rtol=2.0**-48, atol=2.0**-48)


def test_global_x64_flag_is_neither_read_nor_changed() -> None:
    assert not jax.config.jax_enable_x64
    normkit.jax.rms_norm(jnp.ones(4))
    jax.grad(lambda x: normkit.jax.layer_norm(x).sum())(jnp.ones(4))
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32
    with jax.enable_x64(True):
        x = jnp.array([1.0, 2.0, 3.0, 4.0]) + 1e8
    y = normkit.jax.layer_norm(x, eps=0.0)
    assert y.dtype == jnp.float64
    np.testing.assert_allclose(y, [-1.341641, -0.447214, 0.447214, 1.341641], atol=5e-7)


def test_jax_keeps_only_the_inputs_for_the_backward_pass() -> None:
    x = jnp.ones((16, 64), jnp.bfloat16)
    scale = jnp.ones(64)
    _, pullback = jax.vjp(lambda x, s: normkit.jax.rms_norm(x, s), x, scale)
    kept = {(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(pullback)}
    assert kept <= {((16, 64), "bfloat16"), ((64,), "float32")}


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
def test_dtype_takes_the_place_of_the_promoted_one(name: str, param_dtype: Any) -> None:
    """Under Flax's own convention the argument dtype does what it does in Flax."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((32, 64)), jnp.float32)
    scale = jnp.linspace(-2, 2, 64).astype(param_dtype)
    for dtype in (jnp.bfloat16, jnp.float32, None):
        options = {"epsilon": 1e-6, "dtype": dtype, "param_dtype": param_dtype}
        mine = getattr(nk, name)(64, convention="flax_nnx", rngs=nnx.Rngs(0), **options)
        host = getattr(nnx, name)(64, rngs=nnx.Rngs(0), **options)
        mine.scale[...], host.scale[...] = scale, scale
        ours, theirs = mine(x), host(x)
        assert ours.dtype == theirs.dtype
        twin = getattr(nkl, name)(convention="flax_nnx", **options)
        parameters = {"scale": scale}
        if name == "LayerNorm":
            parameters["bias"] = jnp.zeros(64, param_dtype)
        assert_same_bits(np.asarray(twin.apply({"params": parameters}, x)), np.asarray(ours))
        # the host's float32 sum flips a rounding in a few of 1000 elements: one ULP of 4 .. 8
        spacing = 2.0**-5 if dtype == jnp.bfloat16 else 2.0**-19
        difference = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))
        assert difference.max() <= spacing
        if dtype == jnp.bfloat16:
            assert (difference > 0).mean() <= 1e-3


def test_a_convention_of_ones_own_survives_the_transforms_of_nnx() -> None:
    convention = dataclasses.replace(RMS_NORM["gemma"], groups=2)
    layer = nk.RMSNorm(8, convention=convention, rngs=nnx.Rngs(0))
    expected = normkit.numpy.rms_norm(_X, np.ones(8, np.float32), convention=convention)
    assert_same_bits(np.asarray(nnx.jit(lambda m, x: m(x))(layer, _X)), expected)
    graph, state = nnx.split(layer)
    assert_same_bits(np.asarray(nnx.merge(graph, state)(_X)), expected)
    twin = nkl.RMSNorm(convention=convention)
    variables = {"params": {"scale": jnp.ones(8)}}
    assert_same_bits(np.asarray(jax.jit(twin.apply)(variables, _X)), expected)
    assert "convention = Convention(" in repr(twin)
