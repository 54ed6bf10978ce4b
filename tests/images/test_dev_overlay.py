"""The images, and the dev overlay's pods of them, for real: `make test-images`.

Minutes and gigabytes, so not among the other tests.
"""

from __future__ import annotations

import asyncio
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hfmds.service.peer import Peer
from hfmds.wire.admin_client import AdminClient
from hfmds.wire.store_client import StoreClient
from hfmds.wire.types import Round, RunState, Snapshot
from tests.images.containers import TARGETS, Podman
from tests.images.kubelet import PROBES, Pod, pass_probe, pods_of
from tests.k8s.conftest import MANIFESTS, rendered

pytestmark = pytest.mark.timeout(3600)

DEVICES = 3
ROUNDS = 4
RUN_SECONDS = 900.0
NETWORK = "hfmds-test"
WITHOUT_TORCH = ("synthesis-store", "edge-client", "edge-simulator")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    return Podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="module")
def images(podman: Podman) -> dict[str, str]:
    return {target: podman.build(target) for target in TARGETS}


class Node:
    """The pods of the dev overlay at work, and what an operator does with them."""

    def __init__(self, podman: Podman, pods: list[Pod], folder: Path) -> None:
        self.podman = podman
        self.pods = {pod.name: pod for pod in pods}
        self._folder = folder

    def play(self) -> None:
        """Start all pods at once: their order must not matter."""
        self.podman("network", "create", NETWORK)
        manifest = self._folder / "pods.yaml"
        pods = self.pods.values()
        manifest.write_text(
            yaml.safe_dump_all(one for pod in pods for one in [*pod.claims, pod.manifest])
        )
        self.podman("kube", "play", "--network", NETWORK, manifest)

    def clear(self) -> None:
        """Remove all that was played; what is not there is no error."""
        self.podman("pod", "rm", "--force", "--ignore", *self.pods, check=False)
        claims = [one["metadata"]["name"] for pod in self.pods.values() for one in pod.claims]
        self.podman("volume", "rm", "--force", *claims, check=False)
        self.podman("network", "rm", "--force", NETWORK, check=False)

    def address(self, pod: Pod) -> str:
        """The pod's own address, as Kubernetes' probes use it."""
        infra = self.podman.inspect("pod", pod.name)["InfraContainerID"]
        networks = self.podman.inspect("container", infra)["NetworkSettings"]["Networks"]
        address: str = networks[NETWORK]["IPAddress"]
        return address

    def inside(self, pod: Pod, *command: str) -> str:
        """What a command in the pod's container prints, errors too; it may fail."""
        shell = ("sh", "-c", '"$@" 2>&1', "sh")
        return self.podman("exec", pod.container, *shell, *command, check=False)

    def stop(self, name: str) -> float:
        """End a pod as Kubernetes does, by SIGTERM and, after its time, SIGKILL; the seconds."""
        began = time.monotonic()
        self.podman("pod", "stop", "--time", str(self.pods[name].grace_seconds), name)
        return time.monotonic() - began

    def exit_code(self, name: str) -> int:
        """How the pod's program ended."""
        state = self.podman.inspect("container", self.pods[name].container)["State"]
        code: int = state["ExitCode"]
        return code

    def logs(self, name: str) -> str:
        """The end of what the pod's program has said."""
        return self.podman("logs", "--tail", "20", self.pods[name].container, check=False)

    def rounds(self) -> tuple[RunState, tuple[Round, ...]]:
        """How the run is, by the coordinator's published port."""

        async def ask() -> tuple[RunState, tuple[Round, ...]]:
            client = AdminClient(Peer("coordinator", self.published("coordinator"), "-"))
            try:
                run = await client.get_run("digits")
                return run.state, await client.list_rounds("digits")
            finally:
                await client.close()

        return asyncio.run(ask())

    def snapshots(self) -> tuple[Snapshot, ...]:
        """The run's snapshots, by the store's published port."""

        async def ask() -> tuple[Snapshot, ...]:
            client = StoreClient(Peer("store", self.published("synthesis-store"), "-"))
            try:
                return await client.list_snapshots("digits")
            finally:
                await client.close()

        return asyncio.run(ask())

    def published(self, name: str) -> str:
        """Where this machine reaches a Service."""
        return f"127.0.0.1:{self.pods[name].host_ports['grpc']}"

    def until(self, reached: Callable[[RunState, tuple[Round, ...]], bool]) -> None:
        """Wait for the run."""
        deadline = time.monotonic() + RUN_SECONDS
        while not reached(*(seen := self.rounds())):
            assert time.monotonic() < deadline, f"{seen}\n{self.logs('coordinator')}"
            time.sleep(1)


