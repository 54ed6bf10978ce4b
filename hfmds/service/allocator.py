"""The C library's allocator, set for a server that moves chunks of a megabyte in many threads."""

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
