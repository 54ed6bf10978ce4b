"""What every program tells of itself: version, process, certificate, and the disks it writes to."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hfmds.service.security.tls import TlsFiles

log = logging.getLogger(__name__)


def software_version() -> str:
    """Of the installed distribution."""
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
    """Export it under the program's name; `places` are folders whose disks can fill up, by name."""
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
    """Export whether a server is ready: while storage is away it answers scrapes all the same."""
    ready = Gauge(
        f"hfmds_{program}_ready",
        "1 while calls may be sent here; 0 while it starts or stops, or the database or the "
        "content does not answer.",
        registry=registry,
    )
    ready.set_function(lambda: unready_reason() is None)


class CertificateExpiry(Collector):
    """When the certificate ends, as the file has it at the time of the scrape."""

    def __init__(self, program: str, certificate: Path) -> None:
        self._name = f"hfmds_{program}_certificate_expiry_timestamp_seconds"
        self._certificate = certificate
        self._read: tuple[int, float] | None = None  # the file's time, and when what it has ends

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
        # Imported here: who has no TLS does without the library it loads.
        from hfmds.service.security.certificates import read_own_certificate

        try:
            changed_at = self._certificate.stat().st_mtime_ns
            if self._read is None or self._read[0] != changed_at:
                self._read = changed_at, read_own_certificate(self._certificate.read_bytes()).ends
        except (OSError, ValueError) as error:
            # Half replaced, or gone: what was read before is what the program shows.
            log.warning("cannot read when the certificate ends: %s", error)
        return self._read[1] if self._read else None


class Disks(Collector):
    """Size of the disks that folders are on, and what is free there."""

    def __init__(self, program: str, places: Mapping[str, Path]) -> None:
        self._prefix = f"hfmds_{program}_disk"
        self._places = dict(places)

    def describe(self) -> Iterator[Metric]:
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        size, free = self._families()
        for name, folder in self._places.items():
            try:
                found = shutil.disk_usage(folder)
            except OSError as error:  # its disk is not mounted any more; others are worth knowing
                log.warning("cannot tell the size of the disk of %s: %s", folder, error)
                continue
            size.add_metric([name], found.total)
            free.add_metric([name], found.free)
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
