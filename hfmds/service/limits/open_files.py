"""How many files this process may have open at once: each connection is one.

Systems start processes with a low limit, often 1024, that they may raise themselves, up to a
second one. Low is for programs that cannot bear high numbers; ours can.
"""

from __future__ import annotations

import resource

OWN_FILES = 100
"""What a server has open besides connections and content: its database, logs, libraries."""

_MOST = 1 << 20  # more than a machine can serve, and a number that every system takes


def raise_open_files() -> int:
    """Let this process have as many open as its user may; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_files_allowed()


def open_files_allowed() -> int:
    """How many files this process may have open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft


def connections_allowed() -> int:
    """How many of them may be connections, so that the others are always left.

    A server that can open no more files loses its database and its content, too. One in four is
    for the content that calls read and write.
    """
    return max(1, (open_files_allowed() - OWN_FILES) * 3 // 4)
