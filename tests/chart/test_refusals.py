"""The schema or a rule of templates/_checks*.tpl refuses invalid values, with an error that names the key."""

import re
from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, CHART, EVERY_VOLUME_AND_VARIABLE, TOO_LARGE, refusal, render

OWN = {"worker.image": {"repository": "mine"}}

STAGE = {"name": "infer", "command": ["run"]}

WATCH: dict[str, Any] = {"data.watch.enabled": True, "train.dataset": "lance", "data.enabled": True}

PUBLISHED = {"mlflow.trackingUri": "http://mlflow:5000"}

BY_RULE: dict[str, tuple[str, dict[str, Any]]] = {
    "stages without a supervisor": ("stages", {"stages.after": [STAGE], "supervisor.enabled": False}),
    "two stages of one name": ("stages.after[0].name", {"stages.before": [STAGE], "stages.after": [STAGE]}),
    "a stage whose name is not a DNS label": ("stages.after[0].name", {"stages.after": [{**STAGE, "name": "Infer_2"}]}),
    "a stage whose Job has a name that is too long": (
        "stages.after[0].name",
        {"stages.after": [{**STAGE, "name": "i" * 50}]},
    ),
    "a stage without a program": ("stages.before[0].command", {"stages.before": [{"name": "prepare"}]}),
    "a stage with an unknown key": ("stages.before[0].comand", {"stages.before": [{**STAGE, "comand": ["run"]}]}),
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
    "a stage that requests more than its limit": (
        "stages.after[0].resources.requests.cpu",
        {"stages.after": [{**STAGE, "resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}]},
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
    "a version beside a watch": ("data.watch.enabled", {**WATCH, "train.data_version": 3}),
    "a version with a dash in the arguments beside a watch": (
        "extraArgs",
        {**WATCH, "extraArgs": ["--data-version", "3"]},
    ),
    "a directory in the arguments beside a watch": ("extraArgs", {**WATCH, "extraArgs": ["--train_dir=/training"]}),
    "a stage with a variable of the version beside a watch": (
        "stages.before[0].env",
        {**WATCH, "stages.before": [{**STAGE, "env": [{"name": "DATA_VERSION", "value": "3"}]}]},
    ),
    "a volume of the data in the supervisor beside a watch": (
        "supervisor.extraVolumes",
        {**WATCH, "supervisor.extraVolumes": [{"name": "data", "emptyDir": {}}]},
    ),
    "a variable with the version beside a watch": (
        "common.env",
        {**WATCH, "common.env": [{"name": "DATA_VERSION", "value": "3"}]},
    ),
    "a watch for a client": ("data.watch.enabled", {**WATCH, "client.replicas": 1, "client.command": ["ask"]}),
    "a tag of the watch with a space": ("data.watch.tag", {"data.watch.tag": "a b"}),
    "a tag of the watch that is a version": ("data.watch.tag", {"data.watch.tag": "3"}),
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
    "publishing with more memory than the limit": (
        "mlflow.resources.requests.memory",
        {**PUBLISHED, "mlflow.resources.limits.memory": "256Mi"},
    ),
    "an address of MLflow with a space": ("mlflow.trackingUri", {"mlflow.trackingUri": "http://mlflow 5000"}),
    "an address of MLflow whose port is a word": ("mlflow.trackingUri", {"mlflow.trackingUri": "http://mlflow:port"}),
    "an address of MLflow with a query": ("mlflow.trackingUri", {"mlflow.trackingUri": "http://mlflow/?token=secret"}),
    "an address of MLflow without a host": ("mlflow.trackingUri", {"mlflow.trackingUri": "http:///mlflow"}),
    "an experiment of two lines": ("mlflow.experiment", {"mlflow.experiment": "digits\nmnist"}),
    "a registered model with a slash": ("mlflow.model", {"mlflow.model": "team/digits"}),
    "a fullname with a dot": ("fullnameOverride", {"fullnameOverride": "mnist.v2"}),
    "a fullname that begins with a digit": ("fullnameOverride", {"fullnameOverride": "2-mnist"}),
    "a fullname of 41 characters": ("fullnameOverride", {"fullnameOverride": "m" * 41}),
    "no name server": ("worker.dnsPolicy", {"worker.dnsPolicy": "None"}),
    "a setting that the chart sets itself": ("train.data_dir", {"train.data_dir": "/data"}),
    "an unknown key": ("storage", {"storage": {"size": "1Gi"}}),
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
    "the packaged trainer with strategy ps without parameter servers": ("ps.replicas", {"ps.replicas": 0}),
    "a single process that may get more workers": (
        "worker.maxReplicas",
        {"ps.replicas": 0, "worker.replicas": 1, "worker.maxReplicas": 2},
    ),
    "parameter servers with all-reduce": ("ps.replicas", {"train.strategy": "allreduce"}),
    "all-reduce with workers that may join later": (
        "worker.maxReplicas",
        {"train.strategy": "allreduce", "ps.replicas": 0, "worker.maxReplicas": 3},
    ),
    "a custom program in a cluster too large for TF_CONFIG": (
        "worker.replicas",
        {**OWN, "worker.command": ["run"], **TOO_LARGE},
    ),
    "more gradients than the listed replicas compute": (
        "train.replicas_to_aggregate",
        {"train.sync_replicas": True, "train.replicas_to_aggregate": 5},
    ),
    "an elastic run whose minimum is above its maximum": (
        "run.elastic.min",
        {"run.elastic": {"min": 3, "max": 2}},
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
    "capitals in the name of the training directory's claim": (
        "trainingDirectory.existingClaim",
        {"trainingDirectory.existingClaim": "Runs"},
    ),
    "capitals in the name of the data's claim": ("data.existingClaim", {"data.existingClaim": "MNIST"}),
    "a training directory with an address that no object store has": (
        "trainingDirectory.uri",
        {"trainingDirectory.uri": "http://store/run"},
    ),
    "a training directory with credentials in its address": (
        "trainingDirectory.uri",
        {"trainingDirectory.uri": "s3://key:secret@bucket/run"},
    ),
    "data with credentials in its address": ("data.uri", {"data.uri": "s3://key:secret@bucket/digits.lance"}),
    "a training directory in two places": (
        "trainingDirectory.uri",
        {"trainingDirectory.uri": "s3://bucket/run", "trainingDirectory.existingClaim": "mine"},
    ),
    "an evaluator without a volume": (
        "evaluator.replicas",
        {"trainingDirectory.uri": "s3://bucket/run", "evaluator.replicas": 1},
    ),
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
    "a stage with an unknown key of its image": (
        "stages.after[0].image.repositry",
        {"stages.after": [{"name": "infer", "args": ["models"], "image": {"repositry": "mine"}}]},
    ),
    "an HTTPRoute without a Gateway": ("tensorboard.httpRoute.parentRefs", {"tensorboard.httpRoute.enabled": True}),
    "a field of the pod that has a key": (
        "common.podSpec.nodeSelector",
        {"common.podSpec": {"nodeSelector": {"a": "b"}}},
    ),
    "containers in a role's podSpec": ("worker.podSpec.containers", {"worker.podSpec": {"containers": []}}),
    "a security context in podSpec": (
        "tensorboard.podSpec.securityContext",
        {"tensorboard.podSpec": {"securityContext": {}}},
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
    "a rule without effect": (
        "run.failurePolicy.rules[0].action",
        {"run.failurePolicy.rules": [{"action": "Restart", "onPodConditions": [{"type": "DisruptionTarget"}]}]},
    ),
    "a volume with the name of one of the chart": (
        "worker.extraVolumes",
        {"worker.extraVolumes": [{"name": "task", "emptyDir": {}}]},
    ),
    "a mount where the chart has one": (
        "common.extraVolumeMounts",
        {"common.extraVolumeMounts": [{"name": "mine", "mountPath": "/etc/distributed-tensorflow/"}]},
    ),
    "a variable of the chart's wrapper": ("common.env", {"common.env": [{"name": "TASK_DIR", "value": "/mine"}]}),
    "a path prefix without a slash": ("tensorboard.pathPrefix", {"tensorboard.pathPrefix": "mnist"}),
    "requests above limits": ("worker.resources.requests.memory", {"worker.resources.limits.memory": "256Mi"}),
    "requests above the limits of common": (
        "ps.resources.requests.cpu",
        {"common.resources.limits.cpu": 1.5, "ps.resources.requests.cpu": "1600m"},
    ),
    "TensorBoard's requests above its limits": (
        "tensorboard.resources.requests.memory",
        {"tensorboard.resources.limits.memory": "200M"},
    ),
    "more GPUs requested than `gpus`": (
        "worker.resources.requests.nvidia.com/gpu",
        {"worker.gpus": 1, "worker.resources": {"requests": {"nvidia.com/gpu": 2}}},
    ),
    "an unknown unit": (
        "chief.resources.limits.memory",
        {"chief": {"replicas": 1, "resources": {"limits": {"memory": "32MB"}}}},
    ),
    "text for a quantity": ("supervisor.resources.requests.cpu", {"supervisor.resources.requests.cpu": "abc"}),
    "text for the size of /dev/shm": ("worker.sharedMemorySize", {"worker.sharedMemorySize": "1GB"}),
    "a size without a number": ("trainingDirectory.size", {"trainingDirectory.size": "much"}),
    "a size with a space": ("data.size", {"data.size": "5 Gi"}),
    "a registry with a scheme": ("image.registry", {"image.registry": "https://registry.example.com"}),
    "a registry with a slash at its end": (
        "worker.image.registry",
        {"worker.image.registry": "registry.example.com/team/"},
    ),
    "an invalid digest": ("image.digest", {"image.digest": "sha256:abc"}),
    "an invalid digest of an image of one's own": ("tensorboard.image.digest", {"tensorboard.image.digest": "abc"}),
    "a GPU resource without a domain": ("gpu.resourceName", {"gpu.resourceName": "gpu"}),
    "a priority class with a space": ("worker.priorityClassName", {"worker.priorityClassName": "high priority"}),
    "a service account with a name of 254 letters": (
        "common.serviceAccount.name",
        {"common.serviceAccount.name": "x" * 254},
    ),
    "a service account with a capital": ("supervisor.serviceAccount.name", {"supervisor.serviceAccount.name": "Runs"}),
    "a label with a space": ("commonLabels", {"commonLabels": {"the team": "vision"}}),
    "a label whose value has a space": ("ps.labels", {"ps.labels": {"team": "computer vision"}}),
    "a node's label without letters": ("common.nodeSelector", {"common.nodeSelector": {"-": "a"}}),
    "an annotation with a space": (
        "tensorboard.service.annotations",
        {"tensorboard.service.annotations": {"a b": "c"}},
    ),
    "a host with an underscore": ("tensorboard.ingress.hosts[0]", {"tensorboard.ingress.hosts": ["my_host"]}),
    "a folder outside of the volume": ("data.subPath", {"data.subPath": "../mnist"}),
    "a port name with a capital": ("portName", {"portName": "gRPC"}),
    "a time without a unit": ("metrics.podMonitor.interval", {"metrics.podMonitor.interval": "15"}),
    "a relative path": ("trainingDirectory.path", {"trainingDirectory.path": "runs"}),
    "logs outside the training directory": ("trainingDirectory.logs", {"trainingDirectory.logs": "../logs"}),
    "an absolute path of the logs": ("trainingDirectory.logs", {"trainingDirectory.logs": "/logs"}),
    "a relative path of the data": ("data.path", {"data.path": "mnist"}),
    "an invalid number of pods": (
        "ps.podDisruptionBudget.maxUnavailable",
        {"ps.podDisruptionBudget.maxUnavailable": "a"},
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
    "a queue with a capital": ("scheduling.queue", {"scheduling.gang": "kueue", "scheduling.queue": "Research"}),
    "a placement without domains": ("scheduling.topologyKey", {"scheduling.placement": "pack"}),
    "domains without a placement": ("scheduling.placement", {"scheduling.topologyKey": "rack"}),
    "a domain with a space": (
        "scheduling.topologyKey",
        {"scheduling.placement": "pack", "scheduling.topologyKey": "my rack"},
    ),
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
    "port zero": ("/port", {"port": 0}),
    "a port above 65535": ("/metrics/port", {"metrics.port": 65536}),
    "an unknown data set": ("/train/dataset", {"train.dataset": "cifar"}),
    "zero steps": ("/train/train_steps", {"train.train_steps": 0}),
    "an unknown access mode": ("/data/accessModes/0", {"data.accessModes": ["ReadWriteAll"]}),
    "no access mode": ("/data/accessModes", {"data.accessModes": []}),
    "an invalid pull policy": ("/image/pullPolicy", {"image.pullPolicy": "Sometimes"}),
    "an image without a repository": ("/image/repository", {"image.repository": ""}),
    "a number as a label": ("/common/labels/team", {"common.labels": {"team": 1}}),
}


def rules() -> list[str]:
    """The messages of templates/_checks*.tpl, as patterns of Helm's error."""
    source = "".join(file.read_text() for file in sorted((CHART / "templates").glob("_checks*.tpl")))
    sentences = [found.replace('\\"', '"') for found in re.findall(r'fail (?:\(printf )?"((?:[^"\\]|\\.)*)"', source)]
    assert len(sentences) == source.count("- fail ")
    return [re.sub("%[sdq]", ".*", re.escape(sentence)) for sentence in sentences]


@pytest.mark.parametrize("case", BY_RULE)
def test_a_rule_refuses(case: str) -> None:
    key, values = BY_RULE[case]
    error = refusal(values, apis=APIS.get(case, ()))
    assert f": {key}: " in error
    assert "<nil>" not in error
    assert [rule for rule in rules() if re.search(rule, error)], "no rule of _checks*.tpl has this message"


def test_every_rule_has_a_case() -> None:
    errors = "\n".join(refusal(values, apis=APIS.get(case, ())) for case, (_, values) in BY_RULE.items())
    assert [rule for rule in rules() if not re.search(rule, errors)] == []


@pytest.mark.parametrize("case", BY_SCHEMA)
def test_the_schema_refuses(case: str) -> None:
    key, values = BY_SCHEMA[case]
    error = refusal(values)
    assert "don't meet the specifications of the schema" in error
    assert f"'{key}'" in error


@pytest.mark.parametrize("component", ["worker", "client", "supervisor", "tensorboard"])
def test_what_the_chart_makes_in_a_pod_is_refused_in_the_values(component: str) -> None:
    spec = render(EVERY_VOLUME_AND_VARIABLE).pods()[component]["spec"]
    container = spec["containers"][0]
    for name in (item["name"] for item in spec["volumes"]):
        values = {f"{component}.extraVolumes": [{"name": name, "emptyDir": {}}]}
        assert f": {component}.extraVolumes: " in refusal({**EVERY_VOLUME_AND_VARIABLE, **values}), name
    for path in (item["mountPath"] for item in container["volumeMounts"]):
        values = {f"{component}.extraVolumeMounts": [{"name": "mine", "mountPath": path}]}
        assert f": {component}.extraVolumeMounts: " in refusal({**EVERY_VOLUME_AND_VARIABLE, **values}), path
    for name in (item["name"] for item in container["env"] if item["name"].startswith("TASK_")):
        values = {f"{component}.env": [{"name": name, "value": "mine"}]}
        assert f": {component}.env: " in refusal({**EVERY_VOLUME_AND_VARIABLE, **values}), name


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


@pytest.mark.parametrize(
    ("requested", "limit"),
    [
        ("500m", 0.5),
        ("1", "1000m"),
        ("0.1", "100m"),
        ("1024Ki", "1Mi"),
        ("1G", "1Gi"),
        ("2e3", "2k"),
        ("1E", "2E18"),
        (".5", "1."),
    ],
)
def test_quantities_with_different_units_are_compared(requested: Any, limit: Any) -> None:
    values = {
        "worker.resources": {"requests": {"cpu": requested, "memory": 1}, "limits": {"cpu": limit, "example.com/a": 1}}
    }
    resources = render(values).get("StatefulSet/worker spec template spec containers worker resources")
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == (requested, limit)


def test_all_tasks_may_use_the_network_of_their_nodes_and_without_policy_a_part_of_them() -> None:
    render({"common.hostNetwork": True})
    render({"worker.hostNetwork": True, "networkPolicy.enabled": False})
    render({"evaluator.hostNetwork": True})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("workers", "did you mean worker?"),
        ("worker.replica", "did you mean worker.replicas?"),
        ("worker.maxreplicas", "did you mean worker.maxReplicas?"),
        ("trian", "did you mean train?"),
        ("train.batchsize", "did you mean train.batch_size?"),
        ("batch_size", "did you mean train.batch_size?"),
        ("replicas", "did you mean worker.replicas?"),
        ("common.replicas", "did you mean worker.replicas?"),
        ("common.gpus", "did you mean worker.gpus?"),
        ("ps.gpus", "did you mean worker.gpus?"),
        ("evaluator.maxReplicas", "did you mean worker.maxReplicas?"),
        ("worker.taskType", "did you mean chief.taskType?"),
        ("tensorboard.ingress.host", "did you mean tensorboard.ingress.hosts?"),
        ("ps.image.x", "values.yaml has all keys"),
        ("train.steps", "did you mean train.train_steps?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_is_meant(key: str, meant: str) -> None:
    assert f"{key}: the chart has no such key; {meant}" in refusal({key: "master"})


def test_a_parent_chart_may_set_global_values() -> None:
    render({"global.imageRegistry": "registry.example.com"})


def test_no_error_of_the_schema_shows_a_regular_expression() -> None:
    assert "pattern" not in (CHART / "values.schema.json").read_text()
