"""Metrics of every program: version, process, certificate, disks and readiness."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hfmds.errors import ConfigurationError
from hfmds.service.security.tls import TlsFiles

log = logging.getLogger(__name__)


def software_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("hfmds-fl")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


def show_program(
    program: str,
    registry: CollectorRegistry,
    tls: TlsFiles | None = None,
    places: Mapping[str, Path] | None = None,
) -> None:
    """Export these metrics under the program's name. `places` are folders by name."""
    ProcessCollector(registry=registry)
    build = Gauge(
        f"hfmds_{program}_build_info",
        "Always 1; the label has the version that runs.",
        ("version",),
        registry=registry,
    )
    build.labels(software_version()).set(1)
    if tls:
        registry.register(CertificateExpiry(program, tls.certificate))
    if places:
        registry.register(Disks(program, places))


def show_readiness(
    program: str, registry: CollectorRegistry, unready_reason: Callable[[], str | None]
) -> None:
    """Export whether a server is ready."""
    ready = Gauge(
        f"hfmds_{program}_ready",
        "1 while calls may be sent here; 0 while it starts or stops, or the database or the "
        "content does not answer.",
        registry=registry,
    )
    ready.set_function(lambda: unready_reason() is None)


class CertificateExpiry(Collector):
    """The end of the certificate in the file, read at each scrape if the file changed."""

    def __init__(self, program: str, certificate: Path) -> None:
        self._name = f"hfmds_{program}_certificate_expiry_timestamp_seconds"
        self._certificate = certificate
        self._read: tuple[int, float] | None = None  # the file's time, and the end

    def describe(self) -> Iterator[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        ends_at = self._ends_at()
        if ends_at is not None:
            family.add_metric([], ends_at)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            self._name, "Unix time at which the certificate this program shows ends.", labels=[]
        )

    def _ends_at(self) -> float | None:
        # Imported here, so that a program without TLS does not load the library.
        from hfmds.service.security.certificates import read_own_certificate

        try:
            changed_at = self._certificate.stat().st_mtime_ns
            if self._read is None or self._read[0] != changed_at:
                self._read = changed_at, read_own_certificate(self._certificate.read_bytes()).ends
        except (OSError, ConfigurationError) as error:
            # The program still shows the certificate that it read before.
            log.warning("cannot read when the certificate ends: %s", error)
        return self._read[1] if self._read else None


class Disks(Collector):
    """Size and free space of the disks of some folders."""

    def __init__(self, program: str, places: Mapping[str, Path]) -> None:
        self._prefix = f"hfmds_{program}_disk"
        self._places = dict(places)

    def describe(self) -> Iterator[Metric]:
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        size, free = self._families()
        for name, folder in self._places.items():
            try:
                usage = shutil.disk_usage(folder)
            except OSError as error:  # the disk is gone; report the others
                log.warning("cannot tell the size of the disk of %s: %s", folder, error)
                continue
            size.add_metric([name], usage.total)
            free.add_metric([name], usage.free)
        yield size
        yield free

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        of = "(data: the data folder; content: the folder of stored content)"
        return (
            GaugeMetricFamily(
                f"{self._prefix}_size_bytes", f"Size of the disk by place {of}.", labels=["place"]
            ),
            GaugeMetricFamily(
                f"{self._prefix}_free_bytes",
                f"What this program may still write, by place {of}.",
                labels=["place"],
            ),
        )
