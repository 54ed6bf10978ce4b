"""The number of files this process may open. Each connection is one.

Systems start processes with a low limit, often 1024, that the process may raise to a second limit.
"""

from __future__ import annotations

import resource

OWN_FILES = 100
"""Files a server opens besides connections and content: its database, logs, libraries."""

_MOST = 1 << 20  # more than a machine can serve, and every system accepts it


def raise_open_files() -> int:
    """Raise the limit as far as the user of this process may; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_files_allowed()


def open_files_allowed() -> int:
    """Return how many files this process may have open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft


def connections_allowed() -> int:
    """Return how many of the open files may be connections.

    A server without a free file loses its database and its content. One file in four stays free
    for the content that calls read and write.
    """
    return max(1, (open_files_allowed() - OWN_FILES) * 3 // 4)
