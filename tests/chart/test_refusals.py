"""The schema or a rule of templates/_checks.tpl refuses invalid values, with an error that names the key."""

import re
from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, CHART, TOO_LARGE, refusal, render

OWN = {"worker.image": {"repository": "mine"}}

STAGE = {"name": "infer", "command": ["run"]}

WATCH: dict[str, Any] = {"data.watch.enabled": True, "train.dataset": "lance", "data.enabled": True}

PUBLISHED = {"mlflow.trackingUri": "http://mlflow:5000"}

BY_RULE: dict[str, tuple[str, dict[str, Any]]] = {
    "stages without a supervisor": ("stages", {"stages.after": [STAGE], "supervisor.enabled": False}),
    "two stages of one name": ("stages.after[0].name", {"stages.before": [STAGE], "stages.after": [STAGE]}),
    "a stage that mounts data that there is not": (
        "stages.after[0].volumes",
        {"stages.after": [{**STAGE, "volumes": ["data"]}]},
    ),
    "a stage that mounts a training directory that is not a volume": (
        "stages.after[0].volumes",
        {"stages.after": [{**STAGE, "volumes": ["training"]}], "trainingDirectory.uri": "s3://bucket/runs"},
    ),
    "a stage that needs what no stage makes": (
        "stages.after[0].needs",
        {"stages.after": [{**STAGE, "needs": ["/data/digits.lance"]}]},
    ),
    "a stage that needs what a later stage makes": (
        "stages.before[0].needs",
        {"stages.before": [{**STAGE, "needs": ["/x"]}, {**STAGE, "name": "prepare", "makes": ["/x"]}]},
    ),
    "a user's stage with the name of the one that publishes": (
        "stages.after[0].name",
        {"stages.after": [{**STAGE, "name": "publish"}], **PUBLISHED},
    ),
    "a watch without a supervisor": (
        "data.watch.enabled",
        {**WATCH, "supervisor.enabled": False},
    ),
    "a watch for a program of one's own": (
        "data.watch.enabled",
        {"data.watch.enabled": True, **OWN, "worker.command": ["run"]},
    ),
    "a watch of data without versions": (
        "data.watch.enabled",
        {"data.watch.enabled": True, "train.dataset": "mnist", "data.enabled": True},
    ),
    "a version in the arguments beside a watch": (
        "extraArgs",
        {**WATCH, "extraArgs": ["--data_version=3"]},
    ),
    "a version with a dash in the arguments beside a watch": (
        "extraArgs",
        {**WATCH, "extraArgs": ["--data-version", "3"]},
    ),
    "a directory in the arguments beside a watch": ("extraArgs", {**WATCH, "extraArgs": ["--train_dir=/training"]}),
    "a watch for a client": ("data.watch.enabled", {**WATCH, "client.replicas": 1, "client.command": ["ask"]}),
    "an address of MLflow without a scheme": ("mlflow.trackingUri", {"mlflow.trackingUri": "mlflow:5000"}),
    "an address of MLflow that is a file": ("mlflow.trackingUri", {"mlflow.trackingUri": "sqlite:///mlflow.db"}),
    "credentials in the address of MLflow": (
        "mlflow.trackingUri",
        {"mlflow.trackingUri": "https://me:secret@mlflow.example.com"},
    ),
    "publishing without a supervisor": (
        "mlflow.trackingUri",
        {**PUBLISHED, "supervisor.enabled": False},
    ),
    "publishing what a program of one's own writes without a training directory": (
        "mlflow.trackingUri",
        {
            **PUBLISHED,
            "common.image": OWN["worker.image"],
            "common.command": ["run"],
            "trainingDirectory.enabled": False,
            "tensorboard.enabled": False,
        },
    ),
    "an address of MLflow with a space": ("mlflow.trackingUri", {"mlflow.trackingUri": "http://mlflow 5000"}),
    "an address of MLflow whose port is a word": ("mlflow.trackingUri", {"mlflow.trackingUri": "http://mlflow:port"}),
    "an address of MLflow with a query": ("mlflow.trackingUri", {"mlflow.trackingUri": "http://mlflow/?token=secret"}),
    "an address of MLflow without a host": ("mlflow.trackingUri", {"mlflow.trackingUri": "http:///mlflow"}),
    "a fullname with a dot": ("fullnameOverride", {"fullnameOverride": "mnist.v2"}),
    "a fullname that begins with a digit": ("fullnameOverride", {"fullnameOverride": "2-mnist"}),
    "a fullname of 41 characters": ("fullnameOverride", {"fullnameOverride": "m" * 41}),
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
    "no task that trains": ("worker.replicas", {"worker.replicas": 0}),
    "more workers than maxReplicas": ("worker.replicas", {"worker.replicas": 3, "worker.maxReplicas": 2}),
    "a custom image without a command": ("worker.command", OWN),
    "a custom image for all roles without a command": ("worker.command", {"common.image": {"repository": "mine"}}),
    "arguments without a command": ("ps.args", {"ps.args": ["--verbose"]}),
    "the CPU image's digest for GPUs": ("image.digest", {"image.digest": "sha256:" + "0" * 64, "worker.gpus": 1}),
    "all-reduce with workers that may join later": (
        "worker.maxReplicas",
        {"train.strategy": "allreduce", "ps.replicas": 0, "worker.maxReplicas": 3},
    ),
    "a custom program in a cluster too large for TF_CONFIG": (
        "worker.replicas",
        {**OWN, "worker.command": ["run"], **TOO_LARGE},
    ),
    "an elastic run that begins outside of its limits": ("run.elastic", {"run.elastic": {"min": 3, "max": 4}}),
    "an elastic run without a supervisor": (
        "run.elastic",
        {"run.elastic": {"min": 1, "max": 4}, "supervisor.enabled": False},
    ),
    "an elastic run with all-reduce": (
        "run.elastic",
        {"run.elastic": {"min": 1, "max": 4}, "train.strategy": "allreduce", "ps.replicas": 0},
    ),
    "an elastic run of an own program that does not state that it is elastic": (
        "run.elastic",
        {"run.elastic": {"min": 1, "max": 4}, **OWN, "worker.command": ["run"]},
    ),
    "an elastic run with too few addresses": (
        "run.elastic.max",
        {"run.elastic": {"min": 1, "max": 4}, "worker.maxReplicas": 3},
    ),
    "MNIST without a volume": ("data.enabled", {"train.dataset": "mnist"}),
    "custom data without a volume": ("data.enabled", {"train.dataset": "npz"}),
    "a Lance dataset without its place": ("data.enabled", {"train.dataset": "lance"}),
    "a training directory with credentials in its address": (
        "trainingDirectory.uri",
        {"trainingDirectory.uri": "s3://key:secret@bucket/run"},
    ),
    "data with credentials in its address": ("data.uri", {"data.uri": "s3://key:secret@bucket/digits.lance"}),
    "a training directory in two places": (
        "trainingDirectory.uri",
        {"trainingDirectory.uri": "s3://bucket/run", "trainingDirectory.existingClaim": "mine"},
    ),
    "NFS without a server": ("trainingDirectory.nfs.server", {"trainingDirectory.nfs.path": "/exports"}),
    "NFS and a claim": (
        "data.existingClaim",
        {"data.nfs.server": "nas", "data.nfs.path": "/exports", "data.existingClaim": "mnist"},
    ),
    "TensorBoard without a training directory": (
        "tensorboard.enabled",
        {"trainingDirectory.enabled": False, "common.image": {"repository": "mine"}, "common.command": ["run"]},
    ),
    "a field of the pod that has a key": (
        "common.podSpec.nodeSelector",
        {"common.podSpec": {"nodeSelector": {"a": "b"}}},
    ),
    "containers in a role's podSpec": ("worker.podSpec.containers", {"worker.podSpec": {"containers": []}}),
    "a security context in podSpec": (
        "worker.podSpec.securityContext",
        {"worker.podSpec": {"securityContext": {}}},
    ),
    "a field of the pod that the chart sets": (
        "supervisor.podSpec.restartPolicy",
        {"supervisor.podSpec.restartPolicy": "Never"},
    ),
    "a rule for exit codes and conditions": (
        "run.failurePolicy.rules[0]",
        {
            "run.failurePolicy.rules": [
                {
                    "action": "Fail",
                    "onExitCodes": {"operator": "In", "values": [1]},
                    "onPodConditions": [{"type": "DisruptionTarget"}],
                }
            ]
        },
    ),
    "the network of the node for a part of the tasks": ("worker.hostNetwork", {"worker.hostNetwork": True}),
    "a gang of which the cluster has no API": ("scheduling.gang", {"scheduling.gang": "workload"}),
    "a queue without a gang": ("scheduling.queue", {"scheduling.queue": "research"}),
    "a gang of Kueue without a queue": ("scheduling.queue", {"scheduling.gang": "kueue"}),
    "a gang of Kueue without a supervisor": (
        "scheduling.gang",
        {"scheduling.gang": "kueue", "scheduling.queue": "research", "supervisor.enabled": False},
    ),
    "the queue that Kueue also gives to the StatefulSets": (
        "scheduling.queue",
        {"scheduling.gang": "kueue", "scheduling.queue": "default"},
    ),
    "a placement without domains": ("scheduling.topologyKey", {"scheduling.placement": "pack"}),
    "domains without a placement": ("scheduling.placement", {"scheduling.topologyKey": "rack"}),
    "tasks that are spread and must share a node": ("scheduling.placement", {"scheduling.placement": "spread"}),
    "a gang in a podSpec and by the chart": (
        "common.podSpec.schedulingGroup",
        {"scheduling.gang": "workload", "common.podSpec": {"schedulingGroup": {"podGroupName": "mine"}}},
    ),
}

