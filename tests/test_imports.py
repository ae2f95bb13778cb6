"""Imports point downward, and importing normkit imports no framework."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

_FRAMEWORKS = {"torch", "jax", "flax", "numba", "keras", "tensorflow", "cupy"}
_ALLOWED = {
    "normkit": set(),
    "normkit.numpy": set(),
    "normkit.kernels": set(),
    "normkit.testing": set(),
    "normkit.cli": set(),
    "normkit.torch": {"torch"},
    "normkit.jax": {"jax"},
    "normkit.flax": {"jax", "flax"},
    "normkit.keras": {"keras"},
    "normkit.flax.linen": {"jax", "flax"},
}


def _loaded_by(code: str) -> set[str]:
    code += "; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("module", _ALLOWED)
def test_import_loads_only_its_own_framework(module: str) -> None:
    parent = module.split(".")[1] if module.count(".") else ""
    if parent in _FRAMEWORKS:
        pytest.importorskip(parent)
    assert _loaded_by(f"import {module}") & _FRAMEWORKS <= _ALLOWED[module]


def test_import_of_the_core_loads_no_array_library() -> None:
    assert "numpy" not in _loaded_by("import normkit")


def test_the_guard_sees_a_framework() -> None:
    pytest.importorskip("jax")
    assert "jax" in _loaded_by("import normkit; import jax") & _FRAMEWORKS


def _imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere in it, relative ones left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def _sources(module: str) -> list[Path]:
    folder = Path(importlib.import_module(module).__file__ or "").parent
    return [p for p in folder.rglob("*.py") if "cli" not in p.relative_to(folder).parts]


def test_core_imports_neither_framework_nor_adapter() -> None:
    adapters = tuple(f"normkit.{name}" for name in ("numpy", "torch", "jax", "flax", "keras"))
    hosts = ("torch", "jax", "flax", "keras")
    sources = [p for p in _sources("normkit") if p.parent.name not in hosts]
    sources = [
        p for p in sources if not (p.parent.name == "numpy" and p.parent.parent.name == "normkit")
    ]
    assert len(sources) > 10
    for path in sources:
        compiled = {"numba"} if path.parent.name == "kernels" else set()
        for name in _imported(path):
            assert name.split(".")[0] not in _FRAMEWORKS - compiled, (path, name)
            assert not name.startswith(adapters), (path, name)


@pytest.mark.parametrize("adapter", ["numpy", "torch", "jax", "flax", "keras"])
def test_adapter_imports_no_other(adapter: str) -> None:
    if adapter != "numpy":
        pytest.importorskip(adapter)
    own = _ALLOWED[f"normkit.{adapter}"] | {"numba"}  # a kernel's compiler, when it is called
    for path in _sources(f"normkit.{adapter}"):
        for name in _imported(path):
            top = name.split(".")
            assert top[0] not in _FRAMEWORKS - own, (path, name)
            if top[0] == "normkit" and len(top) > 1 and not top[1].startswith("_"):
                assert top[1] in own | {"kernels"}, (path, name)
