"""When a device may work: while it is idle, on mains power, on an unmetered network.

The owner's command answers first, then the owner's settings, then Linux. A required condition that
none of them can tell is a ConfigurationError at the start. Uses the standard library only.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from hfmds.errors import ConfigurationError

log = logging.getLogger(__name__)

CONDITIONS = ("idle", "charging", "unmetered")

Probe: TypeAlias = Callable[[], bool | None]
"""Returns whether a condition holds; None: unknown on this device."""

_POWER = Path("/sys/class/power_supply")
_STAT = Path("/proc/stat")
_COMMAND_SECONDS = 10.0
_BUSY_SHARE = 0.25  # a device is idle while others use less of its processors
_LEAST_LOOK_SECONDS = 1.0


class Conditions:
    """The conditions that must hold for this device to work. Blocks: call it in a thread."""

    def __init__(self, required: Sequence[str], probes: Mapping[str, Probe]) -> None:
        """Raise ConfigurationError if no probe can tell a required condition."""
        self._required = tuple(required)
        self._probes = probes
        self._trouble = ""  # the last logged error
        for name in self._required:
            if probes[name]() is None:
                raise ConfigurationError(
                    f"HFMDS_ONLY_WHEN has {name}, but this device cannot tell whether it is; "
                    f"set HFMDS_CONDITION_COMMAND to a command that can{_or_setting(name)}"
                )

    def holds(self, name: str) -> bool | None:
        """Return whether the condition holds now; None: unknown.

        After the start, a command that cannot be run is logged and the device goes on: its owner
        may be replacing it.
        """
        try:
            return self._probes[name]()
        except ConfigurationError as error:
            if str(error) != self._trouble:
                log.warning("%s", error)
                self._trouble = str(error)
            return None

    def refusal(self) -> str | None:
        """Return why the device may not work now; None if it may."""
        # An unknown condition does not hold, as when the battery is pulled out.
        unmet = [name for name in self._required if not self.holds(name)]
        return f"the device is not {' and not '.join(unmet)} (HFMDS_ONLY_WHEN)" if unmet else None


def probes(
    command: Sequence[str] = (), charging: bool | None = None, unmetered: bool | None = None
) -> dict[str, Probe]:
    """Return the probe of each condition."""
    if command:
        return {name: _asking(command, name) for name in CONDITIONS}
    return {
        "idle": OthersAtWork().idle,
        "charging": on_mains_power if charging is None else lambda: charging,
        "unmetered": lambda: unmetered,
    }


def _or_setting(name: str) -> str:
    return "" if name == "idle" else f", or set HFMDS_{name.upper()}"


def _asking(command: Sequence[str], condition: str) -> Probe:
    def ask() -> bool:
        try:
            ended = subprocess.run(  # noqa: S603 (the owner's own command)
                [*command, condition],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            log.warning("%s %s took over %.0f s: no", command[0], condition, _COMMAND_SECONDS)
            return False
        except OSError as error:
            raise ConfigurationError(
                f"HFMDS_CONDITION_COMMAND cannot be run ({error}); give a program that ends with "
                f"0 if the device is what its argument says ({', '.join(CONDITIONS)}), else 1"
            ) from error
        if ended.returncode not in (0, 1):
            log.warning("%s %s ended with %d: no", command[0], condition, ended.returncode)
        return ended.returncode == 0

    return ask


def on_mains_power(folder: Path = _POWER) -> bool | None:
    """Return whether a charger gives power, from Linux; None: unknown."""
    try:
        online = [
            (supply / "online").read_text().strip() != "0"
            for supply in folder.iterdir()
            if (supply / "type").read_text().strip() in ("Mains", "USB", "Wireless")
        ]
    except OSError:
        return None
    return any(online) if online else None


class OthersAtWork:
    """Measures how busy other programs keep the processors, from one look to the next."""

    def __init__(
        self,
        stat: Path = _STAT,
        own_seconds: Callable[[], float] = lambda: sum(os.times()[:4]),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stat = stat
        self._own_seconds = own_seconds
        self._sleep = sleep
        self._last: tuple[float, float] | None = None  # seconds in total, and used by others

    def idle(self) -> bool | None:
        """Return whether others left the processors alone since the last look; None: no Linux."""
        now = self._look()
        if now is None:
            return None
        if self._last is None or now[0] - self._last[0] < _LEAST_LOOK_SECONDS:
            self._last = self._last or now
            self._sleep(_LEAST_LOOK_SECONDS)
            now = self._look() or now
        passed, busy = now[0] - self._last[0], now[1] - self._last[1]
        self._last = now
        return passed <= 0 or busy / passed <= _BUSY_SHARE

    def _look(self) -> tuple[float, float] | None:
        try:
            # user nice system idle iowait irq softirq steal, of all processors together
            spent = [int(ticks) for ticks in self._stat.read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        per_second = os.sysconf("SC_CLK_TCK")
        resting = spent[3] + spent[4]
        return sum(spent) / per_second, (sum(spent) - resting) / per_second - self._own_seconds()
