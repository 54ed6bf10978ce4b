"""Pods of components/tls: simulated devices enrol with a token and learn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hfmds.cli.main import main
from tests.images.containers import Podman
from tests.images.kubelet import pods_of
from tests.images.node import Node
from tests.images.operator import Operator
from tests.k8s.conftest import base_with

pytestmark = pytest.mark.timeout(3600)

DEVICES = 2
ROUNDS = 2
GROUP = 10001  # fsGroup of the pods


def keep(secrets: Path, name: str, **files: Path) -> None:
    """Make a secret that only the group of the pod can read, as in a cluster."""
    folder = secrets / name
    folder.mkdir(parents=True)
    for key, source in files.items():
        file = folder / key.replace("_", ".")
        shutil.copy(source, file)
        shutil.chown(file, group=GROUP)
        file.chmod(0o440)


def test_simulated_devices_enrol_and_learn(
    podman: Podman, images: dict[str, str], tmp_path: Path
) -> None:
    pki, secrets = tmp_path / "pki", tmp_path / "secrets"
    hosts = [f"--host={one}" for one in ("coordinator", "synthesis-store", "127.0.0.1")]
    assert main(["pki", "init", "--folder", str(pki), *hosts]) == 0
    for name in ("coordinator", "synthesis-store"):
        pair = pki / f"service-{name}.crt", pki / f"service-{name}.key"
        keep(secrets, f"{name}-tls", tls_crt=pair[0], tls_key=pair[1])
    issuer = pki / "device-issuer.crt", pki / "device-issuer.key"
    keep(secrets, "hfmds-device-issuer", tls_crt=issuer[0], tls_key=issuer[1])
    keep(secrets, "hfmds-trust", authority_crt=pki / "authority.crt")
    node = Node(podman, pods_of(base_with("tls"), DEVICES, secrets), tmp_path)
    with node.network():
        node.start("coordinator", "synthesis-store")
        operator = Operator(
            node.published("coordinator"),
            node.published("synthesis-store"),
            tls_certificate=str(pki / "admin-owner-admin.crt"),
            tls_key=str(pki / "admin-owner-admin.key"),
            tls_authority=str(pki / "authority.crt"),
        )
        created = json.loads(operator(f"pki enrol-token --uses {DEVICES} --prefix edge- --json"))
        (tmp_path / "token").write_text(created["token"])
        keep(secrets, "hfmds-enrol-token", token=tmp_path / "token")
        devices = [name for name in node.pods if name.startswith("edge-simulator-")]
        node.start(*devices)
        operator.create_run(DEVICES, ROUNDS)
        operator.until_rounds(ROUNDS)
        known = json.loads(operator("pki devices --json"))
        assert sorted(device["device_id"] for device in known) == devices
