"""A node of a cluster, played by podman: pods that are started, probed, looked into and stopped."""

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
    """Pods at work, and what a cluster and its administrator do with them."""

    def __init__(
        self, podman: Podman, pods: list[Pod], folder: Path, jobs: list[Pod] | None = None
    ) -> None:
        self.podman = podman
        self.pods = {pod.name: pod for pod in pods}
        self._jobs = jobs or []
        self._folder = folder

    @contextmanager
    def network(self) -> Iterator[None]:
        """Inside, pods can be started; at the end they are gone, with all they kept."""
        self._clear()
        self.podman("network", "create", NETWORK)
        try:
            yield
        finally:
            self._clear()

    def start(self, *names: str) -> None:
        """Start pods at once, for their order must not matter; returns when they are ready."""
        pods = [self.pods[name] for name in names]
        self._play(*pods)
        for kind in PROBES:
            for pod in pods:
                if kind in pod.probes:
                    pass_probe(pod, kind, self.address(pod))

    def do(self, job: Pod) -> tuple[int, str]:
        """Have a job done; its exit code, and what it said."""
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
        """Remove all that was played; what is not there is no error."""
        pods = [*self.pods.values(), *self._jobs]
        self.podman("pod", "rm", "--force", "--ignore", *(pod.name for pod in pods), check=False)
        claims = [one["metadata"]["name"] for pod in pods for one in pod.claims]
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

    def start_again(self, name: str) -> None:
        """Start a pod that was stopped; returns when it is ready."""
        self.podman("pod", "start", name)
        pod = self.pods[name]
        for kind in pod.probes:
            pass_probe(pod, kind, self.address(pod))

    def exit_code(self, name: str) -> int:
        """How the pod's program ended."""
        state = self.podman.inspect("container", self.pods[name].container)["State"]
        code: int = state["ExitCode"]
        return code

    def logs(self, name: str) -> str:
        """The end of what the pod's program has said."""
        return self.podman("logs", "--tail", "20", self.pods[name].container, check=False)

    def published(self, name: str, port: str = "grpc") -> str:
        """Where this machine reaches a Service."""
        return f"127.0.0.1:{self.pods[name].host_ports[port]}"
