"""What mkdocstrings cannot know of this repository."""

import re
from pathlib import Path
from typing import Any

import griffe

_ADAPTERS = Path(__file__).parent.parent / "adapters"


class Normkit(griffe.Extension):
    """Find adapters/torch as normkit.torch, and read "Example:" as a section of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object: "Examples:" and names on one line are what the parser knows."""
        if obj.docstring:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            if obj.path.startswith("normkit.flax.linen."):  # a Linen module's fields
                text = text.replace("\nAttributes:\n", "\nArgs:\n")
            obj.docstring.value = re.sub(r",\n +(?=[\w, ]+: As in)", ", ", text)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Called when normkit has been read: read the adapters into it."""
        if pkg.path != "normkit":
            return
        for init in sorted(_ADAPTERS.glob("*/__init__.py")):
            adapter = _read(init.parent.name, init, pkg, loader)
            for path in sorted(init.parent.glob("*.py")):
                if path != init:
                    _read(path.stem, path, adapter, loader)


def _read(
    name: str, path: Path, parent: griffe.Module, loader: griffe.GriffeLoader
) -> griffe.Module:
    module = griffe.visit(
        name,
        filepath=path,
        code=path.read_text(encoding="utf-8"),
        extensions=loader.extensions,
        parent=parent,
        docstring_parser=loader.docstring_parser,
        docstring_options=loader.docstring_options,
        lines_collection=loader.lines_collection,
        modules_collection=loader.modules_collection,
    )
    parent.set_member(name, module)
    return module
