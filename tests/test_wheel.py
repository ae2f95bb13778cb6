"""The wheel holds the sources, all of them and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent


def _source_files() -> set[str]:
    found = set()
    for folder, name in (("normkit", "normkit"), ("adapters", "normkit")):
        for path in (_ROOT / folder).rglob("*"):
            inside = path.relative_to(_ROOT / folder)
            if path.is_file() and "__pycache__" not in inside.parts:
                found.add(f"{name}/{inside.as_posix()}")
    # adapters/__init__.py is a signpost that must not be packaged: normkit has its own
    assert "normkit/__init__.py" in found
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist, from a clean copy: a stale build/ would leak into it."""
    pytest.importorskip("build")
    if not (_ROOT / "adapters").exists():
        pytest.skip("the sources are not here: the tests run on an installed wheel")
    copy = tmp_path_factory.mktemp("sources") / "normkit"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "site", "*.egg-info", ".*_cache"
    )
    shutil.copytree(_ROOT, copy, ignore=ignored)
    out = copy / "dist"
    run = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    subprocess.run(run, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_wheel_holds_the_source_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {n for n in names if ".dist-info/" not in n}
    assert packaged == _source_files()
    assert "normkit/py.typed" in packaged


def test_wheel_says_what_it_is(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    metadata = files.read(next(n for n in files.namelist() if n.endswith("METADATA"))).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert any(n.endswith("licenses/LICENSE") for n in files.namelist())
    entry_points = files.read(next(n for n in files.namelist() if n.endswith("entry_points.txt")))
    assert b"normkit = normkit.cli:main" in entry_points
    for extra in ("torch", "jax", "flax", "cli", "all"):
        assert f"Provides-Extra: {extra}" in metadata


def test_signpost_refuses_to_be_imported() -> None:
    if not (_ROOT / "adapters").exists():
        pytest.skip("the sources are not here: the tests run on an installed wheel")
    run = [sys.executable, "-c", "import adapters.torch"]
    result = subprocess.run(run, check=False, capture_output=True, text=True, cwd=_ROOT)
    assert "ImportError: adapters/ is a source folder" in result.stderr
