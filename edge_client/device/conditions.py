"""When a device may work: only while it is idle, on mains power, on a network that costs nothing.

What holds is asked, in this order, of the owner's command, of the owner's settings, and of Linux.
A condition that nobody can tell is a ConfigurationError when the device starts, not a device that
never works. Standard library only.
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
"""Whether a condition holds; None: it cannot be told here."""

_POWER = Path("/sys/class/power_supply")
_STAT = Path("/proc/stat")
_COMMAND_SECONDS = 10.0
_BUSY_SHARE = 0.25  # of all processors, by others, above which a device is not idle
_LEAST_LOOK_SECONDS = 1.0


class Conditions:
    """What must hold for this device to work, and whether it does. Blocks: call it in a thread."""

    def __init__(self, required: Sequence[str], probes: Mapping[str, Probe]) -> None:
        """Each required condition must have a probe that can tell."""
        self._required = tuple(required)
        self._probes = probes
        self._trouble = ""  # that was told last
        for name in self._required:
            if probes[name]() is None:
                raise ConfigurationError(
                    f"HFMDS_ONLY_WHEN has {name}, but nobody here can tell whether this device is; "
                    f"set HFMDS_CONDITION_COMMAND to a command that can{_or_setting(name)}"
                )

    def holds(self, name: str) -> bool | None:
        """Whether the condition holds now; None: it cannot be told.

        Later than at the start, who cannot be asked is no reason to stop: the owner's command may
        be replaced just now, or memory be short.
        """
        try:
            return self._probes[name]()
        except ConfigurationError as error:
            if str(error) != self._trouble:
                log.warning("%s", error)
                self._trouble = str(error)
            return None

    def refusal(self) -> str | None:
        """Why the device may not work now; None if it may."""
        # Not known any more, as when the battery is pulled out: then it does not hold.
        unmet = [name for name in self._required if not self.holds(name)]
        return f"the device is not {' and not '.join(unmet)} (HFMDS_ONLY_WHEN)" if unmet else None


def probes(
    command: Sequence[str] = (), charging: bool | None = None, unmetered: bool | None = None
) -> dict[str, Probe]:
    """How each condition is found out on this machine."""
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
    """Whether a charger gives power, by what Linux says of supplies; None: it says nothing."""
    try:
        found = [
            (supply / "online").read_text().strip() != "0"
            for supply in folder.iterdir()
            if (supply / "type").read_text().strip() in ("Mains", "USB", "Wireless")
        ]
    except OSError:
        return None
    return any(found) if found else None


class OthersAtWork:
    """How busy other programs keep the processors, between one look and the next."""

    def __init__(
        self,
        stat: Path = _STAT,
        own_seconds: Callable[[], float] = lambda: sum(os.times()[:4]),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stat = stat
        self._own_seconds = own_seconds
        self._sleep = sleep
        self._last: tuple[float, float] | None = None  # seconds in all, and busy with others

    def idle(self) -> bool | None:
        """Whether others left the processors alone since the last look; None: not Linux."""
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
