"""The C library's allocator, for servers that move chunks in many threads and for small devices."""

from __future__ import annotations

import ctypes

# Names and numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MEGABYTE = 1024 * 1024


def reuse_freed_memory() -> bool:
    """Have freed memory used again; false where the C library is not glibc, which is left alone.

    By itself glibc gives a chunk's pages back to the kernel and gets others for the next chunk,
    which takes longer than to copy it, and keeps a heap for each thread that none of the others
    uses. Call it before there are threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = {
        _M_TRIM_THRESHOLD: 64 * _MEGABYTE,
        _M_MMAP_THRESHOLD: 32 * _MEGABYTE,  # the largest that glibc takes
        _M_ARENA_MAX: 1,
    }
    taken = [mallopt(name, value) for name, value in settings.items()]
    return all(taken)


def share_one_heap() -> bool:
    """Have all threads take memory from one heap; false where the C library is not glibc.

    By itself each thread of a device that computes has one, with what its last task left. Call it
    before there are threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_ARENA_MAX, 1))


def give_back_freed_memory() -> None:
    """Give the kernel back what is free at once; where the C library is not glibc, nothing."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    trim(0)
