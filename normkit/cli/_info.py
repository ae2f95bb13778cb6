"""`normkit info`: what is installed, which devices and kernels there are, and what is missing."""

import importlib
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import normkit
from normkit.cli.backends import find_backends
from normkit.kernels import cpu

_PACKAGES = (
    *("numpy", "ml-dtypes", "numba", "array-api-compat", "torch", "jax", "flax"),
    *("typer", "rich", "matplotlib"),
)


def info_lines() -> Iterator[str]:
    """The report, line by line, as plain text."""
    yield f"normkit {normkit.__version__} on Python {platform.python_version()}, {platform.platform()}"
    yield ""
    yield "packages"
    for package in _PACKAGES:
        yield f"  {package:18}{_version(package)}"
    found, missing = find_backends()
    yield ""
    yield "backends"
    for backend in found:
        yield f"  {backend.label:18}kernels: {', '.join(kernel_names(backend.framework))}"
    for label, reason in missing.items():
        yield f"  {label:18}missing: {reason}"
    if why_not := cpu.unavailable():
        yield f"  {'kernel numba':18}missing: {why_not}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def kernel_names(framework: str) -> list[str]:
    """The kernels of an adapter, in the order of its table; flax runs those of jax."""
    host = "jax" if framework == "flax" else framework
    where = "_library" if host == "torch" else "_functional"
    table = importlib.import_module(f"normkit.{host}.{where}").KERNELS
    return [kernel.name for kernel in table]
