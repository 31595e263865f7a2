"""The cluster has what the chart needs: pods, DNS, claims, port forwarding and Pod Security."""

import subprocess
import urllib.request
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Kubectl

IMAGE = "debian:bookworm-slim"
pytestmark = pytest.mark.long  # the other end-to-end tests use the cluster; run these after a change of hack/cluster


def pod(name: str, command: str, **spec: Any) -> str:
    container = {"name": "main", "image": IMAGE, "command": ["sh", "-ec", command]} | spec.pop("container", {})
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]} | spec
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body})


def log_after_success(kubectl: Kubectl, name: str) -> str:
    """Wait for a pod's success and return its log."""
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=60s")
    return kubectl("logs", name)


def test_a_pod_runs(kubectl: Kubectl) -> None:
    kubectl("apply", "-f-", text=pod("hello", "echo hello"))
    assert log_after_success(kubectl, "hello") == "hello\n"


def test_exec_and_port_forward_work(kubectl: Kubectl, namespace: str) -> None:
    serve = "perl -MIO::Socket::INET -e '" + (
        "$s = IO::Socket::INET->new(LocalPort => 6006, Listen => 5, ReuseAddr => 1);"
        'while ($c = $s->accept) { 1 while <$c> =~ /\\w/; print $c "HTTP/1.0 200 OK\\r\\n\\r\\nserved"; close $c }\''
    )
    kubectl("apply", "-f-", text=pod("server", serve))
    kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=60s")
    assert kubectl("exec", "server", "--", "hostname") == "server\n"
    listens = "until grep -q :1776 /proc/net/tcp; do sleep 0.1; done"  # a container is ready before its program is
    kubectl("exec", "server", "--", "timeout", "60", "sh", "-c", listens)
    forward = ["kubectl", "--namespace", namespace, "port-forward", "pod/server", ":6006"]
    with subprocess.Popen(forward, stdout=subprocess.PIPE, text=True) as forwarding:
        try:
            assert forwarding.stdout
            address = forwarding.stdout.readline().split()[2]  # "Forwarding from 127.0.0.1:PORT -> 6006"
            with urllib.request.urlopen(f"http://{address}/", timeout=10) as response:
                assert response.read() == b"served"
        finally:
            forwarding.terminate()


def test_pods_of_a_stateful_set_resolve_each_others_names(kubectl: Kubectl, namespace: str) -> None:
    labels = {"app": "task"}
    resolve_all = ["sh", "-c", "getent hosts task-0.task && getent hosts task-1.task"]
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sleep", "infinity"],
        "readinessProbe": {"exec": {"command": resolve_all}, "periodSeconds": 1},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "task"},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels},
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "task"},
        "spec": {
            "serviceName": "task",
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
        },
    }
    kubectl("apply", "-f-", text=yaml.safe_dump_all([service, stateful_set]))
    kubectl("rollout", "status", "statefulset/task", "--timeout=60s")
    addresses = kubectl("get", "pods", "-l", "app=task", "-o", "jsonpath={.items[*].status.podIP}").split()
    for client in ("task-0", "task-1"):
        for index, address in enumerate(addresses):
            name = f"task-{index}.task.{namespace}.svc.cluster.local"
            assert kubectl("exec", client, "--", "getent", "hosts", name).split()[0] == address


def test_a_pod_reaches_a_service_by_its_short_name(kubectl: Kubectl) -> None:
    connect = "until bash -c 'exec 3<>/dev/tcp/kubernetes.default/443'; do sleep 0.2; done; echo reached"
    kubectl("apply", "-f-", text=pod("client", connect))
    assert log_after_success(kubectl, "client").endswith("reached\n")


def test_a_claim_is_provisioned_and_a_user_can_write_to_it(kubectl: Kubectl) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "store"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    mounted = {
        "securityContext": {"runAsUser": 1000},
        "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": "store"}}],
        "container": {"volumeMounts": [{"name": "store", "mountPath": "/store"}]},
    }
    kubectl("apply", "-f-", text=yaml.safe_dump(claim))
    kubectl("apply", "-f-", text=pod("writer", "id -u > /store/written", **mounted))
    log_after_success(kubectl, "writer")
    kubectl("apply", "-f-", text=pod("reader", "cat /store/written", **mounted))
    assert log_after_success(kubectl, "reader") == "1000\n"


def test_a_restricted_namespace_refuses_a_root_pod(kubectl: Kubectl, namespace: str) -> None:
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        kubectl("apply", "-f-", text=pod("root", "id"))
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    identity = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    kubectl(
        "apply", "-f-", text=pod("user", "id -u", securityContext=identity, container={"securityContext": restricted})
    )
    assert log_after_success(kubectl, "user") == "1000\n"
