"""`normkit census`: a model by its import path or by a configuration file."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normkit.cli._identify import NotFoundError, load


def build_model(target: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The model, on the meta device: no weights are made, as norms are called with the probes'.

    ``target`` is ``module:object`` or ``file.py:object``, a module, a class or a function that
    makes one; or the config.json of a transformers model. A class that has a ``config_class``,
    as those of transformers, is made with its default configuration unless there are arguments.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise NotFoundError(f"census needs torch: {error}") from error
    with torch.device("meta"):
        if target.endswith(".json"):
            return _from_configuration(Path(target))
        found = load(target)
        if isinstance(found, torch.nn.Module):
            return found
        configuration = getattr(found, "config_class", None)
        if configuration is not None and not args and not options:
            return found(configuration())
        return found(*args, **options)


def _from_configuration(path: Path) -> Any:
    if not path.exists():
        raise NotFoundError("there is no such file")
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise NotFoundError(f"a configuration needs transformers: {error}") from error
    return transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(path.parent))
