"""The trainer, which is not root, can write to a volume that belongs to root."""

import secrets
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.releases import Release


@pytest.fixture
def root_owned_claim(release: Release) -> Iterator[str]:
    """A claim on a folder of a node that belongs to root and has mode 0755, as many provisioners create it."""
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
        "metadata": {"name": "root-owned"},
        "spec": {**spec, "volumeName": release.namespace, "resources": {"requests": {"storage": "1Gi"}}},
    }
    release.kubectl("apply", "-f-", text=yaml.safe_dump_all([volume, claim]))
    yield "root-owned"
    release.helm("uninstall", release.name, "--wait")
    release.kubectl("delete", "persistentvolumeclaim", "root-owned")
    release.kubectl("delete", "persistentvolume", release.namespace)
    run_on_node(node, f"rm -r /host/{release.namespace}")


def run_on_node(node: str, command: str) -> None:
    """Run a command as root on a node, with its /var/tmp at /host, in a namespace without Pod Security."""
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


def test_the_trainer_writes_to_a_volume_that_belongs_to_root(release: Release, root_owned_claim: str) -> None:
    train = {"train_steps": 1500, "learning_rate": 0.003}
    release.install({"trainingDirectory": {"existingClaim": root_owned_claim}, "train": train})
    assert release.wait_for_result(1500)["test_accuracy"] > 0.9
    listing = release.kubectl("exec", "deployment/mnist-tensorboard", "--", "stat", "-c", "%u %g %a", "/training")
    user, group, _ = listing.split()
    assert (user, group) == ("0", "10001"), "root still owns it, and fsGroup has set the group"
