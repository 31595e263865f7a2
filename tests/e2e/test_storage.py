"""Volumes that were not made for us: the trainer, which is not root, writes where only root may."""

import secrets
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.releases import Release


@pytest.fixture
def roots_claim(release: Release) -> Iterator[str]:
    """A claim on a folder of a node that is root's, mode 0755: what many provisioners hand out."""
    nodes = release.get("nodes")["items"]
    node = next(node["metadata"]["name"] for node in nodes if not node["spec"].get("taints"))
    run_on_node(node, f"mkdir -m 0755 /host/{release.namespace}")
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": release.namespace},
        "spec": {
            **spec,
            "capacity": {"storage": "1Gi"},
            "local": {"path": f"/var/tmp/{release.namespace}"},  # noqa: S108
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "roots"},
        "spec": {**spec, "volumeName": release.namespace, "resources": {"requests": {"storage": "1Gi"}}},
    }
    release.kubectl("apply", "-f-", text=yaml.safe_dump_all([volume, claim]))
    yield "roots"
    release.helm("uninstall", release.name, "--wait")
    release.kubectl("delete", "persistentvolumeclaim", "roots")
    release.kubectl("delete", "persistentvolume", release.namespace)
    run_on_node(node, f"rm -r /host/{release.namespace}")


def run_on_node(node: str, command: str) -> None:
    """Run a command as root on a node, with its /var/tmp at /host; outside the namespace that would refuse this."""
    name = f"on-node-{secrets.token_hex(3)}"
    container = {
        "name": "main",
        "image": "debian:bookworm-slim",
        "command": ["sh", "-ec", command],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "host", "hostPath": {"path": "/var/tmp"}}],  # noqa: S108
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
    kubectl = ["kubectl", "--namespace=default"]
    subprocess.run([*kubectl, "apply", "-f-"], input=yaml.safe_dump(pod), text=True, check=True, capture_output=True)
    success = "--for=jsonpath={.status.phase}=Succeeded"
    subprocess.run([*kubectl, "wait", success, f"pod/{name}", "--timeout=60s"], check=True, capture_output=True)
    subprocess.run([*kubectl, "delete", f"pod/{name}"], check=True, capture_output=True)


def test_a_volume_of_roots_is_written_by_the_trainer(release: Release, roots_claim: str) -> None:
    train = {"train_steps": 600, "learning_rate": 0.003}
    release.install({"trainingDirectory": {"existingClaim": roots_claim}, "train": train})
    assert release.wait_for_result(600)["test_accuracy"] > 0.9
    listing = release.kubectl("exec", "deployment/mnist-tensorboard", "--", "stat", "-c", "%u %g %a", "/training")
    user, group, _ = listing.split()
    assert (user, group) == ("0", "10001"), "it still is root's, and fsGroup gave it to the trainer's group"
