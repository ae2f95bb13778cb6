"""`normkit identify`: a norm by its import path, and what it follows."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class NotFoundError(Exception):
    """What was named on the command line is not there; the text says what."""


def load(path: str) -> Any:
    """The object named by ``module:object`` or ``file.py:object``."""
    module_name, _, name = path.rpartition(":")
    if not module_name or not name:
        raise NotFoundError(f"name it as module:object or file.py:object; got {path!r}")
    module = _from_file(Path(module_name)) if module_name.endswith(".py") else _module(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotFoundError(f"{module_name} has no {name}")
        found = getattr(found, part)
    return found


def _module(name: str) -> ModuleType:
    sys.path.insert(0, "")  # modules of the working folder, as python -m finds them
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotFoundError(f"cannot import {name}: {error}") from error
    finally:
        sys.path.remove("")


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.exists() or spec is None or spec.loader is None:
        raise NotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def values(texts: Sequence[str]) -> list[Any]:
    """Arguments as Python literals; what is none stays text."""
    return [_value(text) for text in texts]


def named_values(texts: Sequence[str]) -> dict[str, Any]:
    """``name=value`` arguments."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise NotFoundError(f"an option is name=value; got {name!r}")
    return {name: _value(value) for name, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
