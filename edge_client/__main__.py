"""The program of a device: `python -m edge_client --data FOLDER`."""

from __future__ import annotations

import sys

from edge_client.serving import serve
from edge_client.settings import EdgeSettings
from hfmds.service.process.process import run


def main() -> None:
    """Run the device until it has no more work or a signal stops it."""
    sys.exit(run("edge_client", EdgeSettings, serve))


if __name__ == "__main__":
    main()
