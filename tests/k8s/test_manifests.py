"""Manifests are valid for Kubernetes and fit the programs that they start."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml
from sqlalchemy import QueuePool

from coordinator.settings import CoordinatorSettings
from edge_client.settings import EdgeSettings
from hfmds.data.sources import load_images
from hfmds.service.process.address import split_address
from hfmds.service.process.settings import PREFIX, ServerSettings, ServiceSettings
from hfmds.service.security.identity import Identity, Kind
from hfmds.storage.database import opened_database
from synthesis_store.settings import StoreSettings
from tests.k8s.conftest import MANIFESTS, base_with, rendered
from tests.k8s.custom_kinds import SCHEMAS

Resource = dict[str, Any]
SETTINGS: dict[str, type[ServiceSettings]] = {
    "coordinator": CoordinatorSettings,
    "synthesis-store": StoreSettings,
    "edge-client": EdgeSettings,
    "edge-simulator": EdgeSettings,
    "edge-client-torch": EdgeSettings,
}
FILES = rf"{PREFIX}\w+_(CERTIFICATE|KEY|AUTHORITY)"


def templates(resources: tuple[Resource, ...]) -> list[Resource]:
    specs = [one.get("spec", {}) for one in resources]
    specs += [spec["jobTemplate"]["spec"] for spec in specs if "jobTemplate" in spec]
    return [spec["template"] for spec in specs if "template" in spec]


def pod_specs(resources: tuple[Resource, ...]) -> list[Resource]:
    return [template["spec"] for template in templates(resources)]


def containers(resources: tuple[Resource, ...]) -> list[Resource]:
    return [container for pod in pod_specs(resources) for container in pod["containers"]]


def program(container: Resource) -> str | None:
    """Return the program of ours that it runs as a service, or None."""
    name = re.fullmatch(r"hfmds/([a-z-]+):.+", container["image"])
    return name[1] if name and "command" not in container else None


def environment(container: Resource) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in container.get("env", ())}


def with_specs(resources: tuple[Resource, ...], kind: str) -> dict[str, Resource]:
    return {one["metadata"]["name"]: one["spec"] for one in resources if one["kind"] == kind}


def deployed_programs(resources: tuple[Resource, ...]) -> dict[str, Resource]:
    """Return the deployments of our programs, without the proxy."""
    deployments = with_specs(resources, "Deployment")
    return {name: spec for name, spec in deployments.items() if name != "edge-proxy"}


def test_kubernetes_knows_every_field(overlay: tuple[Resource, ...]) -> None:
    import kubernetes_validate  # takes seconds, not at collection

    for resource in overlay:
        if resource["kind"] in SCHEMAS:  # not Kubernetes' own
            jsonschema.validate(resource, SCHEMAS[resource["kind"]])
        else:
            kubernetes_validate.validate(resource, "1.32", strict=True)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("Certificate", {"dnsName": ["misspelt"]}),
        ("Certificate", {"duration": "30d"}),
        ("Certificate", {"usages": ["server_auth"]}),
        ("Certificate", {"privateKey": {"rotation": "Always"}}),
        ("Issuer", {"ca": {"secret": "hfmds-service-issuer"}}),
        ("PodMonitor", {"endpoints": [{"port": "metrics"}]}),
        ("PodMonitor", {"podMetricsEndpoints": [{"port": 7402}]}),
        ("PrometheusRule", {"groups": [{"name": "x", "rules": [{"alert": "y"}]}]}),
        ("PrometheusRule", {"groups": [{"name": "x", "rules": [{"expr": "y", "For": "1m"}]}]}),
    ],
)
def test_a_misspelt_field_of_another_kind_is_found(kind: str, changed: Resource) -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    (first, *_) = (one for one in resources if one["kind"] == kind)
    jsonschema.validate(first, SCHEMAS[kind])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(first | {"spec": first["spec"] | changed}, SCHEMAS[kind])


def test_every_image_has_a_version(overlay: tuple[Resource, ...]) -> None:
    cron = [one["spec"]["jobTemplate"] for one in overlay if one["kind"] == "CronJob"]
    pods = pod_specs(overlay) + [job["spec"]["template"]["spec"] for job in cron]
    found = [container["image"] for pod in pods for container in pod["containers"]]
    assert found
    assert not [image for image in found if not re.search(r":[\w.-]+$", image)]


@pytest.mark.parametrize("component", ["backup", "postgres"])
def test_jobs_of_components_have_the_version_of_the_programs(component: str) -> None:
    test_every_image_has_a_version(base_with(component))


def test_every_variable_is_a_setting_of_its_program(overlay: tuple[Resource, ...]) -> None:
    ours = [container for container in containers(overlay) if program(container)]
    assert ours
    for container in ours:
        settings = SETTINGS[program(container) or ""]
        known = {PREFIX + name.upper() for name in settings.model_fields}
        used = {name for name in environment(container) if name.startswith(PREFIX)}
        assert used <= known, f"{container['name']}: {used - known}"


def test_values_are_taken_by_the_programs(overlay: tuple[Resource, ...]) -> None:
    for container in containers(overlay):
        name = program(container)
        if name is not None:
            given = {
                key.removeprefix(PREFIX).lower(): value
                for key, value in environment(container).items()
                if key.startswith(PREFIX) and value is not None
            }
            SETTINGS[name](**given)


def test_ports_are_those_the_programs_listen_on(overlay: tuple[Resource, ...]) -> None:
    for container in containers(overlay):
        if program(container):
            variables = environment(container)
            listening = {"metrics": variables["HFMDS_METRICS_LISTEN"]}
            for name in ("web", "token"):
                if address := variables.get(f"HFMDS_{name.upper()}_LISTEN"):
                    listening[name] = address
            if "HFMDS_LISTEN" in variables:
                listening["grpc"] = variables["HFMDS_LISTEN"]
                port = split_address(listening["grpc"])[1]
                ready: Resource = {"grpc": {"port": port}}
                if "HFMDS_TLS_KEY" in variables:  # Kubernetes would have no certificate to show
                    ready = {"httpGet": {"path": "/readyz", "port": "metrics"}}
                for probe in ("startupProbe", "readinessProbe"):
                    assert container[probe].items() >= ready.items()
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert ports == {name: split_address(one)[1] for name, one in listening.items()}
            assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}


def test_metrics_are_scraped_where_they_are(overlay: tuple[Resource, ...]) -> None:
    for template in templates(overlay):
        for container in template["spec"]["containers"]:
            if program(container):
                port = split_address(environment(container)["HFMDS_METRICS_LISTEN"])[1]
                annotations = template["metadata"]["annotations"]
                assert annotations["prometheus.io/port"] == str(port)


def test_programs_find_each_other(overlay: tuple[Resource, ...]) -> None:
    services = with_specs(overlay, "Service")
    for container in containers(overlay):
        for name in ("HFMDS_STORE", "HFMDS_COORDINATOR"):
            if name in environment(container):
                host, port = split_address(environment(container)[name])
                assert port in [one["port"] for one in services[host]["ports"]]


def test_calls_may_end_before_the_kill(overlay: tuple[Resource, ...]) -> None:
    for pod in pod_specs(overlay):
        for container in pod["containers"]:
            settings = SETTINGS.get(program(container) or "")
            if settings is not None and issubclass(settings, ServerSettings):
                grace = float(environment(container)["HFMDS_SHUTDOWN_GRACE_SECONDS"])
                assert grace < pod["terminationGracePeriodSeconds"]


def test_containers_can_do_little(overlay: tuple[Resource, ...]) -> None:
    for pod in pod_specs(overlay):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


def test_volumes_are_there(overlay: tuple[Resource, ...]) -> None:
    claims = with_specs(overlay, "PersistentVolumeClaim")
    used = set()
    for pod in pod_specs(overlay):
        for volume in pod.get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                used.add(volume["persistentVolumeClaim"]["claimName"])
    assert used == claims.keys()


def test_production_has_replicas_on_shared_storage() -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    scaled = with_specs(resources, "HorizontalPodAutoscaler")
    assert {name: one["minReplicas"] for name, one in scaled.items()} == {
        "coordinator": 2,
        "synthesis-store": 2,
    }
    budgets = with_specs(resources, "PodDisruptionBudget").keys()
    assert budgets == scaled.keys() | {"edge-proxy"}
    for name, spec in deployed_programs(resources).items():
        assert "replicas" not in spec  # applying it again would undo what the autoscaler chose
        variables = environment(spec["template"]["spec"]["containers"][0])
        assert "HFMDS_DATABASE_URL" in variables
        assert variables["HFMDS_BLOBS_URL"].startswith("s3://"), name
        assert spec["template"]["spec"]["topologySpreadConstraints"]


def test_rows_outlive_the_pod_though_bytes_are_in_s3() -> None:
    for name, spec in with_specs(base_with("gpu", "s3"), "Deployment").items():
        (container,) = spec["template"]["spec"]["containers"]
        assert "HFMDS_DATABASE_URL" not in environment(container)
        data = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
        assert data in spec["template"]["spec"]["volumes"]


def test_the_database_of_production_has_connections_for_all_replicas(tmp_path: Path) -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    server = with_specs(resources, "StatefulSet")["postgres"]["template"]["spec"]
    container = server["containers"][0]
    (most,) = re.findall(r"max_connections=(\d+)", " ".join(container["args"]))
    scaled = with_specs(resources, "HorizontalPodAutoscaler").values()
    upgraded = sum(one["maxReplicas"] + 1 for one in scaled)  # maxSurge
    with opened_database(f"sqlite:///{tmp_path}/database.sqlite") as engine:
        assert isinstance(engine.pool, QueuePool)
        own = engine.pool.size() + 1  # and the one that looks whether the server is there
        assert int(most) > upgraded * own


@pytest.fixture(scope="module")
def own_overlay(tmp_path_factory: pytest.TempPathFactory) -> tuple[Resource, ...]:
    """The overlay of the README, with the patches that prod shows for existing servers."""
    readme = (MANIFESTS / "README.md").read_text()
    (shown,) = re.findall(r"^```yaml\n(.+?)^```", readme, re.DOTALL | re.MULTILINE)
    below = (MANIFESTS / "overlays" / "prod" / "kustomization.yaml").read_text()
    (patches,) = re.findall(r"that are there already.*:\n  #\n((?:  # .*\n)+)", below)
    overlay = yaml.safe_load(shown)
    overlay["patches"] += yaml.safe_load(patches.replace("  # ", ""))
    folder = tmp_path_factory.mktemp("fleet")
    (folder.parent / "k8s").symlink_to(MANIFESTS)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return rendered(folder)


def test_an_overlay_of_ones_own_uses_servers_that_are_there_already(
    own_overlay: tuple[Resource, ...],
) -> None:
    assert not with_specs(own_overlay, "StatefulSet")
    names = with_specs(own_overlay, "Service").keys()
    assert names == {"coordinator", "coordinator-web", "edge-proxy", "synthesis-store"}
    (places,) = (
        one["data"]
        for one in own_overlay
        if one["kind"] == "ConfigMap" and one["metadata"]["name"].startswith("hfmds-s3-")
    )
    assert places["AWS_ENDPOINT_URL"] == "https://s3.example"


def test_an_overlay_of_ones_own_names_registry_and_hosts(own_overlay: tuple[Resource, ...]) -> None:
    ours = [one["image"] for one in containers(own_overlay) if "hfmds/" in one["image"]]
    assert len(ours) == 4
    assert all(re.fullmatch(r"registry\.example/hfmds/[a-z-]+:[0-9.]+", image) for image in ours)
    certificates = with_specs(own_overlay, "Certificate").items()
    hosts = {name: spec["dnsNames"][-1] for name, spec in certificates}
    assert hosts == {"coordinator": "coordinator.example", "synthesis-store": "store.example"}
    places = {one["metadata"].get("namespace") for one in own_overlay if one["kind"] != "Namespace"}
    assert places == {"hfmds"}


def test_every_program_can_send_its_spans_to_the_collector() -> None:
    resources = base_with("tls", "tracing")
    (name,) = (
        one["metadata"]["name"]
        for one in resources
        if one["kind"] == "ConfigMap" and "HFMDS_OTLP_ENDPOINT" in one["data"]
    )
    traced = set()
    for template in templates(resources):
        for variable in template["spec"]["containers"][0]["env"]:
            if variable["name"] == "HFMDS_OTLP_ENDPOINT":
                key = {"name": name, "key": "HFMDS_OTLP_ENDPOINT"}
                assert variable["valueFrom"] == {"configMapKeyRef": key}
                traced.add(template["metadata"]["labels"]["app.kubernetes.io/name"])
    assert traced == {"coordinator", "synthesis-store", "edge-simulator"}
    (policy,) = with_specs(resources, "NetworkPolicy").values()
    (chosen,) = policy["podSelector"]["matchExpressions"]
    assert set(chosen["values"]) == traced
    (config,) = (one for one in resources if one["metadata"]["name"] == name)
    port = urlsplit(config["data"]["HFMDS_OTLP_ENDPOINT"]).port
    assert policy["egress"] == [{"ports": [{"port": port}]}]


def test_nothing_in_front_takes_tls_for_http() -> None:
    for resource in base_with("tls", "tracing"):
        if resource["kind"] == "Service":
            assert not [one for one in resource["spec"]["ports"] if "appProtocol" in one]


def test_certificates_of_production_name_the_services_that_show_them() -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    certificates = with_specs(resources, "Certificate")
    servers = with_specs(resources, "StatefulSet").keys()
    programs = deployed_programs(resources)
    assert certificates.keys() == programs.keys() | servers
    for name, spec in programs.items():
        identity = Identity(Kind.SERVICE, name)
        assert certificates[name]["uris"] == [identity.uri]
        assert name in certificates[name]["dnsNames"]
        (volume,) = (one for one in spec["template"]["spec"]["volumes"] if one["name"] == "tls")
        assert volume["secret"]["secretName"] == certificates[name]["secretName"]
        variables = environment(spec["template"]["spec"]["containers"][0])
        assert "HFMDS_INSECURE" not in variables


def test_certificates_are_good_for_a_forwarded_port() -> None:
    certificates = with_specs(rendered(MANIFESTS / "overlays" / "prod"), "Certificate").values()
    for spec in certificates:
        assert "localhost" in spec["dnsNames"]
        assert spec["ipAddresses"] == ["127.0.0.1"]


def test_servers_of_production_show_certificates_of_their_own_and_may_call_nobody() -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    certificates = with_specs(resources, "Certificate")
    servers = with_specs(resources, "StatefulSet")
    assert servers.keys() == {"postgres", "seaweedfs"}
    for name, spec in servers.items():
        pod, certificate = spec["template"]["spec"], certificates[name]
        assert "uris" not in certificate
        assert "client auth" not in certificate["usages"]
        assert name in certificate["dnsNames"]
        (volume,) = (one for one in pod["volumes"] if one["name"] == "tls")
        secret = {"secretName": certificate["secretName"], "defaultMode": 0o440}
        assert volume["secret"] == secret  # of root and the pod's group: PostgreSQL takes no other
        mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        files = re.findall(r"(?:cert|key)[._]file=(\S+)", " ".join(pod["containers"][0]["args"]))
        assert files == [f"{mounts['tls']}/tls.crt", f"{mounts['tls']}/tls.key"]
    args = servers["postgres"]["template"]["spec"]["containers"][0]["args"]
    assert "-cssl=on" in args
    (access,) = (one["data"] for one in resources if "pg_hba.conf" in one.get("data", ()))
    lines = [line.split()[0] for line in access["pg_hba.conf"].splitlines() if line[0] != "#"]
    assert lines == ["local", "hostssl"]


def test_programs_of_production_check_whom_they_give_rows_and_content() -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    (places,) = (
        one["data"] for one in resources if one["metadata"]["name"].startswith("hfmds-s3-")
    )
    assert places == {
        "AWS_ENDPOINT_URL": "https://seaweedfs:8333",
        "AWS_REGION": "us-east-1",
        "SSL_CERT_FILE": "/trust/authority.crt",
    }
    # Also where the URL does not say so.
    checked = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/trust/authority.crt"}
    callers = []
    for pod in pod_specs(resources):
        for container in pod["containers"]:
            if environment(container).keys() & {"HFMDS_DATABASE_URL", "DATABASE_URL"}:
                callers.append(container["name"])
                assert environment(container).items() >= checked.items()
                mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
                assert mounts["trust"] == "/trust"
                assert {"name": "trust", "configMap": {"name": "hfmds-trust"}} in pod["volumes"]
    assert len(callers) == 5  # two programs, a job that has a container for each, and the dump


def test_the_coordinator_of_production_alone_can_make_devices() -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    for name, spec in deployed_programs(resources).items():
        pod = spec["template"]["spec"]
        sources = {one["name"]: one for one in pod["volumes"]}
        assert sources["trust"]["configMap"] == {"name": "hfmds-trust"}
        variables = environment(pod["containers"][0])
        places = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        files = {key: variables[key] for key in variables if re.fullmatch(FILES, key)}
        assert {str(Path(file).parent) for file in files.values()} <= places
        assert ("HFMDS_ISSUER_KEY" in files) == (name == "coordinator")
        assert ("issuer" in sources) == (name == "coordinator")
        keys = [one["secret"] for one in sources.values() if "secret" in one]
        assert {one["defaultMode"] for one in keys} == {0o440}  # for the pod's group alone


def test_production_shows_the_world_calls_and_nothing_else() -> None:
    services = with_specs(rendered(MANIFESTS / "overlays" / "prod"), "Service")
    assert {
        name: [port["name"] for port in spec["ports"]]
        for name, spec in services.items()
        if spec.get("type") == "LoadBalancer"
    } == {"edge-proxy": ["grpc", "token", "store"]}


def test_production_tells_devices_apart_by_address() -> None:
    services = with_specs(rendered(MANIFESTS / "overlays" / "prod"), "Service").values()
    policies = [one["externalTrafficPolicy"] for one in services if one.get("type")]
    assert policies == ["Local"]


def test_the_proxy_passes_each_port_on_to_a_port_of_a_program() -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    services = with_specs(resources, "Service")
    (config,) = (
        each["data"]["haproxy.cfg"]
        for each in resources
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].startswith("edge-proxy")
    )
    backends = re.findall(r"^    server \S+ (\S+)$", config, re.MULTILINE)
    for host, port in map(split_address, backends):
        assert port in [each["port"] for each in services[host]["ports"]]
    bound = {int(port) for port in re.findall(r"^    bind :(\d+)$", config, re.MULTILINE)}
    assert {each["port"] for each in services["edge-proxy"]["ports"]} < bound
    assert {split_address(backend)[1] for backend in backends} < bound


def test_network_policies_reach_pods_that_exist() -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    labels = {
        template["metadata"]["labels"]["app.kubernetes.io/name"]
        for template in templates(resources)
    }
    chosen = set()
    for policy in with_specs(resources, "NetworkPolicy").values():
        selector = policy["podSelector"]
        chosen |= set(selector.get("matchLabels", {}).values())
        for expression in selector.get("matchExpressions", ()):
            chosen |= set(expression["values"])
    assert chosen == labels


def test_gpus_go_to_devices_with_torch() -> None:
    (device,) = with_specs(base_with("gpu"), "StatefulSet").values()
    container = device["template"]["spec"]["containers"][0]
    assert program(container) == "edge-client-torch"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert environment(container)["HFMDS_COMPUTE_DEVICE"] == "cuda"


def test_devices_with_digits_have_the_library_they_come_with(overlay: tuple[Resource, ...]) -> None:
    dockerfile = (MANIFESTS / "Dockerfile").read_text()
    for container in containers(overlay):
        if str(environment(container).get("HFMDS_DATA")).startswith("digits"):
            stage = _stage(program(container) or "")
            install = re.search(rf" AS build-{stage}\nRUN (.+)", dockerfile)
            assert install is not None
            assert "scikit-learn" in install[1]


def test_backups_are_of_what_the_programs_keep() -> None:
    resources = base_with("backup")
    deployments = with_specs(resources, "Deployment")
    jobs = with_specs(resources, "CronJob")
    assert jobs.keys() == {f"{name}-backup" for name in deployments}
    for name, spec in deployments.items():
        (program,) = spec["template"]["spec"]["containers"]
        pod = jobs[f"{name}-backup"]["jobTemplate"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert environment(container)["HFMDS_DATA_DIR"] == environment(program)["HFMDS_DATA_DIR"]
        assert container["command"][:3] == ["hfmds", "backup", name.replace("-", "_")]
        volumes = spec["template"]["spec"]["volumes"]
        assert {"name": "data", "persistentVolumeClaim": {"claimName": name}} in volumes
        assert {"name": "data", "persistentVolumeClaim": {"claimName": name}} in pod["volumes"]
        assert pod["securityContext"]["runAsUser"] == 10001  # who owns the data


class Dumps:
    """The script of the nightly job on a folder, with a fake pg_dump and a fake disk."""

    def __init__(self, folder: Path) -> None:
        self.backups, self._programs = folder / "backups", folder / "bin"
        self.backups.mkdir()
        self._programs.mkdir()
        jobs = with_specs(base_with("postgres"), "CronJob")
        pod = jobs["database-backup"]["jobTemplate"]["spec"]["template"]["spec"]
        shell, flag, script = pod["containers"][0]["command"]
        self._command = [shell, flag, script.replace("/backups", str(self.backups))]
        self.has_free(1 << 40)
        self.dumps("head -c 1000 /dev/zero")

    def has_free(self, free_bytes: int) -> None:
        """Make room on the disk, counting deleted dumps."""
        there = f"$(cat {self.backups}/* 2>/dev/null | wc -c)"
        size = free_bytes + sum(path.stat().st_size for path in self.backups.iterdir())
        self._program("df", f"echo Avail; echo $(({size} - {there}))")

    def always_tells(self, free_bytes: int) -> None:
        """Fix the room on the disk, whatever is deleted."""
        self._program("df", f"echo Avail; echo {free_bytes}")

    def dumps(self, command: str) -> None:
        self._program("pg_dump", f'[ "$3" = postgresql://u:p@h/d ] && {command} > "${{2#--file=}}"')

    def run(self) -> int:
        search = f"{self._programs}:/usr/bin:/bin"
        variables = {"PATH": search, "DATABASE_URL": "postgresql+psycopg://u:p@h/d"}
        return subprocess.run(self._command, env=variables, check=False).returncode

    def there(self) -> list[str]:
        return sorted(path.name for path in self.backups.iterdir())

    def _program(self, name: str, script: str) -> None:
        (self._programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self._programs / name).chmod(0o755)


@pytest.fixture
def dumps(tmp_path: Path) -> Dumps:
    """A job with dumps of nine nights and a partial one."""
    made = Dumps(tmp_path)
    for night in range(1, 10):
        (made.backups / f"2026-01-0{night}T021700.dump").write_bytes(bytes(1000))
    (made.backups / "2026-01-10T021700.dump.partial").write_bytes(bytes(500))
    return made


def test_of_dumps_the_newest_seven_stay(dumps: Dumps) -> None:
    assert dumps.run() == 0
    there = dumps.there()
    assert [name.endswith(".dump") for name in there] == [True] * 7
    assert there[:2] == ["2026-01-04T021700.dump", "2026-01-05T021700.dump"]


def test_a_dump_that_fails_leaves_nothing_and_pushes_none_out(dumps: Dumps) -> None:
    before = dumps.there()
    dumps.dumps("head -c 500 /dev/zero && false")
    for _ in range(3):
        assert dumps.run() != 0
    assert dumps.there() == before[:-1]


def test_dumps_on_a_full_disk_lose_the_oldest(dumps: Dumps) -> None:
    dumps.has_free(0)
    assert dumps.run() == 0
    assert len(dumps.there()) == 7
    assert dumps.there()[-2] == "2026-01-09T021700.dump"


def test_dumps_on_a_disk_that_tells_late_of_its_room_lose_no_more(dumps: Dumps) -> None:
    dumps.always_tells(0)
    assert dumps.run() == 0
    assert len(dumps.there()) == 7
    assert dumps.there()[0] == "2026-01-04T021700.dump"  # as on any other: two left, and the eighth


def test_dumps_on_a_full_disk_lose_no_more_than_it_takes(dumps: Dumps) -> None:
    dumps.dumps("false")  # so that none leaves afterwards
    dumps.always_tells(0)
    assert dumps.run() != 0
    assert dumps.there() == [f"2026-01-0{night}T021700.dump" for night in range(3, 10)]


def test_a_disk_that_is_too_small_for_a_dump_loses_none(dumps: Dumps) -> None:
    before = dumps.there()
    dumps.has_free(-8000)  # as much as all but the newest have
    assert dumps.run() != 0
    assert dumps.there() == before[:-1]


def test_the_first_dump_needs_none_before_it(tmp_path: Path) -> None:
    dumps = Dumps(tmp_path)
    assert dumps.run() == 0
    assert len(dumps.there()) == 1


def test_simulated_devices_have_different_data() -> None:
    (devices,) = with_specs(rendered(MANIFESTS / "base"), "StatefulSet").values()
    (container,) = devices["template"]["spec"]["containers"]
    source = environment(container)["HFMDS_DATA"]
    names = list(environment(container))
    assert names.index("POD_INDEX") < names.index("HFMDS_DATA")  # else it is not filled in
    first, last = (
        load_images(source.replace("$(POD_INDEX)", str(index)))
        for index in (0, devices["replicas"] - 1)
    )
    assert set(first.labels.tolist()).isdisjoint(last.labels.tolist())


def test_images_are_targets_of_the_dockerfile() -> None:
    dockerfile = (MANIFESTS / "Dockerfile").read_text()
    targets = set(re.findall(r"^FROM runtime AS ([a-z-]+)$", dockerfile, re.MULTILINE))
    assert targets == SETTINGS.keys()
    for target in targets - {"coordinator", "edge-client-torch"}:
        install = re.search(rf"FROM build\S* AS build-{_stage(target)}\nRUN (.+)", dockerfile)
        assert install is not None
        assert "torch" not in install[1]


def test_programs_own_the_folders_that_docker_makes_volumes_of() -> None:
    dockerfile = (MANIFESTS / "Dockerfile").read_text()
    (owned,) = re.findall(r"install --directory --owner=hfmds .+ (/\w+ /\w+)$", dockerfile, re.M)
    assert owned.split() == ["/state", "/data"]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    # DL3013: versions are in pyproject.toml.
    command = [sysconfig.get_path("scripts") + "/hadolint", "--no-color", "--ignore", "DL3013"]
    found = subprocess.run(
        [*command, MANIFESTS / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, ""), found.stdout + found.stderr


@pytest.mark.parametrize("file", sorted(MANIFESTS.rglob("*.yaml")), ids=lambda file: file.name)
def test_no_secret_is_in_the_repository(file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        assert not (isinstance(document, dict) and document.get("kind") == "Secret")


def _stage(target: str) -> str:
    """Return the build stage of a target of the Dockerfile."""
    dockerfile = (MANIFESTS / "Dockerfile").read_text()
    copied = re.search(rf"AS {target}\nCOPY --from=build-(\S+) ", dockerfile)
    assert copied is not None
    return copied[1]
