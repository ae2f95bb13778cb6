"""JAX arrays split over devices: rows, or the elements of each row, by jit and by shard_map."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import normkit.jax as nk

assert jax.device_count() == 4
mesh = Mesh(np.array(jax.devices()), ("parts",))
random = np.random.default_rng(0)
x = random.standard_normal((8, 64)).astype(np.float32)
scale = random.standard_normal(64).astype(np.float32)
for function in (nk.rms_norm, nk.layer_norm):
    def loss(x, scale, function=function, **options):
        return (function(x, scale, **options) ** 2).sum()
    whole = function(jnp.asarray(x), jnp.asarray(scale))
    gradients = jax.grad(loss, (0, 1))(jnp.asarray(x), jnp.asarray(scale))
    for rows, features in ((P("parts"), P()), (P(None, "parts"), P("parts"))):
        split_x = jax.device_put(x, NamedSharding(mesh, rows))
        split_scale = jax.device_put(scale, NamedSharding(mesh, features))
        y = jax.jit(function)(split_x, split_scale)
        assert y.sharding.is_equivalent_to(split_x.sharding, 2)
        assert np.array_equal(y, whole)
        for found, wanted in zip(jax.grad(loss, (0, 1))(split_x, split_scale), gradients):
            np.testing.assert_allclose(found, wanted, rtol=2.0**-20, atol=2.0**-20)
        options = {"axis_name": "parts"} if len(rows) == 2 else {}
        mapped = jax.shard_map(
            lambda x, s: function(x, s, **options),
            mesh=mesh, in_specs=(rows, features), out_specs=rows,
        )
        assert np.array_equal(jax.jit(mapped)(split_x, split_scale), whole)
        def mapped_loss(x, s):
            return (mapped(x, s) ** 2).sum()
        for found, wanted in zip(jax.grad(mapped_loss, (0, 1))(split_x, split_scale), gradients):
            np.testing.assert_allclose(found, wanted, rtol=2.0**-20, atol=2.0**-20)
"""


def test_split_arrays_give_the_bits_of_the_whole() -> None:
    pytest.importorskip("jax")
    run = [sys.executable, "-W", "error", "-c", _PROGRAM]
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        run, check=False, capture_output=True, text=True, env={**os.environ, **flags}
    )
    assert result.returncode == 0, result.stderr
