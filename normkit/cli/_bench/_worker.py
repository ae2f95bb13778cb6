"""The process that measures one framework with one number of threads.

It reads a job as JSON from the standard input, and writes a line of JSON for each group.
"""

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from normkit.cli._info import kernel_names

from ._plan import COMPILED_SHAPES, Filters, Group
from ._timing import Effort, in_turn


def _host(framework: str) -> Any:
    return importlib.import_module(f"normkit.cli._bench._{framework}")


def _served(host: Any, group: Group) -> str:
    """The kernel that serves: the first of the table that runs when it is named."""
    for name in kernel_names(group.framework):
        try:
            host.kernel_runs(name, group)
        except ValueError:
            continue
        return name
    return "none"


def _wanted(name: str, group: Group, filters: Filters) -> bool:
    if group.contenders is not None:
        return name in group.contenders
    if ".compile " in name and group.shape not in COMPILED_SHAPES and not filters.contenders:
        return False
    return filters.wants(name)


def measure(group: Group, filters: Filters, effort: Effort) -> dict[str, Any]:
    """Seconds a call for each contender of a group; why one is missing."""
    host = _host(group.framework)
    functions: dict[str, Callable[[], object]] = {}
    missing: dict[str, str] = {}
    for name, make in host.contenders(group).items():
        if not _wanted(name, group, filters):
            continue
        try:
            function = make()
            function()
        except Exception as error:  # noqa: BLE001 (another package's, of any kind)
            missing[name] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        else:
            functions[name] = function
    seconds = in_turn(functions, effort) if functions else {}
    return {
        **{k: v for k, v in group._asdict().items() if k != "contenders"},
        "kernel": _served(host, group),
        "nanoseconds": {name: [round(1e9 * s) for s in each] for name, each in seconds.items()},
        "missing": missing,
    }


def _jobs(job: dict[str, Any]) -> Iterator[Group]:
    for group in job["groups"]:
        contenders = group["contenders"]
        yield Group(
            **{
                **group,
                "shape": tuple(group["shape"]),
                "contenders": None if contenders is None else tuple(contenders),
            }
        )


def main() -> None:
    """Measure what the standard input asks for."""
    # Whatever a framework prints must not come between the lines of JSON.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    job = json.load(sys.stdin)
    filters, effort = Filters(**job["filters"]), Effort(**job["effort"])
    host = None
    for group in _jobs(job):
        if host is None:
            host = _host(group.framework)
            host.set_threads(group.threads)
        print(json.dumps(measure(group, filters, effort)), file=out, flush=True)


if __name__ == "__main__":
    main()
