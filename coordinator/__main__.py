"""The coordinator's program."""

from __future__ import annotations

import sys

from coordinator.serving import serve
from coordinator.settings import CoordinatorSettings
from hfmds.service.process.process import run


def main() -> None:
    """Run the coordinator until a signal stops it."""
    sys.exit(run("coordinator", CoordinatorSettings, serve))


if __name__ == "__main__":
    main()
