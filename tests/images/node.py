"""A node of a cluster, simulated by podman: it starts, probes, inspects and stops pods."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.images.containers import Podman
from tests.images.kubelet import PROBES, Pod, pass_probe

NETWORK = "hfmds-test"


class Node:
    """Running pods, with the actions of a cluster and its administrator."""

    def __init__(
        self, podman: Podman, pods: list[Pod], folder: Path, jobs: list[Pod] | None = None
    ) -> None:
        self.podman = podman
        self.pods = {pod.name: pod for pod in pods}
        self._jobs = jobs or []
        self._folder = folder

    @contextmanager
    def network(self) -> Iterator[None]:
        """Yield a node for pods, and remove them and their volumes at the end."""
        self._clear()
        self.podman("network", "create", NETWORK)
        try:
            yield
        finally:
            self._clear()

    def start(self, *names: str) -> None:
        """Start pods together, because their order must not matter; return when they are ready."""
        pods = [self.pods[name] for name in names]
        self._play(*pods)
        for kind in PROBES:
            for pod in pods:
                if kind in pod.probes:
                    pass_probe(pod, kind, self.address(pod))

    def do(self, job: Pod) -> tuple[int, str]:
        """Run a job; return its exit code and output."""
        self._play(job)
        code = int(self.podman("wait", job.container))
        return code, self.podman("logs", job.container)

    def _play(self, *pods: Pod) -> None:
        manifest = self._folder / f"{pods[0].name}.yaml"
        manifest.write_text(
            yaml.safe_dump_all(one for pod in pods for one in [*pod.claims, pod.manifest])
        )
        self.podman("kube", "play", "--network", NETWORK, manifest)

    def _clear(self) -> None:
        """Remove all pods and volumes, if they exist."""
        pods = [*self.pods.values(), *self._jobs]
        self.podman("pod", "rm", "--force", "--ignore", *(pod.name for pod in pods), check=False)
        claims = [claim["metadata"]["name"] for pod in pods for claim in pod.claims]
        self.podman("volume", "rm", "--force", *claims, check=False)
        self.podman("network", "rm", "--force", NETWORK, check=False)

    def address(self, pod: Pod) -> str:
        """Return the address of the pod, which the probes of Kubernetes use."""
        infra = self.podman.inspect("pod", pod.name)["InfraContainerID"]
        networks = self.podman.inspect("container", infra)["NetworkSettings"]["Networks"]
        address: str = networks[NETWORK]["IPAddress"]
        return address

    def inside(self, pod: Pod, *command: str) -> str:
        """Return the output and errors of a command in the pod's container, which may fail."""
        shell = ("sh", "-c", '"$@" 2>&1', "sh")
        return self.podman("exec", pod.container, *shell, *command, check=False)

    def stop(self, name: str) -> float:
        """End a pod like Kubernetes, by SIGTERM and later SIGKILL; return the seconds."""
        began = time.monotonic()
        self.podman("pod", "stop", "--time", str(self.pods[name].grace_seconds), name)
        return time.monotonic() - began

    def start_again(self, name: str) -> None:
        """Start a stopped pod; return when it is ready."""
        self.podman("pod", "start", name)
        pod = self.pods[name]
        for kind in pod.probes:
            pass_probe(pod, kind, self.address(pod))

    def exit_code(self, name: str) -> int:
        """Return the exit code of the pod's program."""
        state = self.podman.inspect("container", self.pods[name].container)["State"]
        code: int = state["ExitCode"]
        return code

    def logs(self, name: str) -> str:
        """Return the end of the output of the pod's program."""
        return self.podman("logs", "--tail", "20", self.pods[name].container, check=False)

    def published(self, name: str, port: str = "grpc") -> str:
        """Return the address at which this machine reaches a Service."""
        return f"127.0.0.1:{self.pods[name].host_ports[port]}"
