"""The schema, or a rule of templates/_checks.tpl, refuses invalid values in a sentence that names the key."""

import re
from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, CHART, TOO_LARGE, refusal, render

OWN = {"worker.image": {"repository": "mine"}}

BY_RULE: dict[str, tuple[str, dict[str, Any]]] = {
    "a fullname with a dot": ("fullnameOverride", {"fullnameOverride": "mnist.v2"}),
    "a fullname that begins with a digit": ("fullnameOverride", {"fullnameOverride": "2-mnist"}),
    "a fullname of 41 characters": ("fullnameOverride", {"fullnameOverride": "m" * 41}),
    "replicas for all roles": ("common.replicas", {"common.replicas": 2}),
    "room for all roles": ("common.maxReplicas", {"common.maxReplicas": 2}),
    "another name of all roles": ("common.taskType", {"common.taskType": "master"}),
    "another name of workers": ("worker.taskType", {"worker.taskType": "master"}),
    "workers that never end": (
        "worker.restartPolicy",
        {
            "chief.replicas": 1,
            "chief.restartPolicy": "Never",
            "worker.restartPolicy": "Always",
            "run.successPolicy": "AllWorkers",
        },
    ),
    "a chief that never ends": ("worker.restartPolicy", {"supervisor.enabled": True, "common.restartPolicy": "Always"}),
    "a client that never ends": (
        "client.restartPolicy",
        {"client.replicas": 1, "client.command": ["run"], "client.restartPolicy": "Always"},
    ),
    "a client without a program": ("client.command", {"client.replicas": 1}),
    "two clients": ("client.replicas", {"client.replicas": 2}),
    "GPUs for all roles": ("common.gpus", {"common.gpus": 1}),
    "room for parameter servers": ("ps.maxReplicas", {"ps.maxReplicas": 2}),
    "room for chiefs": ("chief.maxReplicas", {"chief.maxReplicas": 2}),
    "room for evaluators": ("evaluator.maxReplicas", {"evaluator.maxReplicas": 2}),
    "GPUs of parameter servers": ("ps.gpus", {"ps.gpus": 1}),
    "two chiefs": ("chief.replicas", {"chief.replicas": 2}),
    "two evaluators": ("evaluator.replicas", {"evaluator.replicas": 2}),
    "no task that trains": ("worker.replicas", {"worker.replicas": 0}),
    "more workers than room": ("worker.replicas", {"worker.replicas": 3, "worker.maxReplicas": 2}),
    "an image of one's own without its command": ("worker.command", OWN),
    "such an image in all roles": ("worker.command", {"common.image": {"repository": "mine"}}),
    "arguments without a command": ("ps.args", {"ps.args": ["--verbose"]}),
    "the CPU image's digest for GPUs": ("image.digest", {"image.digest": "sha256:" + "0" * 64, "worker.gpus": 1}),
    "the packaged trainer without parameter servers": ("ps.replicas", {"ps.replicas": 0}),
    "a single process": ("train.strategy", {"train.strategy": "mirrored", "ps.replicas": 0}),
    "parameter servers without a use": ("ps.replicas", {"train.strategy": "allreduce"}),
    "all-reduce among workers yet to come": (
        "worker.maxReplicas",
        {"train.strategy": "allreduce", "ps.replicas": 0, "worker.maxReplicas": 3},
    ),
    "a program of one's own in too large a cluster": (
        "worker.replicas",
        {**OWN, "worker.command": ["run"], **TOO_LARGE},
    ),
    "a step that waits for more gradients than the replicas compute": (
        "train.replicas_to_aggregate",
        {"train.sync_replicas": True, "train.replicas_to_aggregate": 3},
    ),
    "a step that waits for workers yet to come": (
        "train.replicas_to_aggregate",
        {"train.sync_replicas": True, "worker.maxReplicas": 3},
    ),
    "MNIST without a volume": ("data.enabled", {"train.dataset": "mnist"}),
    "files of one's own without a volume": ("data.enabled", {"train.dataset": "npz"}),
    "capitals in the name of the training directory's claim": (
        "trainingDirectory.existingClaim",
        {"trainingDirectory.existingClaim": "Runs"},
    ),
    "capitals in the name of the data's claim": ("data.existingClaim", {"data.existingClaim": "MNIST"}),
    "NFS without a path": ("trainingDirectory.nfs.path", {"trainingDirectory.nfs.server": "nas"}),
    "NFS with a relative path": ("data.nfs.path", {"data.nfs.server": "nas", "data.nfs.path": "exports"}),
    "NFS without a server": ("trainingDirectory.nfs.server", {"trainingDirectory.nfs.path": "/exports"}),
    "NFS and a claim": (
        "data.existingClaim",
        {"data.nfs.server": "nas", "data.nfs.path": "/exports", "data.existingClaim": "mnist"},
    ),
    "the packaged trainer without a training directory": (
        "trainingDirectory.enabled",
        {"trainingDirectory.enabled": False, "tensorboard.enabled": False},
    ),
    "TensorBoard without a training directory": (
        "tensorboard.enabled",
        {"trainingDirectory.enabled": False, "common.image": {"repository": "mine"}, "common.command": ["run"]},
    ),
    "a training directory for one pod": (
        "trainingDirectory.accessModes",
        {"trainingDirectory.accessModes": ["ReadWriteOncePod"]},
    ),
    "an HTTPRoute without a Gateway": ("tensorboard.httpRoute.parentRefs", {"tensorboard.httpRoute.enabled": True}),
    "a path prefix without a slash": ("tensorboard.pathPrefix", {"tensorboard.pathPrefix": "mnist"}),
}

