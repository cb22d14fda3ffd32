"""Pods as pilots, through Parsl's KubernetesProvider.

Its pods start again when they have ended, do not know their names, and stay. What is amiss is added where it creates
them; a pod that has ended is deleted, once its log is a file.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

_REQUEST_S = 30.0
_GRACE_S = 120  # between the signal that drains a worker and the end of its pod
# Of the node: the identity of its devices, and the folder of the lock by which its pods take turns to time.
_HOST_PATHS = {"machine": ("/etc/machine-id", "File"), "lock": ("/run/lock", "Directory")}
_TOKEN = "plevel-worker"  # noqa: S105 - the secret that deploy/kubernetes mounts


def make_provider(options: Mapping[str, Any], name: str) -> Any:
    """Parsl's provider of pods, whose names begin with `name`."""
    from parsl.providers import KubernetesProvider

    volumes = [tuple(pair) for pair in options.get("persistent_volumes", ())]  # TOML has lists only
    provider = KubernetesProvider(**{**options, "persistent_volumes": volumes, "pod_name": name})
    api = provider.kube_client
    for verb in ("create", "list", "delete"):
        request = partial(getattr(api, f"{verb}_namespaced_pod"), _request_timeout=_REQUEST_S)
        setattr(api, f"{verb}_namespaced_pod", request)
    create = api.create_namespaced_pod

    def create_pilot(*, namespace: str, body: Any) -> Any:
        _complete(body)
        return create(namespace=namespace, body=body)

    api.create_namespaced_pod = create_pilot
    return provider


def _complete(pod: Any) -> None:
    """Make a pod of Parsl's one that runs a worker once, as those of `deploy/kubernetes` do."""
    from kubernetes import client

    pod.metadata.labels["plevel/worker"] = "true"
    pod.spec.restart_policy = "Never"
    pod.spec.automount_service_account_token = False
    pod.spec.enable_service_links = False  # the Service `plevel` would set PLEVEL_PORT, which is a setting
    pod.spec.termination_grace_period_seconds = _GRACE_S
    (container,) = pod.spec.containers
    container.env = [client.V1EnvVar(name="JOBNAME", value=pod.metadata.name)]
    for name, (path, kind) in _HOST_PATHS.items():
        source = client.V1HostPathVolumeSource(path=path, type=kind)
        pod.spec.volumes.append(client.V1Volume(name=name, host_path=source))
        container.volume_mounts.append(
            client.V1VolumeMount(name=name, mount_path=path, read_only=name == "machine")
        )
    secret = client.V1SecretVolumeSource(secret_name=_TOKEN, optional=True)
    pod.spec.volumes.append(client.V1Volume(name="token", secret=secret))
    container.volume_mounts.append(client.V1VolumeMount(name="token", mount_path="/secrets", read_only=True))


def find_pods(provider: Any) -> Iterator[Any]:
    """The provider's pods, whichever process has created them."""
    for pod in provider.kube_client.list_namespaced_pod(provider.namespace).items:
        if pod.metadata.name.startswith(f"{provider.pod_name}."):
            yield pod


def has_ended(pod: Any) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def bury_pods(provider: Any, folder: Path) -> None:
    """Delete the pods that have ended; their logs become files of the folder."""
    api = provider.kube_client
    for pod in find_pods(provider):
        if has_ended(pod):
            name = pod.metadata.name
            with _missing(400, 404):  # an evicted pod has none
                log = api.read_namespaced_pod_log(name, provider.namespace, _request_timeout=_REQUEST_S)
                (folder / f"{name}.log").write_text(log)
            with _missing(404):  # another scaler has deleted it
                api.delete_namespaced_pod(name, provider.namespace)


@contextlib.contextmanager
def _missing(*statuses: int) -> Iterator[None]:
    """Pass over the server's errors of these HTTP statuses."""
    try:
        yield
    except api_errors() as error:
        if getattr(error, "status", None) not in statuses:
            raise


def api_errors() -> tuple[type[Exception], ...]:
    """The errors of Kubernetes' client, if it is in use."""
    if "kubernetes" not in sys.modules:
        return ()
    from kubernetes.client import OpenApiException
    from urllib3.exceptions import HTTPError

    return OpenApiException, HTTPError


def explain_api(error: Exception) -> str | None:
    """The API server's own words in an error, if it has any."""
    try:
        return str(json.loads(getattr(error, "body", ""))["message"])
    except (TypeError, ValueError, KeyError):
        return None
