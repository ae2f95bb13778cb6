"""Every Python block of the README and the docs runs, and every docstring's example."""

import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import e2e_page
import pytest

_ROOT = Path(__file__).parent.parent
_PAGES = sorted([_ROOT / "README.md", *(_ROOT / "docs").glob("*.md")])
_PAGES = [page for page in _PAGES if page.exists()]
_MODULES = (
    "normkit",
    "normkit.conventions",
    "normkit.numpy",
    "normkit.torch",
    "normkit.jax",
    "normkit.flax",
    "normkit.flax.linen",
    "normkit.testing",
)


def test_tables_of_presets_are_those_of_the_data() -> None:
    spec = importlib.util.spec_from_file_location("presets", _ROOT / "docs" / "_presets.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = generator.PAGE.read_text(encoding="utf-8")
    assert page.count("| `llama` |") == 1
    assert generator.with_tables(page) == page


def test_table_of_models_is_that_of_the_data() -> None:
    """`make e2e` writes both; what is recorded keeps every bar."""
    assert e2e_page.page() == e2e_page.PATH.read_text(encoding="utf-8")
    for name, bars in e2e_page.recorded().items():
        assert [bar.what for bar in bars if not bar.holds] == [], name


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_blocks_of_a_page_run(page: Path) -> None:
    """Top to bottom in one namespace; a page's claims are assertions in its blocks."""
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": page.stem}
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start(1))
        code = compile("\n" * line + match[1], str(page), "exec")
        exec(code, namespace)  # noqa: S102 (the page is our own)


def _public(module: ModuleType) -> list[tuple[str, Any]]:
    names = module.__all__
    return [(f"{module.__name__}.{name}", getattr(module, name)) for name in names]


@pytest.mark.parametrize("name", _MODULES)
def test_examples_of_docstrings_run(name: str) -> None:
    top = name.split(".")[1] if "." in name else ""
    if top in ("torch", "jax", "flax"):
        pytest.importorskip(top)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    finder = doctest.DocTestFinder(recurse=False)
    for label, thing in [(name, module), *_public(module)]:
        if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing):
            home = inspect.getmodule(thing)
            for test in finder.find(thing, label, module=home, globs=dict(vars(home))):
                runner.run(test)
    assert runner.failures == 0


@pytest.mark.parametrize("name", _MODULES)
def test_public_names_are_documented(name: str) -> None:
    """A public function or class has a docstring, and a function's names all its arguments."""
    top = name.split(".")[1] if "." in name else ""
    if top in ("torch", "jax", "flax"):
        pytest.importorskip(top)
    module = importlib.import_module(name)
    assert module.__doc__
    for label, thing in _public(module):
        if inspect.isfunction(thing):
            text = inspect.getdoc(thing) or ""
            parameters = inspect.signature(thing).parameters
            by_reference = "with the same arguments" in text
            missing = [p for p in parameters if not re.search(rf"\b{p}\b", text)]
            assert by_reference or not missing, (label, missing)
        elif inspect.isclass(thing):
            assert thing.__doc__, label


def test_every_public_name_of_a_module_is_in_all() -> None:
    for name in ("normkit", "normkit.numpy", "normkit.testing"):
        module = importlib.import_module(name)
        defined = {
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and not inspect.ismodule(value)
        }
        assert defined - {"version", "TYPE_CHECKING", "Any"} <= set(module.__all__), name
        assert all(hasattr(module, key) for key in module.__all__), name