APIS = {"a gang in a podSpec and by the chart": ("scheduling.k8s.io/v1beta1/PodGroup",)}
"""The APIs that the cluster of a case has."""

BY_SCHEMA: dict[str, tuple[str, dict[str, Any]]] = {
    "text for a number": ("/worker/replicas", {"worker.replicas": "two"}),
    "a fraction of a worker": ("/worker/replicas", {"worker.replicas": 1.5}),
    "a negative number": ("/ps/replicas", {"ps.replicas": -1}),
    "more tasks than Helm's memory holds": ("/worker/replicas", {"worker.replicas": 2**40}),
    "more addresses than Helm's memory holds": ("/worker/maxReplicas", {"worker.maxReplicas": 2**40}),
    "a grace period of more than 68 years": (
        "/ps/terminationGracePeriodSeconds",
        {"ps.terminationGracePeriodSeconds": 2**31},
    ),
    "a time to live of more than 68 years": ("/run/ttlSecondsAfterFinished", {"run.ttlSecondsAfterFinished": 2**31}),
    "text for a switch": ("/data/enabled", {"data.enabled": "yes please"}),
    "a map for a list": ("/common/env", {"common.env": {"A": "1"}}),
    "an unknown restart policy": ("/ps/restartPolicy", {"ps.restartPolicy": "Sometimes"}),
    "two chiefs": ("/chief/replicas", {"chief.replicas": 2}),
    "two evaluators": ("/evaluator/replicas", {"evaluator.replicas": 2}),
    "two clients": ("/client/replicas", {"client.replicas": 2}),
    "an unknown kind of gang": ("/scheduling/gang", {"scheduling.gang": "slurm"}),
    "an unknown placement": ("/scheduling/placement", {"scheduling.placement": "near"}),
    "a chief's own name": ("/chief/taskType", {"chief.taskType": "leader"}),
    "an unknown key": ("", {"storage": {"size": "1Gi"}}),
    "an unknown key of common": ("/common", {"common.gpus": 1}),
    "an unknown key of a role": ("/ps", {"ps.gpus": 1}),
    "an unknown setting": ("/train", {"train.steps": 5}),
    "a setting that the chart sets itself": ("/train", {"train.data_dir": "/data"}),
    "an unknown key of an image": ("/mlflow/image", {"mlflow.image": {"tagg": "1"}}),
    "a stage with an unknown key": ("/stages/before/0", {"stages.before": [{**STAGE, "comand": ["run"]}]}),
    "a stage without a program": ("/stages/before/0", {"stages.before": [{"name": "prepare"}]}),
    "a stage whose name is not a DNS label": ("/stages/after/0/name", {"stages.after": [{**STAGE, "name": "Infer_2"}]}),
    "a tag of the watch with a space": ("/data/watch/tag", {"data.watch.tag": "a b"}),
    "a tag of the watch that is a version": ("/data/watch/tag", {"data.watch.tag": "3"}),
    "an experiment of two lines": ("/mlflow/experiment", {"mlflow.experiment": "digits\nmnist"}),
    "a registered model with a slash": ("/mlflow/model", {"mlflow.model": "team/digits"}),
    "a training directory on no object store": (
        "/trainingDirectory/uri",
        {"trainingDirectory.uri": "http://store/run"},
    ),
    "a training directory for one pod": (
        "/trainingDirectory/accessModes/0",
        {"trainingDirectory.accessModes": ["ReadWriteOncePod"]},
    ),
    "a relative path": ("/trainingDirectory/path", {"trainingDirectory.path": "runs"}),
    "a relative path of the data": ("/data/path", {"data.path": "mnist"}),
    "logs outside the training directory": ("/trainingDirectory/logs", {"trainingDirectory.logs": "../logs"}),
    "an absolute path of the logs": ("/trainingDirectory/logs", {"trainingDirectory.logs": "/logs"}),
    "an HTTPRoute without a Gateway": (
        "/tensorboard/httpRoute/parentRefs",
        {"tensorboard.httpRoute.enabled": True},
    ),
    "a path prefix without a slash": ("/tensorboard/pathPrefix", {"tensorboard.pathPrefix": "mnist"}),
    "a registry with a scheme": ("/image/registry", {"image.registry": "https://registry.example.com"}),
    "a registry with a slash at its end": ("/worker/image/registry", {"worker.image.registry": "example.com/team/"}),
    "an invalid digest": ("/tensorboard/image/digest", {"tensorboard.image.digest": "sha256:abc"}),
    "a GPU resource without a domain": ("/gpu/resourceName", {"gpu.resourceName": "gpu"}),
    "a time without a unit": ("/metrics/podMonitor/interval", {"metrics.podMonitor.interval": "15"}),
    "an invalid number of pods": (
        "/ps/podDisruptionBudget/maxUnavailable",
        {"ps.podDisruptionBudget.maxUnavailable": "a"},
    ),
    "a queue with a capital": ("/scheduling/queue", {"scheduling.queue": "Research"}),
    "port zero": ("/port", {"port": 0}),
    "a port above 65535": ("/metrics/port", {"metrics.port": 65536}),
    "an unknown data set": ("/train/dataset", {"train.dataset": "cifar"}),
    "zero steps": ("/train/train_steps", {"train.train_steps": 0}),
    "an unknown access mode": ("/data/accessModes/0", {"data.accessModes": ["ReadWriteAll"]}),
    "no access mode": ("/data/accessModes", {"data.accessModes": []}),
    "an invalid pull policy": ("/image/pullPolicy", {"image.pullPolicy": "Sometimes"}),
    "an image without a repository": ("/image/repository", {"image.repository": ""}),
    "a label with a space": ("/commonLabels", {"commonLabels": {"the team": "vision"}}),
    "a number as a label": ("/common/labels/team", {"common.labels": {"team": 1}}),
}


