"""Images and the pods of the dev overlay, run with podman by `make test-images`.

Minutes and gigabytes, so not among the other tests.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator

import pytest

from tests.images.containers import Podman
from tests.images.kubelet import Pod, jobs_of, pods_of
from tests.images.node import Node
from tests.images.operator import Operator
from tests.k8s.conftest import MANIFESTS, base_with, rendered

pytestmark = pytest.mark.timeout(3600)

DEVICES = 3
ROUNDS = 4
JOBS = jobs_of(base_with("backup"))
WITHOUT_TORCH = ("synthesis-store", "edge-client", "edge-simulator")


@pytest.fixture(scope="module")
def node(
    podman: Podman, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """Start all pods of the dev overlay."""
    pods = pods_of(rendered(MANIFESTS / "overlays" / "dev"), DEVICES)
    node = Node(podman, pods, tmp_path_factory.mktemp("pods"), JOBS)
    with node.network():
        node.start(*node.pods)
        yield node


@pytest.mark.parametrize("target", WITHOUT_TORCH)
def test_images_without_torch_contain_no_torch(
    podman: Podman, images: dict[str, str], target: str
) -> None:
    script = "import importlib.util as u; print([n for n in ('torch', 'pip') if u.find_spec(n)])"
    output = podman("run", "--rm", "--entrypoint", "python", images[target], "-c", script)
    assert output == "[]\n"


def test_every_program_explains_itself(podman: Podman, images: dict[str, str]) -> None:
    for image in images.values():
        assert "--metrics-listen" in podman("run", "--rm", image, "--help")


def test_every_image_contains_tracing(podman: Podman, images: dict[str, str]) -> None:
    for image in images.values():
        podman(
            "run",
            "--rm",
            "--entrypoint",
            "python",
            image,
            "-c",
            "import hfmds.service.monitoring.otel",
        )


def test_pods_run_with_few_privileges(node: Node) -> None:
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


def test_the_web_page_is_served(node: Node) -> None:
    pod = node.pods["coordinator"]
    page = f"http://{node.address(pod)}:{pod.container_ports['web']}/"
    with urllib.request.urlopen(page, timeout=10) as answer:
        assert b"HFMDS-FL" in answer.read()


def test_a_run_survives_the_end_of_each_pod(node: Node) -> None:
    operator = Operator(node.published("coordinator"), node.published("synthesis-store"))
    operator.create_run(DEVICES, ROUNDS)
    # Torch in the coordinator's pod makes the plans in the first round.
    operator.until_rounds(1)
    for name in ("coordinator", "synthesis-store", "edge-simulator-0"):
        seconds = node.stop(name)
        assert node.exit_code(name) == 0, node.logs(name)
        assert seconds < node.pods[name].grace_seconds
        node.start_again(name)
    rounds = operator.until_rounds(ROUNDS)["rounds"]
    assert all(record["evaluation"] is not None for record in rounds)
    assert len(json.loads(operator("snapshots list --json"))) == 2
    for pod in node.pods.values():
        restarts = node.podman.inspect("container", pod.container)["RestartCount"]
        assert restarts == 0, node.logs(pod.name)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_backup_of_a_running_program_can_be_restored(
    node: Node, podman: Podman, images: dict[str, str], job: Pod
) -> None:
    code, output = node.do(job)
    assert code == 0, output
    program = job.name.removesuffix("-backup").replace("-", "_")
    (backup,) = re.findall(rf"(/backups/\S+): the database and .* of the {program},", output)
    sound = podman(
        *("run", "--rm", "--volume", f"{job.name}:/backups:ro", "--entrypoint", "hfmds"),
        *(images["coordinator"], "restore", program, backup, "--check"),
    )
    assert f"{backup} is sound" in sound
