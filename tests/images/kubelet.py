"""The parts of a cluster that podman lacks: pods from manifests, and their probes.

Podman's `kube play` takes pods and claims. From the rendered overlay it gets

- one pod for each Deployment, and for each StatefulSet as many pods as the test asks for, with
  the label of their number and their own claims;
- the pod's name in place of a Service of that name, because podman has no Services, with free
  ports of this machine for the Service's ports;
- variables with resolved references, and secrets and config maps as folders of files;
- no probes: podman 4 would run them with curl inside the container, and has none for gRPC. This
  module probes from outside, like Kubernetes.
"""

from __future__ import annotations

import copy
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Resource = dict[str, Any]

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@dataclass
class Pod:
    """A pod for podman: its manifest, its claims and its probes."""

    manifest: Resource
    claims: list[Resource]
    probes: dict[str, Resource]
    container_ports: dict[str, int]
    grace_seconds: float
    host_ports: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        name: str = self.manifest["metadata"]["name"]
        return name

    @property
    def container(self) -> str:
        """Return podman's name of the only container."""
        return f"{self.name}-{self.manifest['spec']['containers'][0]['name']}"


def pods_of(
    resources: tuple[Resource, ...], devices: int, secrets: Path = Path("/none")
) -> list[Pod]:
    """Return the pods of an overlay, with this number of simulated devices.

    `secrets` has a folder for each secret and each config map, with a file for each of its keys.
    """
    claims = {
        resource["metadata"]["name"]: resource
        for resource in resources
        if resource["kind"] == _CLAIM
    }
    services = {
        resource["metadata"]["name"]: resource
        for resource in resources
        if resource["kind"] == "Service"
    }
    pods = []
    for workload in resources:
        name = workload["metadata"]["name"]
        if workload["kind"] == "Deployment":
            pods.append(_pod(workload, name, {}, claims, services.get(name)))
        elif workload["kind"] == "StatefulSet":
            for index in range(devices):
                label = {"apps.kubernetes.io/pod-index": str(index)}
                pods.append(_pod(workload, f"{name}-{index}", label, claims))
    for pod in pods:
        for volume in pod.manifest["spec"]["volumes"]:
            secret = volume.pop("secret", {}).get("secretName")
            if name := secret or volume.pop("configMap", {}).get("name"):
                volume["hostPath"] = {"path": str(secrets / name), "type": "Directory"}
    return pods


def jobs_of(resources: tuple[Resource, ...]) -> list[Pod]:
    """Return the pods of CronJobs, with the claims that no other pod has."""
    theirs = [job for job in resources if job["kind"] == "CronJob"]
    names = {job["metadata"]["name"] for job in theirs}
    claims = {
        resource["metadata"]["name"]: resource
        for resource in resources
        if resource["kind"] == _CLAIM and resource["metadata"]["name"] in names
    }
    return [_pod(job["spec"]["jobTemplate"], job["metadata"]["name"], {}, claims) for job in theirs]


def probe(pod: Pod, kind: str, address: str) -> str:
    """Run a probe once; return the reason of a failure, or an empty text."""
    what = pod.probes[kind]
    if "grpc" in what:
        return _grpc_probe(f"{address}:{what['grpc']['port']}")
    port = what["httpGet"]["port"]
    url = f"http://{address}:{pod.container_ports.get(port, port)}{what['httpGet']['path']}"
    try:
        with urllib.request.urlopen(url, timeout=what.get("timeoutSeconds", 1)):
            return ""
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}"


def pass_probe(pod: Pod, kind: str, address: str) -> None:
    """Repeat a probe until it succeeds, as often as Kubernetes would."""
    what = pod.probes[kind]
    time.sleep(what.get("initialDelaySeconds", 0))
    for _ in range(what.get("failureThreshold", 3)):
        if not (problem := probe(pod, kind, address)):
            return
        time.sleep(what.get("periodSeconds", 10))
    raise AssertionError(f"{pod.name}: {kind} failed: {problem}")


_CLAIM = "PersistentVolumeClaim"


def _pod(
    workload: Resource,
    name: str,
    labels: dict[str, str],
    claims: dict[str, Resource],
    service: Resource | None = None,
) -> Pod:
    template = copy.deepcopy(workload["spec"]["template"])
    spec = template["spec"]
    metadata = {"name": name, "labels": template["metadata"]["labels"] | labels}
    own = list(_own_claims(workload, name))
    for claim in own:
        volume = claim["metadata"]["name"]
        template_name = volume.removesuffix(f"-{name}")
        source = {"persistentVolumeClaim": {"claimName": volume}}
        spec["volumes"].append({"name": template_name, **source})
    used = [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in spec["volumes"]]
    own += [claims[shared] for shared in used if shared in claims]
    (container,) = spec["containers"]
    container["env"] = list(_filled_in(container["env"], metadata))
    ports = {port["name"]: port["containerPort"] for port in container.pop("ports", ())}
    host_ports = {}
    if service is not None:
        host_ports = {port["targetPort"]: _free_port() for port in service["spec"]["ports"]}
        container["ports"] = [
            {"containerPort": ports[of], "hostPort": port, "hostIP": "127.0.0.1"}
            for of, port in host_ports.items()
        ]
    return Pod(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        own,
        {kind: container.pop(kind) for kind in PROBES if kind in container},
        ports,
        spec.get("terminationGracePeriodSeconds", 30),
        host_ports,
    )


def _own_claims(workload: Resource, name: str) -> Iterator[Resource]:
    for template in workload["spec"].get("volumeClaimTemplates", ()):
        yield {
            "apiVersion": "v1",
            "kind": _CLAIM,
            "metadata": {"name": f"{template['metadata']['name']}-{name}"},
            "spec": template["spec"],
        }


def _filled_in(variables: list[Resource], metadata: Resource) -> Iterator[Resource]:
    known: dict[str, str] = {}
    for variable in variables:
        if "valueFrom" in variable:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
            value = metadata["labels"][label[1]] if label else metadata[path.split(".")[1]]
        else:
            value = re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], variable["value"])
        known[variable["name"]] = value
        yield {"name": variable["name"], "value": value}


def _grpc_probe(address: str) -> str:
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=1
            )
        except grpc.RpcError as error:
            return f"{address}: {error.code()}"
    serving = health_pb2.HealthCheckResponse.SERVING
    return "" if answer.status == serving else f"{address}: {answer.status}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
