"""The workers in a row, and their result as data."""

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import normkit

from ._memory import ENVIRONMENT
from ._plan import Filters, Group, size
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
    groups: Sequence[Group],
    weighed: Sequence[Group],
    filters: Filters,
    effort: Effort,
    done: Callable[[Group], None] = lambda group: None,
    budget_s: float | None = None,
) -> dict[str, Any]:
    """Time the groups, and measure the memory of those in ``weighed``.

    ``done`` is called after each. Where ``budget_s`` seconds are not enough for all, what is left out
    is named in the result, and each worker has had its share of the time.
    """
    facts = machine()  # before the workers load it
    missing = missing_packages()
    large = {group for group in groups if not _fits(group)}
    missing |= {f"{size(group.shape)} {group.dtype}": "too little memory" for group in large}
    groups, weighed = ([g for g in some if g not in large] for some in (groups, weighed))
    found: dict[str, list[dict[str, Any]]] = {"time": [], "memory": []}
    jobs = [(w, job) for w, some in (("time", groups), ("memory", weighed)) for job in _jobs(some)]
    end = None if budget_s is None else time.monotonic() + budget_s
    for i, (what, job) in enumerate(jobs):
        share = None if end is None else (end - time.monotonic()) / (len(jobs) - i)
        try:
            for group, entry in _work(what, job, filters, effort, share):
                found[what].append(entry)
                done(group)
        except BenchError as error:
            missing[f"{what}, {job[0].framework}, {job[0].threads} threads"] = str(error)
    return {
        "schema": SCHEMA,
        "normkit": normkit.__version__,
        "machine": facts,
        "packages": {name: _version(name) for name in _PACKAGES},
        "effort": effort._asdict(),
        "measured": found["time"],
        "memory": found["memory"],
        "missing": missing,
    }


def _fits(group: Group) -> bool:
    """Whether there is memory for the most wasteful contender, which takes some 30 times x."""
    available = _from_file("/proc/meminfo", "MemAvailable")
    return available is None or 40 * group.bytes_of_x < 1024 * int(available.split()[0])


def as_text(result: dict[str, Any]) -> str:
    """JSON with a line for each group."""
    parts = []
    for key, value in result.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def machine_name(machine: dict[str, Any]) -> str:
    """What a file with results of this machine is called."""
    text = f"{machine['processor']} {machine['processors']} processors".lower()
    return re.sub("[^a-z0-9]+", "-", text).strip("-")


def machine() -> dict[str, Any]:
    """The facts that a reader needs to place the numbers."""
    return {
        "processor": _from_file("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "processors": len(processors()),
        "memory": _from_file("/proc/meminfo", "MemTotal") or "unknown",
        "huge_pages": _huge_pages(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
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
    what: str, job: list[Group], filters: Filters, effort: Effort, share_s: float | None
) -> Iterator[tuple[Group, dict[str, Any]]]:
    """Each group of a job with what its worker says of it; BenchError where it does not finish."""
    text = json.dumps(
        {
            "what": what,
            "groups": [group._asdict() for group in job],
            "filters": {"ops": filters.ops, "contenders": filters.contenders},
            "effort": effort._asdict(),
        }
    )
    count = 0
    with tempfile.TemporaryFile("w+") as errors, _start(what, job[0].threads, errors) as worker:
        time_is_up = threading.Event()

        def stop() -> None:
            time_is_up.set()
            worker.kill()

        watch = threading.Timer(share_s or 0.0, stop)
        watch.daemon = True
        if share_s is not None:
            watch.start()
        assert worker.stdin is not None
        assert worker.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # its status says why
            worker.stdin.write(text)
            worker.stdin.close()
        for line in worker.stdout:
            if line.endswith("\n"):  # a worker that is stopped may leave half a line
                count += 1
                yield job[count - 1], json.loads(line)
        status = worker.wait()
        watch.cancel()
        if time_is_up.is_set() and count < len(job):
            raise BenchError(f"{len(job) - count} of {len(job)} left out: the time was up")
        if status and count < len(job):
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["no message"]
            raise BenchError(f"the worker ended with status {status}: {last[0]}")


def _start(what: str, threads: int, errors: IO[str]) -> subprocess.Popen[str]:
    """A worker with ``threads`` processors, and as many threads for OpenMP."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        **(ENVIRONMENT if what == "memory" else {}),
    }
    code = "from normkit.cli._bench._worker import main; main()"
    if hasattr(os, "sched_setaffinity"):  # XLA makes a thread for each processor it may use
        code = f"import os; os.sched_setaffinity(0, {set(processors()[:threads])}); {code}"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
    )
