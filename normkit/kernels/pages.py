"""Fresh memory in large pages: the first touch of an output costs more than the arithmetic."""

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable

# Linux's large page, and from where on an allocation is often fresh
_PAGE = 2 << 20
LARGE = 4 << 20


def ask_for_large_pages(address: int, size: int) -> None:
    """Advise the system to back ``size`` bytes at ``address`` with large pages.

    Of what lies in whole large pages only, so that no other memory is meant. Where the system has
    no such advice, or refuses it, nothing changes.
    """
    if size < LARGE:
        return
    advise = _madvise()
    first = -(-address // _PAGE) * _PAGE
    length = (address + size - first) // _PAGE * _PAGE
    if advise is not None and length > 0:
        advise(first, length, mmap.MADV_HUGEPAGE)


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
