"""A device that is not here is said so once, as a skip, or as a failure where it is required."""

import subprocess
import sys

import pytest
from conftest import missing_backends

_DEVICES = ("torch:cpu", "torch:cuda", "jax:cpu", "jax:gpu", "jax:tpu", "flax:cpu")


@pytest.mark.parametrize("label", _DEVICES)
def test_device_is_here(label: str, request: pytest.FixtureRequest) -> None:
    if label not in missing_backends():
        return  # its rows run in every test that takes ``backend``
    if label in request.config.getoption("--require"):
        pytest.fail(f"{label} is required: {missing_backends()[label]}")
    pytest.skip(missing_backends()[label])


@pytest.mark.skipif(not missing_backends(), reason="every device is here")
def test_require_makes_absence_a_failure() -> None:
    label = next(iter(missing_backends()))
    run = [sys.executable, "-m", "pytest", "-q", __file__, "-k", "test_device_is_here"]

    free = subprocess.run(run, check=False, capture_output=True, text=True)
    required = subprocess.run(
        [*run, "--require", label], check=False, capture_output=True, text=True
    )
    assert free.returncode == 0
    assert required.returncode == 1
    assert f"{label} is required" in required.stdout


def test_require_refuses_an_unknown_label() -> None:
    run = [sys.executable, "-m", "pytest", "-q", __file__, "--require", "torch:abacus"]
    result = subprocess.run(run, check=False, capture_output=True, text=True)
    assert result.returncode == 4
    assert "--require torch:abacus: no such backend" in result.stderr
