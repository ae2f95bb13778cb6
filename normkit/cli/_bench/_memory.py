"""What a call costs in memory, read from the kernel's own account of the process.

That account has every framework's memory, which no framework's own profiler has. The worker runs
with a C library that gives memory back at once (`ENVIRONMENT`), else a call would find what the
call before had freed, and seem to need nothing.
"""

import gc
from collections.abc import Callable
from pathlib import Path

# glibc: from this size on, in bytes, an allocation has pages of its own.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_bytes(function: Callable[[], object]) -> int | None:
    """Resident bytes at the highest point of a call beyond those before it; None if unknown.

    The result is part of it, and so is what other threads take or free meanwhile. Resolution: some
    MiB, for the kernel counts the pages of each processor and adds them up now and then.
    """
    if not _CLEAR.exists():
        return None
    function()
    gc.collect()
    try:
        _CLEAR.write_text("5", encoding="ascii")  # the high-water mark is now what is resident
    except OSError:
        return None
    before = _kilobytes("VmRSS")
    result = function()
    peak = _kilobytes("VmHWM")
    del result
    return 1024 * max(0, peak - before)


def _kilobytes(key: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    return 0
