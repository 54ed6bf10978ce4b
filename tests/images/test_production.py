"""The prod overlay without Kubernetes: TLS, PostgreSQL, S3 and replicas.

The job makes the tables, two coordinators share the work, and the one that leads is killed.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hfmds.cli.main import main
from hfmds.service.security.tls import TlsFiles
from tests.images.containers import Podman
from tests.images.operator import Operator
from tests.images.plain import Machine, moved
from tests.images.test_secured_pods import keep
from tests.k8s.conftest import on_top_of
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.tls_proxy import TlsProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(3600)

ROUNDS = 3
SERVICES = ["coordinator", "synthesis-store"]
STORE = moved("7411", "7412")
FIRST, SECOND = (moved("7401", "7402", "7403", "7404") | STORE for _ in range(2))


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    folder = tmp_path / "pki"
    hosts = [f"--host={one}" for one in (*SERVICES, "127.0.0.1")]
    assert main(["pki", "init", "--folder", str(folder), *hosts]) == 0
    command = ["pki", "issue", "service", "storage", "--folder", str(folder), "--host", "127.0.0.1"]
    assert main(command) == 0
    return folder


@pytest.fixture
def of_storage(pki: Path) -> TlsFiles:
    """Make the certificate of PostgreSQL and S3, in place of cert-manager."""
    pair = pki / "service-storage.crt", pki / "service-storage.key"
    return TlsFiles(*pair, pki / "authority.crt")


@pytest.fixture
def database(of_storage: TlsFiles) -> Iterator[str]:
    with closing(PostgresServer()) as server:
        server.start()
        with closing(TlsProxy(of_storage, server.port)) as before:
            yield server.new_database().replace(f":{server.port}/", f":{before.port}/")


@pytest.fixture
def s3(of_storage: TlsFiles) -> Iterator[S3Server]:
    with closing(S3Server(of_storage)) as server:
        server.start()
        yield server


@pytest.fixture
def secrets(tmp_path: Path, pki: Path, database: str, s3: S3Server) -> Path:
    """Make the files of k8s/README.md and of cert-manager."""
    folder, written = tmp_path / "secrets", tmp_path / "written"
    for name in SERVICES:
        pair = pki / f"service-{name}.crt", pki / f"service-{name}.key"
        keep(folder, f"{name}-tls", tls_crt=pair[0], tls_key=pair[1])
    issuer = pki / "device-issuer.crt", pki / "device-issuer.key"
    keep(folder, "hfmds-device-issuer", tls_crt=issuer[0], tls_key=issuer[1])
    keep(folder, "hfmds-trust", authority_crt=pki / "authority.crt")
    values = {
        "hfmds-database": {"url": database},
        "hfmds-s3": {
            "access-key-id": s3.environment["AWS_ACCESS_KEY_ID"],
            "secret-access-key": s3.environment["AWS_SECRET_ACCESS_KEY"],
        },
    }
    written.mkdir()
    for name, keys in values.items():
        for key, value in keys.items():
            (written / key).write_text(value)
        keep(folder, name, **{key: written / key for key in keys})
    return folder


def test_a_run_survives_the_death_of_the_leading_coordinator(
    podman: Podman, images: dict[str, str], secrets: Path, pki: Path, s3: S3Server, tmp_path: Path
) -> None:
    place = {"op": "replace", "path": "/data/AWS_ENDPOINT_URL", "value": s3.endpoint}
    patch = json.dumps([place])
    patches = [{"target": {"kind": "ConfigMap", "name": "hfmds-s3"}, "patch": patch}]
    resources = on_top_of("overlays/prod", [], patches)
    pods = {
        (resource["kind"], resource["metadata"]["name"]): resource["spec"]["template"]["spec"]
        for resource in resources
        if "template" in resource.get("spec", {})
    }
    machine = Machine(podman, resources, secrets, SERVICES)
    try:
        job = pods["Job", "database-upgrade"]
        for container in job["containers"]:
            machine.do(job, container)
        machine.start("hfmds-store", pods["Deployment", "synthesis-store"], STORE)
        machine.start("hfmds-first", pods["Deployment", "coordinator"], FIRST)
        until_ready(machine, "hfmds-store", STORE["7412"])
        until_ready(machine, "hfmds-first", FIRST["7402"])
        until_it_leads(FIRST["7402"])
        machine.start("hfmds-second", pods["Deployment", "coordinator"], SECOND)
        until_ready(machine, "hfmds-second", SECOND["7402"])
        operator = Operator(
            f"127.0.0.1:{SECOND['7401']}",
            f"127.0.0.1:{STORE['7411']}",
            tls_certificate=str(pki / "admin-owner-admin.crt"),
            tls_key=str(pki / "admin-owner-admin.key"),
            tls_authority=str(pki / "authority.crt"),
        )
        token = json.loads(operator("pki enrol-token --uses 1 --json"))["token"]
        (tmp_path / "token").write_text(token)
        keep(secrets, "hfmds-enrol-token", token=tmp_path / "token")
        device = _device(images["edge-simulator"])
        machine.start("hfmds-device", device, SECOND)
        operator.create_run(1, ROUNDS)
        operator.until_rounds(1)
        machine.kill("hfmds-first")
        until_it_leads(SECOND["7402"])
        operator.until_rounds(ROUNDS)
        assert len(json.loads(operator("snapshots list --json"))) == 1
    finally:
        machine.close()


def _device(image: str) -> dict[str, object]:
    """Return the pod of a device outside the cluster, with its enrolment settings."""
    settings = {
        "HFMDS_COORDINATOR": "127.0.0.1:7401",
        "HFMDS_STORE": "127.0.0.1:7411",
        "HFMDS_ENROL": "127.0.0.1:7404",
        "HFMDS_ENROL_TOKEN_FILE": "/token/token",
        "HFMDS_TLS_AUTHORITY": "/trust/authority.crt",
        "HFMDS_METRICS_LISTEN": "127.0.0.1:0",
        "HFMDS_DATA": "digits:20#train@3/20",
        "HFMDS_STATE_DIR": "/state",
    }
    places = {"token": "/token", "trust": "/trust", "state": "/state", "tmp": "/tmp"}
    return {
        "securityContext": {"runAsUser": 10001, "runAsGroup": 10001},
        "containers": [
            {
                "image": image,
                "env": [{"name": name, "value": value} for name, value in settings.items()],
                "securityContext": {"readOnlyRootFilesystem": True},
                "volumeMounts": [
                    {"name": name, "mountPath": place} for name, place in places.items()
                ],
            }
        ],
        "volumes": [
            {"name": "token", "secret": {"secretName": "hfmds-enrol-token"}},
            {"name": "trust", "configMap": {"name": "hfmds-trust"}},
            {"name": "state", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def until_ready(machine: Machine, name: str, port: str) -> None:
    """Wait as long as the startup probe."""
    try:
        wait_until(lambda: _answer(port, "readyz").strip() == "ready", 120)
    except TimeoutError as error:
        error.add_note(f"{_answer(port, 'readyz')}\n{machine.logs(name)}")
        raise


def until_it_leads(port: str) -> None:
    wait_until(lambda: "\nhfmds_coordinator_leader 1.0\n" in _answer(port, "metrics"), 60)


def _answer(port: str, path: str) -> str:
    """Return a page of a program, or the reason of the failure."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except OSError as error:
        return str(error)
