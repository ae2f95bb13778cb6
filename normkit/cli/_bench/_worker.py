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

from ._memory import peak_bytes
from ._plan import Filters, Group
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
    if ".compile " in name and not group.compiled and not filters.contenders:
        return False
    return filters.wants(name)


def measure(group: Group, filters: Filters, effort: Effort) -> dict[str, Any]:
    """Nanoseconds a call for each contender of a group, and why one is missing."""
    host = _host(group.framework)
    functions, missing = _functions(host.contenders(group), group, filters)
    seconds = in_turn(functions, effort) if functions else {}
    return {
        **_place(group),
        "kernel": _served(host, group),
        "nanoseconds": {name: [round(1e9 * s) for s in each] for name, each in seconds.items()},
        "missing": missing,
    }


def weigh(group: Group, filters: Filters, effort: Effort) -> dict[str, Any]:
    """Bytes of memory that a call of each contender takes, and that autograd keeps."""
    host = _host(group.framework)
    functions, _ = _functions(host.contenders(group), group, filters)
    saves = group.passes == "forward+backward" and hasattr(host, "saved_bytes")
    return {
        **_place(group),
        "peak": {name: peak_bytes(function) for name, function in functions.items()},
        "saved": {n: host.saved_bytes(f) for n, f in functions.items() if " " in n and saves},
    }


def _place(group: Group) -> dict[str, Any]:
    fields = ("framework", "passes", "shape", "dtype", "threads")
    return {key: value for key, value in group._asdict().items() if key in fields}


def _functions(
    made: dict[str, Callable[[], Callable[[], object]]], group: Group, filters: Filters
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """The contenders that are wanted and run, and of the others why not."""
    found: dict[str, Callable[[], object]] = {}
    missing: dict[str, str] = {}
    for name, make in made.items():
        if not _wanted(name, group, filters):
            continue
        try:
            function = make()
            function()
        except Exception as error:  # noqa: BLE001 (another package's, of any kind)
            missing[name] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        else:
            found[name] = function
    return found, missing


def _groups(job: dict[str, Any]) -> Iterator[Group]:
    for fields in job["groups"]:
        group = Group(**fields)
        names = None if group.contenders is None else tuple(group.contenders)
        yield group._replace(shape=tuple(group.shape), contenders=names)


def main() -> None:
    """Measure what the standard input asks for."""
    # Whatever a framework prints must not come between the lines of JSON.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    job = json.load(sys.stdin)
    filters, effort = Filters(**job["filters"]), Effort(**job["effort"])
    work = {"time": measure, "memory": weigh}[job["what"]]
    _host(job["groups"][0]["framework"]).set_threads(job["groups"][0]["threads"])
    for group in _groups(job):
        print(json.dumps(work(group, filters, effort)), file=out, flush=True)