def rules() -> list[str]:
    """The messages of templates/_checks.tpl, as patterns of Helm's error."""
    source = (CHART / "templates" / "_checks.tpl").read_text()
    sentences = [found.replace('\\"', '"') for found in re.findall(r'fail (?:\(printf )?"((?:[^"\\]|\\.)*)"', source)]
    assert len(sentences) == source.count("- fail ")
    return [re.sub("%[sdq]", ".*", re.escape(sentence)) for sentence in sentences]


@pytest.mark.parametrize("case", BY_RULE)
def test_a_rule_refuses(case: str) -> None:
    key, values = BY_RULE[case]
    error = refusal(values, apis=APIS.get(case, ()))
    assert f": {key}: " in error
    assert "<nil>" not in error
    assert [rule for rule in rules() if re.search(rule, error)], "no rule of _checks.tpl has this message"


def test_every_rule_has_a_case() -> None:
    errors = "\n".join(refusal(values, apis=APIS.get(case, ())) for case, (_, values) in BY_RULE.items())
    assert [rule for rule in rules() if not re.search(rule, errors)] == []


@pytest.mark.parametrize("case", BY_SCHEMA)
def test_the_schema_refuses(case: str) -> None:
    key, values = BY_SCHEMA[case]
    error = refusal(values)
    assert "don't meet the specifications of the schema" in error
    assert f"at '{key}" in error


