"""A real Prometheus from Debian, on a free port, that scrapes four times a second."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError

import pytest
import yaml

from k8s.components.monitoring.generate import FOLDER, RULES
from tests.support.server_processes import free_ports, wait_for_server
from tests.support.waiting import wait_until

_INTERVAL = "250ms"
_PATIENCE_SECONDS = 90.0


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is needed to test monitoring; install it: make packages", False)
    return path


def scraping(pods: Mapping[str, Sequence[str]], cluster: str | None = None) -> dict[str, Any]:
    """Return the configuration of k8s/ for a plain Prometheus, with fixed addresses of pods.

    `cluster` is the address of what tells of the cluster itself.
    """
    (scrape,) = yaml.safe_load((FOLDER / "scrape.yaml").read_text())["scrape_configs"]
    del scrape["kubernetes_sd_configs"], scrape["scrape_interval"]
    scrape["static_configs"] = [
        {"targets": list(addresses), "labels": _kubernetes_labels(name, port)}
        for name, addresses in pods.items()
        for port in ("grpc", "metrics")
    ]
    return {
        "global": {"scrape_interval": _INTERVAL, "evaluation_interval": _INTERVAL},
        "rule_files": [str(RULES)],
        "scrape_configs": [scrape, *([_cluster_scrape(cluster)] if cluster else [])],
    }


def _cluster_scrape(address: str) -> dict[str, Any]:
    """Let labels of the target win, as for kube-state-metrics."""
    static = [{"targets": [address], "labels": {"namespace": "monitoring"}}]
    return {"job_name": "cluster", "honor_labels": True, "static_configs": static}


def _kubernetes_labels(name: str, port: str) -> dict[str, str]:
    labels = {
        "pod_annotation_prometheus_io_scrape": "true",
        "pod_container_port_name": port,
        "pod_label_app_kubernetes_io_name": name,
        "namespace": "hfmds",
        "pod_name": f"{name}-0",
    }
    return {f"__meta_kubernetes_{key}": value for key, value in labels.items()}


class Prometheus:
    """A server with its own folder that scrapes and evaluates our rules."""

    def __init__(self, folder: Path, pods: Mapping[str, Sequence[str]], cluster: str) -> None:
        """Configure it to scrape these addresses as pods, by the name of their label."""
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._log = folder / "prometheus.log"
        configuration = folder / "prometheus.yml"
        configuration.write_text(yaml.safe_dump(scraping(pods, cluster)))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={configuration}",
                    f"--storage.tsdb.path={folder / 'series'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        wait_for_server(self._answers, self._process, self._log)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(30)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current series of an expression; an error fails the test."""
        data = self._get("query", query=expression)
        if data["resultType"] in ("scalar", "string"):
            return [{"metric": {}, "value": data["result"]}]
        result: list[dict[str, Any]] = data["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with the result of their last evaluation."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def label_values(self, label: str, selector: str) -> list[str]:
        """Return the values that a variable of a dashboard offers."""
        data = self._get(f"label/{label}/values", **{"match[]": selector})
        assert isinstance(data, list)
        return data

    def wait_until(self, expression: str) -> None:
        """Wait until an expression has a series."""
        assert self.becomes(lambda: bool(self.query(expression))), f"{expression} gave nothing"

    def becomes(self, condition: Callable[[], bool]) -> bool:
        """Return whether the condition becomes true in time.

        A scrape that takes longer than its interval, as on a busy machine, is none: until the next
        one all series of that program are gone.
        """
        try:
            return wait_until(condition, _PATIENCE_SECONDS)
        except TimeoutError:
            return False

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, ConnectionError):
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
