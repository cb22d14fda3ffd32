"""The manifests of `deploy/kubernetes`: their schemas, what they refer to, and what they say of the program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.routing import APIRoute
from typer.testing import CliRunner

from plevel.cli.main import app
from service.api.health import router
from tests.limit import HANG_S

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
RESOURCES = [
    one for name in KUSTOMIZATION["resources"] for one in yaml.safe_load_all((FOLDER / name).read_text())
]
TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}


def record(required: str, **properties: Any) -> dict[str, Any]:
    """A schema of a mapping that has no other keys."""
    return {
        "type": "object", "additionalProperties": False, "required": required.split(), "properties": properties,
    }


# The used part of KEDA's resources; a job's own part is checked as Kubernetes's.
TRIGGER = record(
    "type metadata",
    type={"const": "metrics-api"},
    metadata=record(
        "url targetValue format valueLocation",
        url=TEXT, valueLocation=TEXT, targetValue=TEXT, format={"const": "prometheus"}, authMode={"const": "bearer"},
    ),
    authenticationRef=record("name", name=TEXT),
)
KEDA = {
    "ScaledJob": record(
        "jobTargetRef triggers",
        jobTargetRef={"type": "object"}, minReplicaCount=COUNT, maxReplicaCount=COUNT, pollingInterval=COUNT,
        successfulJobsHistoryLimit=COUNT, failedJobsHistoryLimit=COUNT,
        rollout=record("strategy", strategy={"enum": ["default", "gradual"]}),
        scalingStrategy=record("strategy", strategy={"enum": ["default", "custom", "accurate", "eager"]}),
        triggers={"type": "array", "minItems": 1, "items": TRIGGER},
    ),
    "TriggerAuthentication": record(
        "secretTargetRef",
        secretTargetRef={"type": "array", "items": record("parameter name key", parameter=TEXT, name=TEXT, key=TEXT)},
    ),
}


def name_of(resource: dict[str, Any]) -> str:
    return f"{resource['kind']} {resource['metadata']['name']}"


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [one for one in RESOURCES if one["kind"] in kinds]


def pods() -> dict[str, Any]:
    """The templates of pods, by the name of their resource."""
    found = {name_of(one): one["spec"]["template"] for one in of_kind("Deployment")}
    jobs = {name_of(one): one["spec"]["jobTargetRef"]["template"] for one in of_kind("ScaledJob")}
    return found | jobs


PODS = pods()


@pytest.mark.parametrize("resource", RESOURCES, ids=name_of)
def test_each_resource_has_its_schema(resource: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    if resource["apiVersion"].startswith("keda.sh/"):
        import jsonschema

        jsonschema.validate(resource["spec"], KEDA[resource["kind"]])
        if resource["kind"] != "ScaledJob":
            return
        job = resource["spec"]["jobTargetRef"]
        resource = {"apiVersion": "batch/v1", "kind": "Job", "metadata": resource["metadata"], "spec": job}
    kubernetes.validate(resource, "1.30", strict=True)


def test_every_file_is_a_resource() -> None:
    there = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(KUSTOMIZATION["resources"]) == there
    assert {i["name"] for i in KUSTOMIZATION["images"]} == {
        c["image"] for pod in PODS.values() for c in pod["spec"]["containers"]
    }


def test_it_renders() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this host")
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    rendered = list(yaml.safe_load_all(done.stdout))
    assert {name_of(one) for one in rendered} == {name_of(one) for one in RESOURCES}
    assert {one["metadata"].get("namespace", "plevel") for one in rendered} == {"plevel"}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_rights_that_it_does_not_need(name: str) -> None:
    spec = PODS[name]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    own = container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    # Workers run what they compile.
    knows = any(e["name"] == "PLEVEL_DATABASE" for e in container["env"])
    assert knows == (container["name"] == "service")


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_variables_of_services(name: str) -> None:
    """Those of the Service `plevel` begin with PLEVEL_, as settings do."""
    assert "plevel" in {one["metadata"]["name"] for one in of_kind("Service")}
    assert PODS[name]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", PODS)
def test_a_pod_runs_a_command_that_there_is(name: str) -> None:
    (container,) = PODS[name]["spec"]["containers"]
    command, *options = container["args"]
    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, "--help"])
    assert told.exit_code == 0
    assert all(word in told.stdout for word in options if word.startswith("--"))


def test_variables_and_probes_are_those_of_the_program() -> None:
    """A variable that nothing reads is a setting that is not set."""
    root = FOLDER.parents[1]
    code = "".join(path.read_text() for folder in ("plevel", "workers") for path in (root / folder).rglob("*.py"))
    routes = {route.path for route in router.routes if isinstance(route, APIRoute)}
    for name, pod in PODS.items():
        (container,) = pod["spec"]["containers"]
        named = [e["name"] for e in container["env"] if e["name"].startswith("PLEVEL_")]
        assert [one for one in named if f'"{one}"' not in code] == [], name
        probes = [probe["httpGet"] for key, probe in container.items() if key.endswith("Probe")]
        assert {probe["path"] for probe in probes} <= routes
        assert {probe["port"] for probe in probes} <= {port["name"] for port in container.get("ports", ())}


def test_policies_and_services_select_pods_that_there_are() -> None:
    labels = [pod["metadata"]["labels"] for pod in PODS.values()]
    selectors = [p["spec"]["podSelector"]["matchLabels"] for p in of_kind("NetworkPolicy")]
    selectors += [one["spec"]["selector"] for one in of_kind("Service")]
    for selector in selectors:
        assert any(selector.items() <= one.items() for one in labels), selector
    for one in labels:
        assert any(s.items() <= one.items() for s in selectors), one


def test_a_worker_ends_within_what_its_pod_has() -> None:
    """The default grace period of a worker is 90 s."""
    for name, pod in PODS.items():
        if pod["spec"]["containers"][0]["name"] == "worker":
            assert pod["spec"]["terminationGracePeriodSeconds"] > 90, name


def test_gpus_are_asked_for_where_they_are_used() -> None:
    for name, pod in PODS.items():
        (container,) = pod["spec"]["containers"]
        asked = "nvidia.com/gpu" in container["resources"]["limits"]
        assert asked == ("cuda:0" in container["args"]), name


def test_workers_are_replaced_without_room_for_another() -> None:
    """Each has the whole of what its node has: its cores, or its GPU."""
    for one in of_kind("Deployment"):
        if name_of(one) != "Deployment plevel-service":
            assert one["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}, name_of(one)


def test_pods_are_kept_apart_from_their_own_kind() -> None:
    for name, pod in PODS.items():
        rules = pod["spec"].get("topologySpreadConstraints", [])
        affinity = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
        rules += affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        for rule in rules:
            assert rule["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), name
    (budget,) = of_kind("PodDisruptionBudget")
    service = PODS["Deployment plevel-service"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= service.items()
