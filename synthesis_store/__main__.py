"""The program of the synthesis store."""

from __future__ import annotations

import sys

from hfmds.service.process.process import run
from synthesis_store.serving import serve
from synthesis_store.settings import StoreSettings


def main() -> None:
    """Run the store until a signal stops it."""
    sys.exit(run("synthesis_store", StoreSettings, serve))


if __name__ == "__main__":
    main()