def test_a_volume_may_have_a_name_that_the_chart_does_not_use_in_that_pod() -> None:
    volumes = [{"name": "data", "emptyDir": {}}]
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "task", "mountPath": "/elsewhere"}]
    pod = render({"worker.extraVolumes": volumes, "worker.extraVolumeMounts": mounts}).pods()["worker"]["spec"]
    assert volumes[0] in pod["volumes"]


def test_a_release_name_that_is_too_long_is_refused() -> None:
    assert f'fullnameOverride: "{"m" * 41}" (default: the release\'s name) is not a valid prefix' in refusal(
        {}, release="m" * 41
    )


def test_the_longest_allowed_name_fits_into_the_limits_of_kubernetes() -> None:
    manifests = render(ALL_ROLES, release="m" * 40)
    longest = max(len(item["metadata"]["name"]) for item in manifests.of("StatefulSet"))
    # A label of a StatefulSet's pods contains its name and a hash. A label has at most 63 characters.
    assert longest + len("-0123456789") <= 63
    assert max(len(item["metadata"]["name"]) for item in manifests) <= 63


def test_all_reduce_and_custom_programs_may_run_without_parameter_servers() -> None:
    allreduce = render({"ps.replicas": 0, "train.strategy": "allreduce"})
    assert [item["metadata"]["name"] for item in allreduce.of("StatefulSet")] == ["mnist-worker"]
    own = render({"ps.replicas": 0, "common.image": {"repository": "mine"}, "common.command": ["run"]})
    assert [item["metadata"]["name"] for item in own.of("StatefulSet")] == ["mnist-worker"]


def test_a_chief_may_train_without_workers() -> None:
    alone = render({"worker.replicas": 0, "chief.replicas": 1})
    assert [item["metadata"]["name"] for item in alone.of("StatefulSet")] == ["mnist-chief", "mnist-ps"]


def test_all_tasks_may_use_the_network_of_their_nodes_and_without_policy_a_part_of_them() -> None:
    render({"common.hostNetwork": True})
    render({"worker.hostNetwork": True, "networkPolicy.enabled": False})
    render({"evaluator.hostNetwork": True})


def test_a_parent_chart_may_set_global_values() -> None:
    render({"global.imageRegistry": "registry.example.com"})
