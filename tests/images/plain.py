"""Containers of rendered manifests on the network of this machine, with free ports.

For what podman's `kube play` cannot do: variables of secrets and config maps, several containers in
the pod of a job, and servers of this machine at 127.0.0.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.images.containers import Podman
from tests.support.server_processes import free_ports

Resource = dict[str, Any]

_OURS = re.compile(r":(74\d\d)$")


class Machine:
    """Runs containers with the user, rights, files and variables of a cluster."""

    def __init__(
        self, podman: Podman, resources: tuple[Resource, ...], secrets: Path, services: list[str]
    ) -> None:
        self._podman = podman
        self._secrets = secrets
        self._here = [f"--add-host={name}:127.0.0.1" for name in services]
        self._maps = {
            resource["metadata"]["name"]: resource["data"]
            for resource in resources
            if resource["kind"] == "ConfigMap"
        }
        self._started: list[str] = []

    def do(self, pod: Resource, container: Resource) -> str:
        """Run a container to its end, and return its output."""
        return self._podman("run", "--rm", *self._arguments(pod, container, {}))

    def start(self, name: str, pod: Resource, ports: Mapping[str, str]) -> None:
        """Start the only container of a pod, on free ports."""
        (container,) = pod["containers"]
        self._started.append(name)
        self._podman("run", "--detach", "--name", name, *self._arguments(pod, container, ports))

    def kill(self, name: str) -> None:
        """Kill a container."""
        self._podman("kill", name)

    def logs(self, name: str) -> str:
        """Return the latest output of a container."""
        return self._podman("logs", "--tail", "20", name, check=False)

    def close(self) -> None:
        """Remove all containers."""
        self._podman(
            "rm", "--force", "--ignore", "--volumes", "--time", "0", *self._started, check=False
        )

    def _arguments(
        self, pod: Resource, container: Resource, ports: Mapping[str, str]
    ) -> Iterator[str]:
        context = pod["securityContext"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        yield from ("--network", "host", "--read-only", "--read-only-tmpfs=false", *self._here)
        yield from ("--user", f"{context['runAsUser']}:{context['runAsGroup']}")
        yield from ("--cap-drop", "all", "--security-opt", "no-new-privileges")
        for name, value in self._variables(container):
            moved = _OURS.sub(lambda match: f":{ports.get(match[1], match[1])}", value)
            yield from ("--env", f"{name}={moved}")
        places = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", ())}
        for volume in pod.get("volumes", ()):
            place = places[volume["name"]]
            secret = volume.get("secret", {}).get("secretName")
            if name := secret or volume.get("configMap", {}).get("name"):
                yield from ("--volume", f"{self._secrets / name}:{place}:ro")
            else:
                assert "emptyDir" in volume
                yield from ("--volume", place)  # a new volume with the owner from the image
        command = container.get("command", [])
        if command:
            yield from ("--entrypoint", command[0])
        yield container["image"]
        yield from command[1:]

    def _variables(self, container: Resource) -> Iterator[tuple[str, str]]:
        for source in container.get("envFrom", ()):
            yield from self._maps[source["configMapRef"]["name"]].items()
        for variable in container["env"]:
            if "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                yield (
                    variable["name"],
                    (self._secrets / reference["name"] / reference["key"]).read_text(),
                )
            else:
                yield variable["name"], variable["value"]


def moved(*ports: str) -> dict[str, str]:
    """Return a free port of this machine for each name."""
    return dict(zip(ports, map(str, free_ports(len(ports))), strict=True))
