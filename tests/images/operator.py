"""An operator outside the cluster who uses the `hfmds` command."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

RUN_SECONDS = 900.0


class Operator:
    """Calls the published addresses of the coordinator and the store."""

    def __init__(self, coordinator: str, store: str, **settings: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HFMDS_")}
        settings |= {"coordinator": coordinator, "store": store}
        ours = {f"HFMDS_{name.upper()}": value for name, value in settings.items()}
        self._environment = {**inherited, **ours}

    def __call__(self, command: str) -> str:
        """Return the output of a command."""
        done = subprocess.run(
            [Path(sysconfig.get_path("scripts")) / "hfmds", *command.split()],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create_run(self, devices: int, rounds: int) -> None:
        """Create a run that learns digits on all devices, with a refresh every second round."""
        self(
            "run create --run-id digits --channels 1 --height 20 --width 20 --alpha 0.5 "
            f"--rounds {rounds} --first-refresh 2 --refresh-every 2 --synthetic-images 10 "
            f"--synthesis-steps 10 --minimum-devices {devices} --lease-seconds 20"
        )

    def run(self) -> dict[str, Any]:
        """Return the run with its completed rounds."""
        shown: dict[str, Any] = json.loads(self("run show digits --json"))
        return shown

    def until_rounds(self, count: int) -> dict[str, Any]:
        """Wait until this number of rounds is completed; return the run."""

        def completed() -> dict[str, Any] | None:
            run = self.run()
            return run if len(run["rounds"]) >= count else None

        run = wait_until(completed, RUN_SECONDS)
        assert run is not None
        return run
