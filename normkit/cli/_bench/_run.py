"""The workers in a row, and their result as data."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import normkit

from ._plan import Filters, Group
from ._timing import Effort

SCHEMA = "normkit-bench-1"

_PACKAGES = ("numpy", "numba", "torch", "jax", "flax", "equinox", "keras")
_NEEDS = {"torch": ("torch",), "jax": ("jax", "flax"), "numpy": ("numpy",)}


class BenchError(Exception):
    """What keeps the benchmark from running; the text says what."""


def processors() -> list[int]:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def missing_packages() -> dict[str, str]:
    """Frameworks and peers that are not here, with the reason."""
    names = ("torch", "jax", "flax", "equinox", "keras")
    return {name: "not installed" for name in names if find_spec(name) is None}


def possible(framework: str) -> bool:
    """Whether what the worker of a framework needs is installed."""
    return all(find_spec(name) is not None for name in _NEEDS[framework])


def run(
    groups: Iterable[Group],
    filters: Filters,
    effort: Effort,
    done: Callable[[Group], None] = lambda group: None,
) -> dict[str, Any]:
    """Measure the groups; ``done`` is called after each."""
    measured: list[dict[str, Any]] = []
    missing = missing_packages()
    for job in _jobs(groups):
        if not possible(job[0].framework):
            continue
        try:
            for group, entry in _work(job, filters, effort):
                measured.append(entry)
                done(group)
        except BenchError as error:
            missing[f"{job[0].framework}, {job[0].threads} threads"] = str(error)
    return {
        "schema": SCHEMA,
        "normkit": normkit.__version__,
        "machine": machine(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "effort": effort._asdict(),
        "measured": measured,
        "missing": missing,
    }


def machine() -> dict[str, Any]:
    """The facts that a reader needs to place the numbers."""
    return {
        "processor": _from_file("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "processors": len(processors()),
        "memory": _from_file("/proc/meminfo", "MemTotal") or "unknown",
        "huge_pages": _huge_pages(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def _from_file(path: str, key: str) -> str | None:
    if not Path(path).exists():
        return None
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _huge_pages() -> str:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not path.exists():
        return "unknown"
    return path.read_text(encoding="utf-8").partition("[")[2].partition("]")[0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _jobs(groups: Iterable[Group]) -> list[list[Group]]:
    """Groups of one framework and number of threads together: a worker's."""
    jobs: dict[tuple[str, int], list[Group]] = {}
    for group in groups:
        jobs.setdefault((group.framework, group.threads), []).append(group)
    return list(jobs.values())


def _work(
    job: list[Group], filters: Filters, effort: Effort
) -> Iterator[tuple[Group, dict[str, Any]]]:
    text = json.dumps(
        {
            "groups": [group._asdict() for group in job],
            "filters": {"ops": filters.ops, "contenders": filters.contenders},
            "effort": effort._asdict(),
        }
    )
    with (
        tempfile.TemporaryFile("w+") as errors,
        start_worker("_worker", job[0].threads, errors) as w,
    ):
        assert w.stdin is not None
        assert w.stdout is not None
        w.stdin.write(text)
        w.stdin.close()
        for group, line in zip(job, w.stdout, strict=False):
            yield group, json.loads(line)
        if status := w.wait():
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["no message"]
            raise BenchError(f"the worker ended with status {status}: {last[0]}")


def start_worker(module: str, threads: int, errors: Any, **variables: str) -> Any:
    """A process with ``threads`` processors for XLA, and as many threads for OpenMP."""
    only = set(processors()[:threads])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        **variables,
    }
    # XLA makes a thread for each processor that it may use.
    pin = f"import os; hasattr(os, 'sched_setaffinity') and os.sched_setaffinity(0, {only}); "
    code = f"{pin}from normkit.cli._bench import {module}; {module}.main()"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
    )
