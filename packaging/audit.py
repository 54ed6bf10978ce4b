"""Asks PyPI's advisory database for known holes in the installed packages.

    python packaging/audit.py [-s osv]     pip-audit gets the arguments

Ends with 1 if a package has a hole, and with 3 if it could not ask about some packages. pip-audit
itself skips packages that a mirror does not know, and ends with 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

HOLES, NOT_ASKED = 1, 3

_COMMAND = (
    sys.executable,
    *("-m", "pip_audit", "--skip-editable", "--format", "json", "--progress-spinner", "off"),
)
_REMEDY = "run it where PyPI itself can be reached, not a mirror, or ask another service: `-s osv`"


def verdict(dependencies: Sequence[dict[str, Any]]) -> tuple[int, list[str]]:
    """The exit code and the lines to print for the report of pip-audit."""
    lines = [
        f"{package['name']} {package['version']}: {hole['id']}, fixed in "
        f"{', '.join(hole['fix_versions']) or 'no version yet'}"
        for package in dependencies
        for hole in package.get("vulns", ())
    ]
    skipped = [
        package["name"]
        for package in dependencies
        if "skip_reason" in package and "editable" not in package["skip_reason"]
    ]
    if skipped:
        lines.append(
            f"cannot ask about {len(skipped)} of {len(dependencies)} packages "
            f"({', '.join(skipped[:3])}, ...); {_REMEDY}"
        )
    asked = len(dependencies) - len(skipped)
    if not lines:
        lines.append(f"no known holes in {asked} packages")
    holes = any(package.get("vulns") for package in dependencies)
    return HOLES if holes else NOT_ASKED if skipped else 0, lines


def main(arguments: Sequence[str]) -> int:
    """Run pip-audit and print its verdict."""
    result = subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True)  # noqa: S603
    try:
        code, lines = verdict(json.loads(result.stdout)["dependencies"])
    except ValueError:
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        code, lines = NOT_ASKED, [f"pip-audit could not ask ({last[:300]}); {_REMEDY}"]
    sys.stdout.write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
