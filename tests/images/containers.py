"""Images of k8s/Dockerfile and their containers, with podman.

Without a registry, this module makes the Dockerfile's PYTHON_IMAGE from Debian's packages. Images
stay for the next run, because most of their layers do not change.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.1.0"
TARGETS = ("synthesis-store", "edge-client", "edge-simulator", "coordinator")

_BASE = "localhost/hfmds-test/python:3.11"
_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"

# runc and cgroupfs work without systemd; netavark gives every pod an address and a name.
_SETTINGS = """
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""


class Podman:
    """Podman with its own settings."""

    def __init__(self, folder: Path) -> None:
        settings = folder / "containers.conf"
        settings.write_text(_SETTINGS)
        self._environment = {**os.environ, "CONTAINERS_CONF": str(settings)}

    def __call__(self, *arguments: str | Path, check: bool = True) -> str:
        """Return the output of a command. A failure fails the test with the output."""
        done = subprocess.run(
            ["podman", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            words = " ".join(str(argument) for argument in arguments)
            pytest.fail(f"podman {words}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}", False)
        return done.stdout

    def inspect(self, kind: str, name: str) -> dict[str, Any]:
        """Return podman's description of a pod, a container or an image."""
        description = json.loads(self(kind, "inspect", name))
        first: dict[str, Any] = description[0] if isinstance(description, list) else description
        return first

    def build(self, target: str) -> str:
        """Build a target of the Dockerfile from the current sources; return the image's name."""
        image = f"hfmds/{target}:{VERSION}"
        self(
            *("build", "--layers", "--network", "host", "--quiet", "--tag", image),
            *("--build-arg", f"PYTHON_IMAGE={self._python_image()}", "--target", target),
            *("--file", ROOT / "k8s" / "Dockerfile", ROOT),
        )
        return image

    def _python_image(self) -> str:
        """Return PYTHON_IMAGE, or an equivalent image of Debian with Python 3.11."""
        if given := os.environ.get("PYTHON_IMAGE"):
            return given
        if not self("images", "--quiet", _BASE):
            self._make_base(Path(self._environment["CONTAINERS_CONF"]).with_name("base.tar"))
        return _BASE

    def _make_base(self, archive: Path) -> None:
        # pip needs the authorities and the index of this machine.
        hooks = [
            f"--customize-hook=upload {file} {file}"
            for file in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
            if Path(file).exists()
        ]
        leave_out = [
            f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "locale", "man")
        ]
        subprocess.run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}"),
                *(*hooks, *leave_out, "bookworm", archive),
            ],
            check=True,
        )
        self("import", archive, _BASE)
        archive.unlink()
