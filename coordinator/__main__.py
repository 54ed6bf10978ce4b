"""The coordinator's program."""

from __future__ import annotations

import sys

from coordinator.serving import serve
from coordinator.settings import CoordinatorSettings
from hfmds.service.process.allocator import reuse_freed_memory
from hfmds.service.process.process import run


def main() -> None:
    """Run the coordinator until a signal stops it."""
    reuse_freed_memory()
    sys.exit(run("coordinator", CoordinatorSettings, serve))


if __name__ == "__main__":
    main()