BY_SCHEMA: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown key": ("workers", {"workers": 2}),
    "an unknown key of a role": ("replica", {"worker.replica": 2}),
    "an unknown setting of the trainer": ("steps", {"train.steps": 2}),
    "a setting that the chart makes": ("train_dir", {"train.train_dir": "/elsewhere"}),
    "text for a number": ("/worker/replicas", {"worker.replicas": "two"}),
    "half a worker": ("/worker/replicas", {"worker.replicas": 1.5}),
    "a negative number": ("/ps/replicas", {"ps.replicas": -1}),
    "text for a switch": ("/data/enabled", {"data.enabled": "yes please"}),
    "a map for a list": ("/common/env", {"common.env": {"A": "1"}}),
    "an unknown restart policy": ("/ps/restartPolicy", {"ps.restartPolicy": "Sometimes"}),
    "no port": ("/port", {"port": 0}),
    "a port past the last one": ("/metrics/port", {"metrics.port": 65536}),
    "an unknown data set": ("/train/dataset", {"train.dataset": "cifar"}),
    "no steps": ("/train/train_steps", {"train.train_steps": 0}),
    "text for a rate": ("/train/learning_rate", {"train.learning_rate": "fast"}),
    "a rate of zero as text": ("/train/learning_rate", {"train.learning_rate": "0.0"}),
    "a relative path": ("/trainingDirectory/path", {"trainingDirectory.path": "runs"}),
    "an unknown access mode": ("/data/accessModes/0", {"data.accessModes": ["ReadWriteAll"]}),
    "no access mode": ("/data/accessModes", {"data.accessModes": []}),
    "a size without a number": ("/trainingDirectory/size", {"trainingDirectory.size": "much"}),
    "a digest that is none": ("/image/digest", {"image.digest": "sha256:abc"}),
    "a pull policy that is none": ("/image/pullPolicy", {"image.pullPolicy": "Sometimes"}),
    "an image without a repository": ("/image/repository", {"image.repository": ""}),
    "a number as a label": ("/common/labels/team", {"common.labels": {"team": 1}}),
    "a GPU resource without a domain": ("/gpu/resourceName", {"gpu.resourceName": "gpu"}),
    "a time without a unit": ("/metrics/podMonitor/interval", {"metrics.podMonitor.interval": "15"}),
    "a share that is none": ("/ps/podDisruptionBudget/maxUnavailable", {"ps.podDisruptionBudget.maxUnavailable": "a"}),
}


def rules() -> list[str]:
    """The sentences of templates/_checks.tpl, as patterns of what Helm says."""
    source = (CHART / "templates/_checks.tpl").read_text()
    sentences = [found.replace('\\"', '"') for found in re.findall(r'fail (?:\(printf )?"((?:[^"\\]|\\.)*)"', source)]
    assert len(sentences) == source.count("- fail ")
    return [re.sub("%[sdq]", ".*", re.escape(sentence)) for sentence in sentences]


@pytest.mark.parametrize("case", BY_RULE)
def test_a_rule_refuses(case: str) -> None:
    key, values = BY_RULE[case]
    said = refusal(values)
    assert f": {key}: " in said
    assert [rule for rule in rules() if re.search(rule, said)], "the sentence is none of _checks.tpl"


def test_every_rule_refuses_something() -> None:
    said = "\n".join(refusal(values) for _, values in BY_RULE.values())
    assert [rule for rule in rules() if not re.search(rule, said)] == []


@pytest.mark.parametrize("case", BY_SCHEMA)
def test_the_schema_refuses(case: str) -> None:
    key, values = BY_SCHEMA[case]
    said = refusal(values)
    assert "don't meet the specifications of the schema" in said
    assert f"'{key}'" in said


def test_a_release_with_too_long_a_name_is_refused() -> None:
    assert f'fullnameOverride: "{"m" * 41}" (default: the release\'s name) is not a valid prefix' in refusal(
        {}, release="m" * 41
    )


def test_the_longest_name_is_taken() -> None:
    manifests = render(ALL_ROLES, release="m" * 40)
    longest = max(len(item["metadata"]["name"]) for item in manifests.of("StatefulSet"))
    # A StatefulSet's pods carry its name, an index and a hash in a label, which holds 63 characters.
    assert longest + len("-0123456789") <= 63
    assert max(len(item["metadata"]["name"]) for item in manifests) <= 63


def test_a_cluster_without_parameter_servers_is_for_all_reduce_and_programs_of_ones_own() -> None:
    together = render({"ps.replicas": 0, "train.strategy": "allreduce"})
    assert [item["metadata"]["name"] for item in together.of("StatefulSet")] == ["mnist-worker"]
    own = render({"ps.replicas": 0, "common.image": {"repository": "mine"}, "common.command": ["run"]})
    assert [item["metadata"]["name"] for item in own.of("StatefulSet")] == ["mnist-worker"]


def test_chief_alone_may_train() -> None:
    alone = render({"worker.replicas": 0, "chief.replicas": 1})
    assert [item["metadata"]["name"] for item in alone.of("StatefulSet")] == ["mnist-chief", "mnist-ps"]
