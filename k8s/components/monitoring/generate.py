"""Writes the dashboards from `sources/`, and the rules in the form of prometheus-operator.

    make dashboards

Run it after a change of `sources/` or `rules/`; a test compares.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from k8s.components.monitoring.sources.fleet import fleet
from k8s.components.monitoring.sources.rounds import rounds
from k8s.components.monitoring.sources.services import services
from k8s.components.monitoring.sources.synthetic_data import synthetic_data

FOLDER = Path(__file__).parent
RULES = FOLDER / "rules" / "hfmds.yaml"
_RESOURCE = """\
# Written by generate.py from rules/hfmds.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: hfmds
spec:
"""


def written() -> dict[Path, str]:
    """Return every derived file with its content."""
    boards = (rounds(), fleet(), synthetic_data(), services())
    dashboards = [_numbered(board.build()) for board in boards]
    files = {FOLDER / "dashboards" / f"{one.uid}.json": _as_json(one) for one in dashboards}
    return {**files, FOLDER / "prometheus-rule.yaml": _wrapped(RULES.read_text())}


def _numbered(dashboard: Dashboard) -> Dashboard:
    """Number the panels, so that links can name them."""
    for number, panel in enumerate(dashboard.panels or (), start=1):
        panel.id_val = number
    return dashboard


def _as_json(dashboard: Dashboard) -> str:
    return json.dumps(dashboard, cls=JSONEncoder, indent=1, ensure_ascii=False) + "\n"


def _wrapped(rules: str) -> str:
    _, groups = rules.split("\ngroups:\n")
    return f"{_RESOURCE}  groups:\n" + textwrap.indent(groups, "  ")


if __name__ == "__main__":
    for file, content in written().items():
        file.write_text(content)
