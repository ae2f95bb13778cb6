"""Compiled functions that are kept on disk where there is a place."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


@functools.cache
def compiled(function: Callable[..., None]) -> Any:
    """``function`` as Numba compiles it for each signature, without Python's lock."""
    # Numba names the file by the function and checks the time of its module alone
    function.__qualname__ += "_" + _digest()
    try:
        return njit(function, nogil=True, cache=True)
    except RuntimeError:  # there is no folder that Numba could write to
        return njit(function, nogil=True)


@functools.cache
def _digest() -> str:
    """Of all that the loops are made of."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
