"""Generates the Python stubs of all contracts: `python protos/generate.py [DESTINATION]`.

The destination defaults to the repository, where the stubs are committed under hfmds/v1.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent


def generate(destination: Path) -> None:
    """Write message stubs, their types and service stubs below `destination`."""
    contracts = sorted(PROTOS.glob("hfmds/v1/*.proto"))
    services = [path for path in contracts if "\nservice " in path.read_text()]
    google_types = resources.files("grpc_tools") / "_proto"
    includes = [f"-I{PROTOS}", f"-I{google_types}"]
    _protoc(*includes, f"--python_out={destination}", f"--pyi_out={destination}", *contracts)
    _protoc(*includes, f"--grpc_python_out={destination}", *services)


def _protoc(*arguments: object) -> None:
    if protoc.main(["protoc", *map(str, arguments)]) != 0:
        sys.exit("protoc failed; its message is above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PROTOS.parent)
