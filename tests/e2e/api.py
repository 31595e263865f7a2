"""Reads objects and logs from the API server of KUBECONFIG.

Tests that wait ask for them twice a second, and each call of kubectl takes a tenth of a second of CPU time.
"""

import functools
import os
from typing import Any

import httpx2
from lightkube.config.client_adapter import Client, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig


@functools.cache
def _client(kubeconfig: str) -> Any:
    config = KubeConfig.from_file(kubeconfig).get()
    assert config, f"{kubeconfig} has no current context"
    return Client(config, ConnectionParams())


@functools.cache
def _resources(kubeconfig: str) -> dict[str, tuple[str, str, bool]]:
    """Of each name of a kind, such as `pods`, `pod` or `pvc`: its API, its plural, and whether it has namespaces."""
    client = _client(kubeconfig)
    groups = client.get("/apis").raise_for_status().json()["groups"]
    found: dict[str, tuple[str, str, bool]] = {}
    for api in ("/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)):
        for each in client.get(api).raise_for_status().json()["resources"]:
            for name in (each["name"], each["singularName"], *each.get("shortNames", ())):
                found.setdefault(name, (api, each["name"], each["namespaced"]))
    return found


def get(namespace: str, kind: str, name: str = "", **selectors: str) -> Any:
    """Return an object, or the list of all objects that match selectors such as `labelSelector`.

    Raises:
        AssertionError: the API server refuses it; the message is the API server's.
    """
    api, plural, is_namespaced = _resources(os.environ["KUBECONFIG"])[kind]
    place = f"{api}/namespaces/{namespace}" if is_namespaced else api
    answer = _client(os.environ["KUBECONFIG"]).get(f"{place}/{plural}/{name}".rstrip("/"), params=selectors)
    assert answer.is_success, f"{kind} {name}: {answer.text}"
    return answer.json()


def log(namespace: str, pod: str, *, previous: bool = False) -> str:
    """Return the log of a pod's container; empty if there is none, or the kubelet does not answer."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
    try:
        answer = _client(os.environ["KUBECONFIG"]).get(path, params={"previous": previous})
    except httpx2.TransportError:
        return ""
    return answer.text if answer.is_success else ""