@pytest.fixture(scope="module")
def node(
    podman: Podman, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """The dev overlay's pods, all ready."""
    pods = pods_of(rendered(MANIFESTS / "overlays" / "dev"), DEVICES)
    node = Node(podman, pods, tmp_path_factory.mktemp("pods"))
    node.clear()
    try:
        node.play()
        for kind in PROBES:
            for pod in pods:
                if kind in pod.probes:
                    pass_probe(pod, kind, node.address(pod))
        yield node
    finally:
        node.clear()


@pytest.mark.parametrize("target", WITHOUT_TORCH)
def test_what_needs_no_torch_has_none(podman: Podman, images: dict[str, str], target: str) -> None:
    look = "import importlib.util as u; print([n for n in ('torch', 'pip') if u.find_spec(n)])"
    found = podman("run", "--rm", "--entrypoint", "python", images[target], "-c", look)
    assert found == "[]\n"


def test_every_program_explains_itself(podman: Podman, images: dict[str, str]) -> None:
    for image in images.values():
        assert "--metrics-listen" in podman("run", "--rm", image, "--help")


def test_pods_can_do_little(node: Node) -> None:
    assert len(node.pods) == 2 + DEVICES
    for pod in node.pods.values():
        status = dict(
            line.split(":\t", 1)
            for line in node.inside(pod, "cat", "/proc/1/status").splitlines()
            if ":\t" in line
        )
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"10001"}
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert "Read-only file system" in node.inside(pod, "touch", "/opt/hfmds/new")
        assert "Permission denied" in node.inside(pod, "cat", "/etc/shadow")


def test_a_run_goes_on_over_the_end_of_each_pod(node: Node) -> None:
    create = (
        "run create --run-id digits --channels 1 --height 20 --width 20 "
        f"--rounds {ROUNDS} --first-refresh 2 --refresh-every 2 --synthetic-images 10 "
        f"--synthesis-steps 10 --alpha 0.5 --minimum-devices {DEVICES} --lease-seconds 20"
    )
    subprocess.run(
        [
            Path(sysconfig.get_path("scripts")) / "hfmds",
            *create.split(),
            *("--coordinator", node.published("coordinator")),
        ],
        check=True,
    )
    # The first round has the plans made, by torch in the coordinator's pod.
    node.until(lambda _, rounds: len(rounds) >= 1)
    for name in ("coordinator", "synthesis-store", "edge-simulator-0"):
        pod = node.pods[name]
        seconds = node.stop(name)
        assert node.exit_code(name) == 0, node.logs(name)
        assert seconds < pod.grace_seconds
        node.podman("pod", "start", name)
        for kind in PROBES:
            if kind in pod.probes:
                pass_probe(pod, kind, node.address(pod))
    node.until(lambda state, _: state.ended)
    state, rounds = node.rounds()
    assert (state, len(rounds)) == (RunState.COMPLETED, ROUNDS), node.logs("coordinator")
    assert all(one.evaluation is not None for one in rounds)
    assert len(node.snapshots()) == 2
    for pod in node.pods.values():
        restarts = node.podman.inspect("container", pod.container)["RestartCount"]
        assert restarts == 0, node.logs(pod.name)
