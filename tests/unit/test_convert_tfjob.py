"""TFJobs of many shapes to values of the chart; what helm makes of them is in tests/chart/test_convert_tfjob.py."""

import copy
import json
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fuzzing import merge_bomb, yaml_bomb
from trainer.errors import ConfigurationError
from trainer.tfjob import convert as convert_tfjob
from trainer.tfjob.parse import parse_manifest
from trainer.tfjob.program import parse_entrypoints

Run = Callable[..., subprocess.CompletedProcess[str]]
Map = dict[str, Any]

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
SPECS = "spec.tfReplicaSpecs"
WORKER = f"{SPECS}.Worker"
POD = f"{WORKER}.template.spec"
TASK = f"{POD}.containers[tensorflow]"


def replica(container: Map | None = None, pod: Map | None = None, metadata: Map | None = None, **own: Any) -> Map:
    """A replica spec as people write it, with these fields on top."""
    task = {"name": "tensorflow", "image": "example.com/team/mnist:1.0", "command": ["python", "train.py"]}
    spec = {"containers": [task | (container or {})]} | (pod or {})
    return {"template": {"metadata": metadata or {}, "spec": spec}, **own}


def tfjob(spec: Map | None = None, metadata: Map | None = None, **replicas: Map) -> Map:
    """A TFJob of these replicas: one Worker and one PS where none is given."""
    types = replicas or {"Worker": replica(), "PS": replica()}
    own = {"metadata": {"name": "mnist"} | (metadata or {}), "spec": {"tfReplicaSpecs": types} | (spec or {})}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", **own}


def convert(job: Map, *entrypoints: str) -> convert_tfjob.Conversion:
    before = copy.deepcopy(job)
    conversion = convert_tfjob.convert(job, parse_entrypoints(entrypoints))
    assert job == before, "what was given is left alone"
    return conversion


def worker(**changes: Any) -> Map:
    """The worker's values for a replica with these changes."""
    task = dict(convert(tfjob(Worker=replica(**changes), PS=replica())).values["worker"])
    assert task["labels"].pop("training.kubeflow.org/replica-type") == "worker"
    return task


def notes(job: Map, *prefixes: str) -> list[str]:
    """The notes on these paths."""
    return [note for note in convert(job).notes if note.startswith(prefixes or ("",))]


def other_notes(job: Map) -> list[str]:
    """The notes but for those on defaults, which most jobs have."""
    usual = (f"{SPECS}: a namespace that enforces", "spec.runPolicy.cleanPodPolicy: None by default")
    return [note for note in convert(job).notes if not note.startswith(usual)]


def refusal(job: Map, *entrypoints: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        convert(job, *entrypoints)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_plain_job_says_only_what_the_chart_does_otherwise() -> None:
    conversion = convert(tfjob())
    image = {"registry": "example.com", "repository": "team/mnist", "tag": "1.0"}
    role = {"replicas": 1, "image": image, "command": ["python", "train.py"], "restartPolicy": "Never"}
    assert conversion.values == {
        "run": {"backoffLimit": None, "startTimeoutSeconds": None, "cleanPodPolicy": "None"},
        "supervisor": {"enabled": True},
        "portName": "tfjob-port",
        "trainingDirectory": {"enabled": False},
        "tensorboard": {"enabled": False},
        "common": {
            "labels": {
                "training.kubeflow.org/job-name": "mnist",
                "training.kubeflow.org/operator-name": "tfjob-controller",
            },
            "resources": None,
            "podSecurityContext": None,
            "securityContext": None,
            "terminationGracePeriodSeconds": 30,
        },
        "worker": {**role, "labels": {"training.kubeflow.org/replica-type": "worker"}},
        "ps": {**role, "labels": {"training.kubeflow.org/replica-type": "ps"}},
    }
    assert (conversion.name, conversion.namespace) == ("mnist", "")
    assert conversion.notes == [
        "spec.runPolicy.cleanPodPolicy: None by default, as in TFJob; an ended task is parked in its pod and keeps its "
        "resources, GPUs too, until `helm uninstall`; run.cleanPodPolicy: All frees them at the end of the run.",
        f'{SPECS}: a namespace that enforces Pod Security "restricted" refuses the pods of Worker, PS (runAsNonRoot, '
        "seccompProfile, allowPrivilegeEscalation, capabilities).",
    ]


def test_a_role_that_the_job_lacks_has_no_task_and_replicas_are_1_unless_stated() -> None:
    values = convert(tfjob(Worker=replica(replicas=4), Evaluator=replica())).values
    assert values["ps"] == {"replicas": 0}
    assert values["worker"]["replicas"] == 4
    assert values["evaluator"]["replicas"] == 1
    assert "chief" not in values


@pytest.mark.parametrize(("key", "kind"), [("Chief", None), ("Master", "master"), ("master", "master")])
def test_a_master_is_a_chief_whose_programs_are_told_master(key: str, kind: str | None) -> None:
    values = convert(tfjob(**{key: replica(), "PS": replica()})).values
    assert values["chief"].get("taskType") == kind
    assert values["chief"]["replicas"] == 1
    assert values["worker"] == {"replicas": 0}


def test_replica_types_are_known_in_any_case() -> None:
    values = convert(tfjob(ps=replica(), WORKER=replica(), evaluator=replica())).values
    assert list(values)[-3:] == ["worker", "ps", "evaluator"]


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("mnist", {"repository": "mnist", "pullPolicy": "Always"}),
        ("mnist:latest", {"repository": "mnist", "tag": "latest", "pullPolicy": "Always"}),
        ("tensorflow/tensorflow:2.16.1", {"repository": "tensorflow/tensorflow", "tag": "2.16.1"}),
        ("gcr.io/p/a/b:1", {"registry": "gcr.io", "repository": "p/a/b", "tag": "1"}),
        ("localhost/a:1", {"registry": "localhost", "repository": "a", "tag": "1"}),
        ("reg:5000/a", {"registry": "reg:5000", "repository": "a", "pullPolicy": "Always"}),
        (f"reg:5000/a@{DIGEST}", {"registry": "reg:5000", "repository": "a", "digest": DIGEST}),
        (f"a/b:1@{DIGEST}", {"repository": "a/b", "tag": "1", "digest": DIGEST}),
        ("distributed-tensorflow/trainer:0.1.0", {"tag": "0.1.0"}),
        ("distributed-tensorflow/trainer", {"tag": "latest", "pullPolicy": "Always"}),
        (f"distributed-tensorflow/trainer@{DIGEST}", {"digest": DIGEST}),
        (
            "reg:5000/distributed-tensorflow/trainer:1",
            {"registry": "reg:5000", "repository": "distributed-tensorflow/trainer", "tag": "1"},
        ),
    ],
)
def test_an_image_is_split_as_docker_reads_it(image: str, parts: Map) -> None:
    assert worker(container={"image": image})["image"] == parts


@pytest.mark.parametrize(("policy", "stated"), [("Always", "Always"), ("Never", "Never"), ("IfNotPresent", None)])
def test_a_stated_pull_policy_is_kept(policy: str, stated: str | None) -> None:
    image = worker(container={"image": "a:latest", "imagePullPolicy": policy})["image"]
    assert image.get("pullPolicy") == stated


def test_fields_of_a_pod_and_its_container_are_carried_over() -> None:
    pod: Map = {
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "high",
        "schedulerName": "slow",
        "runtimeClassName": "nvidia",
        "hostNetwork": True,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.1"]},
        "hostAliases": [{"ip": "192.0.2.2", "hostnames": ["store"]}],
        "terminationGracePeriodSeconds": 0,
        "initContainers": [{"name": "fetch", "image": "busybox"}],
    }
    container: Map = {
        "args": ["--epochs=3"],
        "env": [{"name": "A", "value": "1"}],
        "envFrom": [{"secretRef": {"name": "keys"}}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
        "livenessProbe": {"httpGet": {"port": 80}},
        "readinessProbe": {"httpGet": {"port": 81}},
        "startupProbe": {"httpGet": {"port": 82}},
        "lifecycle": {"preStop": {"exec": {"command": ["save"]}}},
    }
    others: Map = {
        "volumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
        "securityContext": {"fsGroup": 100},
        "serviceAccountName": "robot",
        "automountServiceAccountToken": False,
    }
    mounts = [{"name": "scripts", "mountPath": "/scripts"}]
    security = {"runAsUser": 1000}
    metadata = {"labels": {"team": "vision"}, "annotations": {"a/b": "c"}}
    changed = {**container, "volumeMounts": mounts, "securityContext": security}
    job = tfjob(Worker=replica(changed, {**pod, **others}, metadata, restartPolicy="ExitCode"), PS=replica())
    got = convert(job).values["worker"]
    expected = {
        **pod,
        **container,
        **metadata,
        "labels": {"training.kubeflow.org/replica-type": "worker", "team": "vision"},
        "extraVolumes": others["volumes"],
        "extraVolumeMounts": mounts,
        "podSecurityContext": {"fsGroup": 100},
        "securityContext": security,
        "serviceAccount": {"name": "robot"},
    }
    assert {key: got[key] for key in expected} == expected
    assert set(got) - set(expected) == {"replicas", "image", "command"}, "ExitCode is the chart's default"
    assert other_notes(job) == []


def test_containers_beside_the_one_named_tensorflow_are_sidecars() -> None:
    job = tfjob(Worker=replica(), PS=replica())
    log = {"name": "log", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"].insert(0, log)
    assert convert(job).values["worker"]["sidecars"] == [log]
    log["name"] = "worker"
    assert refusal(job) == (
        f"{POD}: a container besides tensorflow is named worker, as the chart names its own; rename it."
    )


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_restart_policy_is_kept(policy: str) -> None:
    assert worker(restartPolicy=policy)["restartPolicy"] == policy


def test_always_is_kept_but_for_the_task_with_which_the_run_ends() -> None:
    always = replica(restartPolicy="Always")
    job = tfjob(Worker=always, PS=always)
    values = convert(job).values
    assert (values["worker"]["restartPolicy"], values["ps"]["restartPolicy"]) == ("OnFailure", "Always")
    (note,) = notes(job, "spec.tfReplicaSpecs.Worker: its restartPolicy Always")
    assert "would never end" in note


def test_a_restart_policy_of_the_template_is_ignored_as_tfjob_ignores_it() -> None:
    job = tfjob(Worker=replica(pod={"restartPolicy": "OnFailure"}), PS=replica())
    assert convert(job).values["worker"]["restartPolicy"] == "Never"
    (note,) = notes(job, f"{POD}.restartPolicy: ")
    assert "TFJob ignores it too" in note


@pytest.mark.parametrize("seconds", [None, 30])
def test_kubernetes_own_grace_period_is_stated_once(seconds: int | None) -> None:
    assert "terminationGracePeriodSeconds" not in worker(pod={"terminationGracePeriodSeconds": seconds})


def test_a_working_directory_with_spaces_is_entered_and_the_command_runs_there(tmp_path: Path) -> None:
    folder = tmp_path / "my 'app'"
    folder.mkdir()
    container = {"workingDir": str(folder), "command": ["sh", "-c", 'pwd; echo "$0 $1"']}
    task = worker(container={**container, "args": ["a b", "c"]})
    done = subprocess.run([*task["command"], *task["args"]], capture_output=True, text=True, check=True)
    assert done.stdout == f"{folder}\na b c\n"


@pytest.mark.parametrize(
    ("limits", "gpus", "rest", "name"),
    [
        ({"nvidia.com/gpu": 2, "cpu": "1"}, 2, {"cpu": "1"}, None),
        ({"nvidia.com/gpu": "2"}, 2, None, None),
        ({"amd.com/gpu": 1}, 1, None, "amd.com/gpu"),
        ({"nvidia.com/mig-1g.5gb": 1}, 1, None, "nvidia.com/mig-1g.5gb"),
        ({"gpu.intel.com/i915": 1}, 1, None, "gpu.intel.com/i915"),
        ({"nvidia.com/gpu": 0}, None, None, None),
        ({"example.com/fpga": 1}, None, {"example.com/fpga": 1}, None),
    ],
)
def test_gpus_are_counted_and_their_resource_named(limits: Map, gpus: int | None, rest: Map | None, name: str) -> None:
    requests = {key: value for key, value in limits.items() if key != "cpu"}
    container = {"resources": {"limits": limits, "requests": requests}}
    values = convert(tfjob(Worker=replica(container), PS=replica())).values
    task = values["worker"]
    assert task.get("gpus") == gpus
    assert task.get("resources", {}).get("limits") == rest
    assert values.get("gpu", {}).get("resourceName") == name
    if gpus:
        assert "requests" not in task.get("resources", {})


def test_one_kind_of_gpu_is_counted_and_others_stay_limits() -> None:
    def with_limits(limits: Map) -> Map:
        return replica({"resources": {"limits": limits}})

    chief, other = with_limits({"amd.com/gpu": 1}), with_limits({"nvidia.com/gpu": 1})
    values = convert(tfjob(Chief=chief, Worker=other, PS=other)).values
    assert "gpu" not in values
    assert (values["worker"]["gpus"], "resources" in values["worker"]) == (1, False)
    assert values["chief"]["resources"] == {"limits": {"amd.com/gpu": 1}}
    assert values["ps"]["resources"] == {"limits": {"nvidia.com/gpu": 1}}, "the chart refuses ps.gpus"
    assert "gpus" not in values["ps"]


@pytest.mark.parametrize("place", ["runPolicy", "spec"])
def test_the_run_policy_is_carried_over_from_both_its_places(place: str) -> None:
    policy = {
        "backoffLimit": 3,
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": 0,
        "cleanPodPolicy": "Running",
        "suspend": True,
    }
    job = tfjob({"runPolicy": policy} if place == "runPolicy" else policy)
    assert convert(job).values["run"] == {**policy, "startTimeoutSeconds": None}
    assert [note for note in other_notes(job) if "cleanPodPolicy: carried over; " not in note] == []


def test_what_the_chart_does_by_default_is_not_said() -> None:
    policy = {"backoffLimit": 6, "cleanPodPolicy": "All", "suspend": False}
    assert convert(tfjob({"runPolicy": policy, "successPolicy": ""})).values["run"] == {"startTimeoutSeconds": None}


def test_a_job_that_waits_for_nodes_does_not_fail() -> None:
    run = convert(tfjob()).values["run"]
    assert (run["startTimeoutSeconds"], "startTimeoutSeconds" in run) == (None, True)
    assert "\n  startTimeoutSeconds: null\n" in convert_tfjob.to_yaml(convert(tfjob()))


@pytest.mark.parametrize(
    ("spec", "policy", "path"),
    [
        ({"runPolicy": {"cleanPodPolicy": "Running"}}, "Running", "spec.runPolicy.cleanPodPolicy: carried over; "),
        ({"runPolicy": {"cleanPodPolicy": "None"}}, "None", "spec.runPolicy.cleanPodPolicy: carried over; "),
        ({"cleanPodPolicy": "None"}, "None", "spec.cleanPodPolicy: carried over; "),
        ({}, "None", "spec.runPolicy.cleanPodPolicy: None by default, as in TFJob; "),
    ],
)
def test_pods_that_are_kept_are_said_to_keep_their_gpus(spec: Map, policy: str, path: str) -> None:
    assert convert(tfjob(spec)).values["run"]["cleanPodPolicy"] == policy
    (note,) = notes(tfjob(spec), path)
    assert "keeps its resources, GPUs too, until `helm uninstall`" in note
    assert notes(tfjob({"runPolicy": {"cleanPodPolicy": "All"}}), "spec.runPolicy.cleanPodPolicy") == []


def test_all_workers_count_for_success_unless_there_is_a_chief() -> None:
    policy = {"successPolicy": "AllWorkers"}
    assert convert(tfjob(policy)).values["run"]["successPolicy"] == "AllWorkers"
    led = tfjob(policy, Chief=replica(), Worker=replica(), PS=replica())
    assert "successPolicy" not in convert(led).values["run"]
    assert len(notes(led, "spec.successPolicy: ")) == 1


def with_port(number: int, **pod: Any) -> Map:
    return replica({"ports": [{"name": "tfjob-port", "containerPort": number, "protocol": "TCP"}]}, pod)


def test_the_port_between_tasks_is_the_leaders() -> None:
    job = tfjob(Chief=with_port(3333), Worker=with_port(3333), PS=with_port(4444))
    assert (convert(job).values["port"], convert(job).values["portName"]) == (3333, "tfjob-port")
    (note,) = [note for note in convert(job).notes if "port" in note]
    assert note == "spec.tfReplicaSpecs.PS: its port 4444 is not carried over; all tasks have chief's, 3333."


def test_a_port_that_the_job_does_not_state_is_not_mentioned() -> None:
    job = tfjob(Worker=with_port(3333), PS=replica())
    assert convert(job).values["port"] == 3333
    assert [note for note in convert(job).notes if "port" in note] == []


def test_roles_that_shared_a_node_with_host_network_are_said_to_need_two() -> None:
    job = tfjob(Worker=with_port(3333, hostNetwork=True), PS=replica(pod={"hostNetwork": True}))
    (note,) = notes(job, f"{SPECS}: hostNetwork")
    assert "a node runs only one of them; with the TFJob's ports (Worker 3333, PS 2222), roles can share a node" in note
    for other in (with_port(3333, hostNetwork=True), replica(), replica({}, {"hostNetwork": True}, replicas=0)):
        assert notes(tfjob(Worker=with_port(3333, hostNetwork=True), PS=other), f"{SPECS}: hostNetwork") == []


def test_a_volume_named_like_one_of_the_chart_is_renamed_wherever_it_is_mounted() -> None:
    mounts = [{"name": "config", "mountPath": "/c"}, {"name": "mine", "mountPath": "/m"}]
    other = {"name": "fetch", "image": "busybox", "volumeMounts": mounts[:1]}
    pod = {"volumes": [{"name": "config", "emptyDir": {}}, {"name": "mine", "emptyDir": {}}], "initContainers": [other]}
    job = tfjob(Worker=replica({"volumeMounts": mounts}, pod), PS=replica())
    task = convert(job).values["worker"]
    assert [item["name"] for item in task["extraVolumes"]] == ["tfjob-config", "mine"]
    assert [item["name"] for item in task["extraVolumeMounts"]] == ["tfjob-config", "mine"]
    assert task["initContainers"][0]["volumeMounts"] == [{"name": "tfjob-config", "mountPath": "/c"}]
    assert len(notes(job, f"{POD}.volumes[config]: called tfjob-config")) == 1


def test_a_volume_that_becomes_the_training_directory_is_not_said_to_be_renamed() -> None:
    pod = {"volumes": [{"name": "training", "persistentVolumeClaim": {"claimName": "runs"}}]}
    own = replica({"volumeMounts": [{"name": "training", "mountPath": "/train"}]}, pod)
    assert convert(tfjob(Worker=own, PS=own)).values["trainingDirectory"]["existingClaim"] == "runs"
    assert [note for note in convert(tfjob(Worker=own, PS=own)).notes if "volumes" in note] == []
    assert len(notes(tfjob(Worker=own, PS=replica()), f"{POD}.volumes[training]: called tfjob-training")) == 1


def test_with_a_read_only_root_the_charts_scratch_takes_the_place_of_the_jobs() -> None:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "tmp", "mountPath": "/cache"}]  # noqa: S108
    volumes = {"volumes": [{"name": "tmp", "emptyDir": {}}]}

    def mounted(read_only: bool) -> list[str]:
        container = {"volumeMounts": mounts, "securityContext": {"readOnlyRootFilesystem": read_only}}
        return [item["mountPath"] for item in worker(container=container, pod=volumes)["extraVolumeMounts"]]

    assert mounted(True) == ["/cache"]
    assert mounted(False) == ["/tmp", "/cache"]  # noqa: S108


def on_claim(path: str, **mount: Any) -> Map:
    """A replica that mounts the claim "runs" there."""
    return replica(
        {"volumeMounts": [{"name": "v", "mountPath": path, **mount}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "runs"}}]},
    )


def test_a_claim_that_every_role_mounts_is_the_training_directory() -> None:
    job = tfjob(Worker=on_claim("/train", subPath="a"), PS=on_claim("/train", subPath="a"))
    values = convert(job).values
    assert values["trainingDirectory"] == {
        "path": "/train",
        "existingClaim": "runs",
        "subPath": "a",
        "accessModes": ["ReadWriteMany"],
    }
    assert not {"extraVolumes", "extraVolumeMounts"} & {*values["worker"], *values["ps"]}
    assert "the claim runs, which all its tasks mount at /train." in convert_tfjob.to_yaml(convert(job))


def test_the_volume_of_such_a_claim_stays_where_another_container_mounts_it() -> None:
    other = on_claim("/training")
    mount = [{"name": "v", "mountPath": "/in"}]
    other["template"]["spec"]["initContainers"] = [{"name": "fetch", "image": "busybox", "volumeMounts": mount}]
    values = convert(tfjob(Worker=other, PS=on_claim("/training"))).values
    assert [item["name"] for item in values["worker"]["extraVolumes"]] == ["v"]
    assert "extraVolumeMounts" not in values["worker"]
    assert "extraVolumes" not in values["ps"]


@pytest.mark.parametrize("ps", [on_claim("/other"), on_claim("/train", readOnly=True), replica()])
def test_a_claim_that_not_every_role_mounts_alike_stays_a_volume(ps: Map) -> None:
    values = convert(tfjob(Worker=on_claim("/train"), PS=ps)).values
    assert values["trainingDirectory"] == {"enabled": False}
    assert values["worker"]["extraVolumeMounts"] == [{"name": "v", "mountPath": "/train"}]
    assert len(values["worker"]["extraVolumes"]) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hostname", "node"),
        ("subdomain", "training"),
        ("activeDeadlineSeconds", 60),
        ("ephemeralContainers", [{"name": "debug"}]),
        ("restartPolicy", "Always"),
        ("inventedTomorrow", 0),
    ],
)
def test_a_field_of_the_pod_without_counterpart_is_named(field: str, value: Any) -> None:
    (note,) = notes(tfjob(Worker=replica(pod={field: value}), PS=replica()), f"{POD}.{field}: ")
    assert "not carried over; " in note


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("automountServiceAccountToken", True),
        ("enableServiceLinks", True),
        ("hostIPC", True),
        ("hostPID", True),
        ("hostUsers", False),
        ("nodeName", "node-1"),
        ("os", {"name": "linux"}),
        ("overhead", {"cpu": "1"}),
        ("preemptionPolicy", "Never"),
        ("priority", 0),
        ("readinessGates", [{"conditionType": "a/b"}]),
        ("resourceClaims", [{"name": "gpu"}]),
        ("resources", {"limits": {"cpu": "1"}}),
        ("schedulingGates", [{"name": "a/b"}]),
        ("setHostnameAsFQDN", True),
        ("shareProcessNamespace", True),
    ],
)
def test_a_field_of_the_pod_without_a_key_of_its_own_is_in_pod_spec(field: str, value: Any) -> None:
    job = tfjob(Worker=replica(pod={field: value}), PS=replica())
    assert convert(job).values["worker"]["podSpec"] == {field: value}
    assert "podSpec" not in convert(job).values["ps"]
    assert other_notes(job) == []


@pytest.mark.parametrize(
    ("path", "job"),
    [
        (f"{TASK}.stdin", tfjob(Worker=replica({"stdin": True}))),
        (f"{TASK}.volumeDevices", tfjob(Worker=replica({"volumeDevices": [{"name": "raw"}]}))),
        (f"{TASK}.terminationMessagePath", tfjob(Worker=replica({"terminationMessagePath": "/log"}))),
        (f"{TASK}.ports[http]", tfjob(Worker=replica({"ports": [{"name": "http", "containerPort": 80}]}))),
        (f"{TASK}.ports[80]", tfjob(Worker=replica({"ports": [{"containerPort": 80}]}))),
        (
            f"{TASK}.ports[tfjob-port].hostPort",
            tfjob(Worker=replica({"ports": [{"name": "tfjob-port", "containerPort": 2222, "hostPort": 1}]})),
        ),
        (f"{TASK}.env[TF_CONFIG]", tfjob(Worker=replica({"env": [{"name": "TF_CONFIG", "value": "{}"}]}))),
        (f"{WORKER}.template.metadata.name", tfjob(Worker=replica(metadata={"name": "x"}))),
        (
            f"{WORKER}.template.metadata.labels.app.kubernetes.io/name",
            tfjob(Worker=replica(metadata={"labels": {"app.kubernetes.io/name": "x"}})),
        ),
        (f"{WORKER}.surprise", tfjob(Worker=replica(surprise=1))),
        (
            f"{WORKER}.template.surprise",
            tfjob(Worker={**replica(), "template": {**replica()["template"], "surprise": 1}}),
        ),
        ("spec.tfReplicaSpecs.TensorBoard", tfjob(Worker=replica(), TensorBoard=replica())),
        ("spec.tfReplicaSpecs.Evaluator.replicas", tfjob(Worker=replica(), Evaluator=replica(replicas=2))),
        ("spec.enableDynamicWorker", tfjob({"enableDynamicWorker": True})),
        ("spec.surprise", tfjob({"surprise": 1})),
        (
            "spec.runPolicy.schedulingPolicy.minAvailable",
            tfjob({"runPolicy": {"schedulingPolicy": {"minAvailable": 1}}}),
        ),
        ("spec.runPolicy.managedBy", tfjob({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}})),
        ("metadata.labels.team", tfjob(metadata={"labels": {"team": "vision"}})),
        (
            f"{WORKER}.template.metadata.labels.training.kubeflow.org/job-name",
            tfjob(Worker=replica(metadata={"labels": {"training.kubeflow.org/job-name": "x"}})),
        ),
        ("metadata.annotations.team", tfjob(metadata={"annotations": {"team": "vision"}})),
        ("metadata.finalizers", tfjob(metadata={"finalizers": ["x"]})),
        ("surprise", {**tfjob(), "surprise": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_carried_over_is_named_once_and_by_its_path(path: str, job: Map) -> None:
    (note,) = notes(job, f"{path}: ")
    assert "not carried over; " in note
    assert "\n" not in note


def test_a_job_of_one_task_is_said_to_get_a_tf_config() -> None:
    assert len(notes(tfjob(Worker=replica()), "spec.tfReplicaSpecs: one task in all")) == 1
    assert notes(tfjob(), f"{SPECS}: one task") == []


def test_a_token_that_is_not_mounted_is_mentioned_where_there_is_an_account() -> None:
    path = (
        f"{POD}.serviceAccountName: carried over, but not its token; worker.podSpec.automountServiceAccountToken: true "
    )
    assert len(notes(tfjob(Worker=replica(pod={"serviceAccountName": "robot"})), path)) == 1
    assert worker(pod={"serviceAccount": "old"})["serviceAccount"] == {"name": "old"}


NEW = "training.kubeflow.org/"


def near(**selector: Any) -> Map:
    """A pod that must run near the pods with these labels."""
    term = {"topologyKey": "zone", "labelSelector": selector}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def test_pods_have_the_constant_labels_of_the_operator() -> None:
    job = tfjob(metadata={"name": f"{'a' * 50}"}, Master=replica(), Worker=replica(), PS=replica())
    values = convert(job).values
    assert values["common"]["labels"] == {f"{NEW}job-name": "a" * 50, f"{NEW}operator-name": "tfjob-controller"}
    assert values["chief"]["labels"] == {f"{NEW}replica-type": "master", f"{NEW}job-role": "master"}
    assert values["worker"]["labels"] == {f"{NEW}replica-type": "worker"}
    assert convert(tfjob(Chief=replica())).values["chief"]["labels"][f"{NEW}replica-type"] == "chief"
    long = convert(tfjob(metadata={"name": "a" * 64})).values["common"]["labels"]
    assert long[f"{NEW}job-name"] == "a" * 40, "a label has 63 characters at most"


def test_pods_have_former_labels_only_if_the_job_refers_to_them() -> None:
    pod = near(
        matchLabels={"tf-job-name": "mnist", "tf_job_name": "mnist", "group_name": "kubeflow.org"},
        matchExpressions=[{"key": "tf-replica-type", "operator": "In", "values": ["ps"]}],
    )
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["job-role"]}
    pod |= {"topologySpreadConstraints": [spread]}
    field = {"name": "G", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['group-name']"}}}
    values = convert(tfjob(Chief=replica(), Worker=replica({"env": [field]}, pod), PS=replica())).values
    former = {key: value for key, value in values["common"]["labels"].items() if "/" not in key}
    assert former == {
        "tf-job-name": "mnist",
        "tf_job_name": "mnist",
        "group-name": "kubeflow.org",
        "group_name": "kubeflow.org",
    }
    assert values["ps"]["labels"] == {f"{NEW}replica-type": "ps", "tf-replica-type": "ps"}
    assert values["chief"]["labels"]["job-role"] == "master"
    assert values["worker"]["affinity"] == pod["affinity"]


@pytest.mark.parametrize("label", [f"{NEW}replica-index", "replica-index", "tf-replica-index"])
def test_the_index_of_a_pod_is_read_from_the_label_that_kubernetes_sets(label: str) -> None:
    def field(name: str) -> Map:
        return {"fieldRef": {"fieldPath": f"metadata.labels['{name}']"}}

    def pod(name: str) -> Map:
        env = [{"name": "INDEX", "valueFrom": field(name)}]
        items = [{"path": "index", **field(name)}]
        return {
            "initContainers": [{"name": "fetch", "image": "busybox", "env": env}],
            "volumes": [
                {"name": "a", "downwardAPI": {"items": items}},
                {"name": "b", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
            ],
            **near(
                matchLabels={name: "0"},
                matchExpressions=[{"key": name, "operator": "In", "values": ["1"]}],
            ),
        }

    env = [{"name": "INDEX", "valueFrom": field(label)}, {"name": "NAME", "valueFrom": field("team")}]
    job = tfjob(Worker=replica({"env": env}, pod(label)), PS=replica())
    task = convert(job).values["worker"]
    now = pod("apps.kubernetes.io/pod-index")
    assert task["env"] == [{"name": "INDEX", "valueFrom": field("apps.kubernetes.io/pod-index")}, env[1]]
    assert (task["initContainers"], task["extraVolumes"]) == (now["initContainers"], now["volumes"])
    assert task["affinity"] == now["affinity"]
    assert other_notes(job) == []


def test_a_reference_to_the_role_of_the_master_is_mentioned_where_worker_0_alone_has_it() -> None:
    for label in (f"{NEW}job-role", "job-role"):
        pod = near(matchLabels={label: "master"})
        job = tfjob(Worker=replica(pod=pod), PS=replica())
        assert len(notes(job, f"{POD}: refers to the label {NEW}job-role, which no pod has; ")) == 1
        assert notes(tfjob(Chief=replica(), Worker=replica(pod=pod)), f"{POD}: refers") == []


def pod_group(api_version: str, **spec: Any) -> str:
    """The manifest of a PodGroup of the job, as a note has it."""
    return json.dumps({"apiVersion": api_version, "kind": "PodGroup", "metadata": {"name": "mnist"}, "spec": spec})


@pytest.mark.parametrize(
    ("metadata", "pod", "path", "group"),
    [
        (
            {"annotations": {"scheduling.k8s.io/group-name": "mnist"}},
            {"schedulerName": "volcano"},
            "metadata.annotations.scheduling.k8s.io/group-name",
            pod_group("scheduling.volcano.sh/v1beta1", minMember=3),
        ),
        (
            {"annotations": {"scheduling.volcano.sh/group-name": "mnist"}},
            {},
            "metadata.annotations.scheduling.volcano.sh/group-name",
            pod_group("scheduling.volcano.sh/v1beta1", minMember=3),
        ),
        (
            {"labels": {"scheduling.x-k8s.io/pod-group": "mnist"}},
            {},
            "metadata.labels.scheduling.x-k8s.io/pod-group",
            pod_group("scheduling.x-k8s.io/v1alpha1", minMember=3),
        ),
    ],
)
def test_a_pod_group_that_the_pods_name_is_mentioned_once(metadata: Map, pod: Map, path: str, group: str) -> None:
    job = tfjob(Worker=replica({}, pod, metadata, replicas=2), PS=replica({}, pod, metadata))
    start = f"{WORKER}.template.{path}: carried over, but the chart creates no PodGroup; for gang scheduling add to "
    assert other_notes(job) == [f"{start}extraObjects {group}, unless it exists."]
    assert "scheduling" not in convert(job).values
    there = {"apiVersion": "a/v1", "kind": "PodGroup", "metadata": {"name": "mnist"}}
    assert not [n for n in convert_tfjob.convert(job, {}, [there]).notes if "no PodGroup" in n]


@pytest.mark.parametrize(
    ("scheduler", "gang"), [("volcano", "volcano"), ("scheduler-plugins-scheduler", "coscheduling")]
)
def test_a_gang_scheduler_of_the_pods_is_that_of_the_chart(scheduler: str, gang: str) -> None:
    pods = replica(pod={"schedulerName": scheduler})
    job = tfjob(Worker=pods, PS=pods)
    assert other_notes(job) == []
    assert convert(job).values["scheduling"] == {"gang": gang}


def test_a_pod_group_that_the_job_names_on_itself_is_mentioned() -> None:
    metadata = {"name": "mnist", "annotations": {"scheduling.k8s.io/group-name": "mnist"}}
    (note,) = notes(tfjob(metadata=metadata), "metadata.annotations.scheduling.k8s.io/group-name: not carried over; ")
    assert "set it in common.annotations, and add the PodGroup (scheduling.volcano.sh/v1beta1) to extraObjects" in note


POLICY: Map = {"minAvailable": 2, "queue": "research", "priorityClass": "high"}


def test_a_scheduling_policy_is_carried_over() -> None:
    job = tfjob({"runPolicy": {"schedulingPolicy": POLICY}})
    path = "spec.runPolicy.schedulingPolicy"
    values = convert(job).values
    assert values["scheduling"] == {"gang": "volcano", "queue": "research"}
    assert {values[role]["priorityClassName"] for role in ("worker", "ps")} == {"high"}
    assert [note.partition("; ")[0] for note in other_notes(job)] == [
        f"{path}.priorityClass: carried over as the pods' priorityClassName, which is the PodGroup's too.",
        f"{path}: carried over for Volcano",
    ]
    with_name = replica(pod={"schedulerName": "volcano", "priorityClassName": "low"})
    job = tfjob({"runPolicy": {"schedulingPolicy": POLICY}}, Worker=with_name, PS=with_name)
    assert convert(job).values["worker"]["priorityClassName"] == "low"
    (note,) = other_notes(job)
    assert note == f"{path}.priorityClass: not carried over; the PodGroup has the priorityClassName of the pods."


def test_each_field_of_a_scheduling_policy_that_the_chart_lacks_is_named() -> None:
    policy = {**POLICY, "minAvailable": 7, "minResources": {"cpu": "8"}, "scheduleTimeoutSeconds": 60, "surprise": 1}
    spec = {"runPolicy": {"schedulingPolicy": policy}}
    path = "spec.runPolicy.schedulingPolicy"

    def lost(job: Map) -> set[str]:
        found = [note.partition(": ") for note in notes(job, f"{path}.")]
        return {where.removeprefix(f"{path}.") for where, _, what in found if what.startswith("not carried over")}

    assert lost(tfjob(spec)) == {"minAvailable", "minResources", "scheduleTimeoutSeconds", "surprise"}
    plugins = replica(pod={"schedulerName": "scheduler-plugins-scheduler"})
    job = tfjob(spec, Worker=plugins, PS=plugins)
    assert lost(job) == {"minAvailable", "minResources", "scheduleTimeoutSeconds", "surprise", "queue"}
    queued = tfjob(spec, {"labels": {"kueue.x-k8s.io/queue-name": "research"}})
    assert lost(queued) == {*policy}
    assert convert(queued).values["scheduling"]["gang"] == "kueue"


def test_a_scheduling_policy_beside_the_pod_group_of_the_file_is_named() -> None:
    own = replica(pod={"schedulerName": "volcano"}, metadata={"annotations": {"scheduling.k8s.io/group-name": "g"}})
    job = tfjob({"runPolicy": {"schedulingPolicy": POLICY}}, Worker=own, PS=own)
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}}
    (note,) = [note for note in convert_tfjob.convert(job, {}, [group]).notes if "schedulingPolicy" in note]
    assert note.endswith("schedulingPolicy: not carried over; the PodGroup g of the file has its own spec.")


def test_a_job_in_a_queue_of_kueue_is_queued_there_by_the_chart() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/priority-class": "high"}
    job = tfjob(metadata={"labels": labels}, Worker=replica(replicas=2), PS=replica())
    (note,) = other_notes(job)
    assert note.startswith("metadata.labels.kueue.x-k8s.io/priority-class: not carried over; ")
    assert convert(job).values["scheduling"] == {"gang": "kueue", "queue": "research"}


def test_pods_in_a_queue_of_kueue_without_a_group_are_mentioned() -> None:
    queue = {"kueue.x-k8s.io/queue-name": "research"}
    alone = replica(metadata={"labels": queue})
    (note,) = other_notes(tfjob(Worker=alone, PS=alone))
    assert note.startswith(
        f"{WORKER}.template.metadata.labels.kueue.x-k8s.io/queue-name: carried over, but Kueue then "
    )
    assert '"kueue.x-k8s.io/pod-group-name": "mnist"' in note
    group = replica(metadata={"labels": {**queue, "kueue.x-k8s.io/pod-group-name": "mine"}})
    assert other_notes(tfjob(Worker=group, PS=group)) == []


def test_what_kubectl_get_adds_and_what_says_nothing_is_not_mentioned() -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    metadata = {"uid": "1", "resourceVersion": "2", "generation": 3, "creationTimestamp": "x", "annotations": applied}
    container = {"stdin": False, "terminationMessagePolicy": "File", "terminationMessagePath": "/dev/termination-log"}
    pod = {"hostPID": False, "automountServiceAccountToken": False, "enableServiceLinks": False, "subdomain": ""}
    written = replica(container, pod, {"creationTimestamp": None, "annotations": {"sidecar.istio.io/inject": "false"}})
    job = {**tfjob(None, metadata, Worker=written, PS=replica()), "status": {"conditions": [{"type": "Created"}]}}
    assert other_notes(job) == []
    assert "annotations" not in convert(job).values["worker"]


RESTRICTED_POD = {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}}
RESTRICTED_CONTAINER = {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


@pytest.mark.parametrize(
    ("container", "pod", "reasons"),
    [
        ({}, {}, None),
        ({"securityContext": {"allowPrivilegeEscalation": False}}, {}, "capabilities"),
        ({"securityContext": {"capabilities": {"drop": ["ALL"]}}}, {}, "allowPrivilegeEscalation"),
        (
            {
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"], "add": ["SYS_TIME"]},
                }
            },
            {},
            "capabilities",
        ),
        ({}, {"securityContext": {"seccompProfile": {"type": "Localhost"}}}, "runAsNonRoot"),
        ({}, {"securityContext": {"runAsNonRoot": True}}, "seccompProfile"),
        ({}, {"hostNetwork": True}, "hostNetwork"),
        ({}, {"hostPID": True, "hostIPC": True}, "hostPID, hostIPC"),
        ({}, {"volumes": [{"name": "disk", "hostPath": {"path": "/"}}]}, "volume disk"),
        ({}, {"initContainers": [{"name": "a", "image": "b"}]}, "allowPrivilegeEscalation, capabilities"),
    ],
)
def test_what_pod_security_restricted_refuses_is_said(container: Map, pod: Map, reasons: str | None) -> None:
    job = tfjob(Worker=replica(RESTRICTED_CONTAINER | container, RESTRICTED_POD | pod))
    said = [note.partition("refuses the pods of ")[2] for note in notes(job) if "restricted" in note]
    assert said == ([f"Worker ({reasons})."] if reasons else [])


def test_what_pod_security_restricted_refuses_is_said_in_one_line_at_the_end() -> None:
    strict = replica(RESTRICTED_CONTAINER, RESTRICTED_POD)
    mild = replica(RESTRICTED_CONTAINER)
    job = tfjob(Chief=strict, Worker=replica(surprise=1), PS=replica(), Evaluator=mild)
    all_of_them = "runAsNonRoot, seccompProfile, allowPrivilegeEscalation, capabilities"
    assert [note for note in convert(job).notes if "restricted" in note] == convert(job).notes[-1:]
    assert convert(job).notes[-1].endswith(f" of Worker, PS ({all_of_them}); Evaluator (runAsNonRoot, seccompProfile).")


def test_the_command_of_an_image_is_asked_for_and_its_arguments_stay_arguments() -> None:
    bare = replica({"command": None, "args": ["--epochs=3"]})
    job = tfjob(Worker=bare, ps=bare)
    said = refusal(job)
    assert f"{WORKER}…containers[tensorflow].command, spec.tfReplicaSpecs.ps…containers[tensorflow].command: " in said
    assert (
        '; --inspect reads it from the image, or state it as in --entrypoint worker="python -m x" --entrypoint' in said
    )
    assert "--entrypoint ps=" not in refusal(tfjob(Worker=bare, PS=replica()))
    values = convert(job, "Worker=python -m 'my task'", "ps=serve").values
    assert (values["worker"]["command"], values["worker"]["args"]) == (["python", "-m", "my task"], ["--epochs=3"])
    assert values["ps"]["command"] == ["serve"]


def test_an_image_without_an_entrypoint_is_stated_by_an_empty_one() -> None:
    job = tfjob(Worker=replica({"command": None, "args": ["python", "-m", "task"]}), PS=replica())
    assert 'or as in --entrypoint worker="" if the image has none and the args are the command.' in refusal(job)
    values = convert(job, "worker=").values
    assert values["worker"]["command"] == ["python", "-m", "task"]
    assert "args" not in values["worker"]
    bare = tfjob(Worker=replica({"command": None}), PS=replica())
    assert "the image has no entrypoint, and there are no args, so nothing runs; " in refusal(bare, "worker=")


def test_a_role_without_tasks_needs_no_command() -> None:
    assert convert(tfjob(Worker=replica(), PS=replica({"command": None}, replicas=0))).values["ps"]["replicas"] == 0


@pytest.mark.parametrize(
    ("entrypoints", "said"),
    [
        (["worker"], "'worker' was given"),
        (["pilot=python"], "'pilot=python' was given"),
        (["worker='a"], "cannot be split into words"),
        (["ps=a", "PS=b"], "two were given for ps"),
        (["chief=a"], "the TFJob has no such role"),
        (["worker=a"], "whose command is in the TFJob"),
    ],
)
def test_an_entrypoint_that_says_nothing_is_refused(entrypoints: list[str], said: str) -> None:
    message = refusal(tfjob(), *entrypoints)
    assert message.startswith("--entrypoint: ")
    assert said in message


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (tfjob({"tfReplicaSpecs": None}), "spec.tfReplicaSpecs: there is no Worker and no Chief"),
        (tfjob(PS=replica()), "spec.tfReplicaSpecs: there is no Worker and no Chief"),
        (tfjob(Worker=replica(replicas=0)), "spec.tfReplicaSpecs: there is no Worker and no Chief"),
        (tfjob(Workr=replica(), PS=replica()), f"{SPECS}.Workr: no role has this name; did you mean Worker?"),
        (tfjob(Worker=replica(), pss=replica()), f"{SPECS}.pss: no role has this name; did you mean PS?"),
        (tfjob(Trainer=replica()), f"{SPECS}: there is no Worker and no Chief, and Trainer is not a role, so"),
        (tfjob(Chief=replica(), Master=replica()), "spec.tfReplicaSpecs: Chief and Master are the same role."),
        (tfjob(Worker=replica(replicas="two")), f'{WORKER}.replicas: a whole number was expected, not "two".'),
        (tfjob(Worker=replica(replicas=True)), f"{WORKER}.replicas: a whole number was expected, not true."),
        (tfjob(Worker=replica(replicas=-1)), f"{WORKER}.replicas: a whole number was expected, not -1."),
        (tfjob(Worker=replica(restartPolicy="Sometimes")), f"{WORKER}.restartPolicy: one of Never, OnFailure"),
        (tfjob(Worker=replica({"name": "main"})), f"{POD}.containers: there is no container named tensorflow."),
        (tfjob(Worker=replica({"image": ""})), f"{TASK}.image: the name of an image was expected, not ''."),
        (tfjob(Worker=replica({"image": "a b"})), f"{TASK}.image: "),
        (tfjob(Worker=replica({"command": "python"})), f"{TASK}.command: a list of texts was expected"),
        (tfjob(Worker=replica({"args": [3]})), f"{TASK}.args: a list of texts was expected, not [3]."),
        (tfjob(Worker=replica({"resources": {"limits": [1]}})), f"{TASK}.resources.limits: a map was expected"),
        (tfjob(Worker=replica({"volumeMounts": [{"name": []}]})), f"{TASK}.volumeMounts[0].name: text was expected"),
        (tfjob(Worker=replica({"volumeMounts": "all"})), f"{TASK}.volumeMounts: a list of maps was expected"),
        (tfjob(Worker={"template": {}}), f"{POD}.containers: there is no container named tensorflow."),
        (tfjob(Worker={"template": "x"}), f"{WORKER}.template: a map was expected"),
        (tfjob({"runPolicy": {"backoffLimit": "3"}}), "spec.runPolicy.backoffLimit: a whole number was expected"),
        (tfjob({"runPolicy": {"cleanPodPolicy": "Some"}}), "spec.runPolicy.cleanPodPolicy: one of All, Running, None"),
        (tfjob({"successPolicy": "Any"}), "spec.successPolicy: one of "),
        (tfjob(metadata={"name": "My_Job"}), "metadata.name: 'My_Job' is not valid in the names of the run's Services"),
        (tfjob(metadata={"name": None}), "metadata.name: it is missing; set the job's name, such as mnist."),
        ({**tfjob(), "metadata": None}, "metadata.name: it is missing; "),
        ({**tfjob(), "spec": []}, "spec: a map was expected, not []."),
    ],
)
def test_a_job_that_cannot_run_is_refused_by_the_path_of_its_fault(job: Map, said: str) -> None:
    assert refusal(job).startswith(said)


@pytest.mark.parametrize(
    ("name", "better"),
    [("My_Job", "my-job"), ("3d-unet", "job-3d-unet"), ("my.job", "my-job"), ("-", "job"), ("a-", "a")],
)
def test_a_name_that_no_service_may_have_is_refused_with_a_better_one(name: str, better: str) -> None:
    message = refusal(tfjob(metadata={"name": name}))
    assert message.endswith(f"and dashes, and start with a letter, such as {better}.")


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"name": "mnist-7"}, "mnist-7"),
        ({"name": None, "generateName": "tfjob-"}, "tfjob"),
        ({"name": f"{'a' * 39}-{'b' * 10}"}, "a" * 39),
    ],
)
def test_the_release_has_the_jobs_name(metadata: Map, name: str) -> None:
    conversion = convert(tfjob(metadata={**metadata, "namespace": "research"}))
    assert conversion.name == name
    command = (
        f"#   helm install {name} charts/distributed-tensorflow --namespace research --values THIS-FILE \\\n"
        "#     --set image.registry=REGISTRY\n"
    )
    assert command in convert_tfjob.to_yaml(conversion)
    assert len([note for note in conversion.notes if note.startswith("metadata.name: cut to ")]) == (len(name) == 39)


@pytest.mark.parametrize("text", ["1e3", "0o17", "y", "No", "12:30", "2024-01-31", "1.50", "", "a\nb\n", "  ", "a: b"])
def test_texts_come_out_as_they_went_in(text: str) -> None:
    job, _ = parse_manifest(yaml.safe_dump(tfjob(Worker=replica({"args": [text]}))), "job.yaml")
    values = convert_tfjob.to_yaml(convert(job))
    assert yaml.safe_load(values)["worker"]["args"] == [text]
    if text in ("1e3", "0o17", "y"):
        assert f"- '{text}'\n" in values, "Helm's reader would take it for something else"


def test_dates_and_times_are_texts_as_kubernetes_reads_them() -> None:
    manifest = yaml.safe_dump(tfjob(Worker=replica({"args": ["DAY", "TIME"]})))
    job, _ = parse_manifest(manifest.replace("DAY", "2024-01-31").replace("TIME", "12:30:45"), "job.yaml")
    assert convert(job).values["worker"]["args"] == ["2024-01-31", "12:30:45"]


def test_the_output_has_no_anchors_and_is_the_same_each_time() -> None:
    job = tfjob(Worker=replica(), PS=replica())
    job["spec"]["tfReplicaSpecs"]["PS"] = job["spec"]["tfReplicaSpecs"]["Worker"]
    first = convert_tfjob.to_yaml(convert(parse_manifest(yaml.safe_dump(job), "job.yaml")[0]))
    assert "&" not in first
    assert "*" not in first
    assert convert_tfjob.to_yaml(convert(job)) == first


JOB = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {{name: {}}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "job.yaml holds nothing, and one TFJob was expected."),
        ("# only a comment\n---\n", "job.yaml holds nothing"),
        ("kind: Job\n---\nb: 2\n", 'job.yaml: kind: TFJob was expected, not "Job" or null.'),
        (f"{JOB.format('a')}---\n{JOB.format('b')}", 'job.yaml holds the TFJobs "a" and "b", and one was expected; '),
        (f"{JOB.format('a')}---\njust words\n", 'an object with apiVersion and kind was expected, not "just words".'),
        (f"{JOB.format('a')}---\nkind: Pod\n", "an object with apiVersion and kind was expected, not "),
        ("kind: [", "job.yaml is not YAML that Kubernetes reads: "),
        ("a: &a [*a]", "job.yaml is not YAML that Kubernetes reads: "),
        ("a: !!binary aGVsbG8=", "job.yaml is not YAML that Kubernetes reads: "),
        ("a: !!python/object:os.system {}", "job.yaml is not YAML that Kubernetes reads: "),
        ("a: 'never closed", "job.yaml is not YAML that Kubernetes reads: "),
        ("just words", "job.yaml: kind: TFJob was expected, not null."),
        ("{apiVersion: batch/v1, kind: Job}", 'job.yaml: kind: TFJob was expected, not "Job".'),
        ("{apiVersion: kubeflow.org/v1, kind: PyTorchJob}", 'kind: TFJob was expected, not "PyTorchJob".'),
        ("{apiVersion: v1, kind: List, items: []}", "job.yaml holds nothing, and one TFJob was expected."),
        ("{apiVersion: v1, kind: List, items: {a: 1}}", "job.yaml holds nothing, and one TFJob was expected."),
        ("{apiVersion: v1, kind: List, items: [1]}", "job.yaml: kind: TFJob was expected, not null."),
        ("{apiVersion: kubeflow.org/v1, kind: TFJobList, items: []}", "job.yaml holds nothing, and one TFJob was "),
        (
            "{apiVersion: kubeflow.org/v1beta2, kind: TFJob}",
            'kubeflow.org/v1 was expected, not "kubeflow.org/v1beta2"; set apiVersion: kubeflow.org/v1, whose spec ',
        ),
        (
            "{apiVersion: kubeflow.org/v1alpha2, kind: TFJob}",
            '"kubeflow.org/v1alpha2"; set apiVersion: kubeflow.org/v1, ',
        ),
        ("{apiVersion: kubeflow.org/v1alpha1, kind: TFJob}", '"kubeflow.org/v1alpha1"; write the TFJob anew for '),
        ("{apiVersion: kubeflow.org/v2, kind: TFJob}", '"kubeflow.org/v2"; write the TFJob anew for '),
        ("{kind: TFJob}", "apiVersion: kubeflow.org/v1 was expected, not null"),
    ],
)
def test_what_is_not_one_tfjob_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_manifest(text, "job.yaml")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_list_is_read_as_its_items() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [claim, tfjob()]}
    assert parse_manifest(json.dumps(listed), "job.yaml") == (tfjob(), [claim])


def test_a_list_of_tfjobs_is_read_as_its_items() -> None:
    job = tfjob()
    bare = {key: value for key, value in job.items() if key not in ("apiVersion", "kind")}
    for item in (job, bare):
        listed = {"apiVersion": "kubeflow.org/v1", "kind": "TFJobList", "items": [item]}
        assert parse_manifest(json.dumps(listed), "job.yaml") == (job, [])


def test_other_objects_of_a_file_are_installed_with_the_release() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}}
    text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "text"}, "data": {"{{a": ["b {{ c }}", 1]}}
    manifest = yaml.safe_dump_all([claim, tfjob(), text])
    job, others = parse_manifest(manifest, "job.yaml")
    conversion = convert_tfjob.convert(job, {}, others)
    escaped = {**text, "data": {"{{`{{`}}a": ["b {{`{{`}} c }}", 1]}}
    assert conversion.values["extraObjects"] == [claim, escaped]
    (note,) = [note for note in conversion.notes if "extraObjects" in note]
    assert note.startswith("PersistentVolumeClaim runs, ConfigMap text: carried over to extraObjects; ")
    assert "extraObjects" not in convert(tfjob()).values


def listed(*objects: Map) -> convert_tfjob.Conversion:
    """A job converted from a list with these other objects."""
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": [tfjob(), *objects]})
    return convert_tfjob.convert(parse_manifest(manifest, "job.yaml")[0], {}, parse_manifest(manifest, "job.yaml")[1])


def test_what_the_cluster_wrote_into_other_objects_is_not_carried_over() -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    written = {
        "resourceVersion": "2",
        "generation": 3,
        "creationTimestamp": "x",
        "managedFields": [],
        "selfLink": "x",
        "uid": "",
    }
    claim: Map = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}, "spec": {"a": 1}}
    got = {**claim, "metadata": {"name": "runs", "annotations": applied, **written}, "status": {"phase": "Bound"}}
    assert listed(got).values["extraObjects"] == [claim]
    claim["metadata"]["annotations"] = {"team": "vision"}
    got["metadata"]["annotations"] = {**applied, "team": "vision"}
    assert listed(got).values["extraObjects"] == [claim]


def test_an_object_that_the_cluster_has_is_left_out_and_named() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs", "uid": "1"}}
    text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "text"}}
    conversion = listed(claim, text)
    assert conversion.values["extraObjects"] == [text]
    (note,) = [note for note in conversion.notes if "PersistentVolumeClaim runs" in note]
    assert note.startswith("PersistentVolumeClaim runs: not carried over; the cluster has it already, ")
    assert "extraObjects" not in listed(claim).values


def test_each_secret_is_named_because_the_values_have_its_content() -> None:
    def secret(name: str, **metadata: str) -> Map:
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, **metadata}, "data": {"a": "Yg=="}}

    conversion = listed(secret("keys"), secret("pull"), secret("there", uid="1"))
    assert (
        len([note for note in conversion.notes if note.startswith("Secret keys, Secret pull: its content is in ")]) == 1
    )
    assert [item["metadata"]["name"] for item in conversion.values["extraObjects"]] == ["keys", "pull"]


@pytest.mark.parametrize("odd", [None, "x", [], 3])
def test_odd_metadata_of_another_object_is_left_to_kubernetes(odd: Any) -> None:
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": odd}
    assert listed(item).values["extraObjects"] == [item]


def test_the_command_prints_values_and_names_what_they_lack_apart(run_python: Run, tmp_path: Path) -> None:
    job = tfjob(Worker=replica({"command": None}, {"hostname": "a"}), PS=replica())
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    words = ["-m", "trainer", "convert-tfjob", "job.yaml", "--entrypoint", "worker=python -m task"]
    done = run_python(*words)
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == f"{POD}.hostname: not carried over; the StatefulSet sets it."
    assert yaml.safe_load(done.stdout)["worker"]["command"] == ["python", "-m", "task"]


def test_the_command_reads_standard_input(run_python: Run, tmp_path: Path) -> None:
    start = "subprocess.run([sys.executable, '-m', 'trainer', 'convert-tfjob', '-'], stdin=open('j'))"
    program = f"import subprocess, sys; {start}"
    (tmp_path / "j").write_text(yaml.safe_dump(tfjob()))
    assert yaml.safe_load(run_python("-c", program).stdout)["worker"]["replicas"] == 1
    (tmp_path / "j").write_text("kind: Job")
    assert run_python("-c", program).stderr == 'trainer: standard input: kind: TFJob was expected, not "Job".\n'


@pytest.mark.parametrize(
    ("words", "content", "said"),
    [
        (["job.yaml"], None, "job.yaml cannot be read (No such file or directory)."),
        (["."], None, ". cannot be read (Is a directory)."),
        (["job.yaml"], b"\xff\xfe", "job.yaml cannot be read (it is not UTF-8: "),
        (["job.yaml"], b"kind: [", "job.yaml is not YAML"),
        ([], None, "the following arguments are required: FILE"),
        (["job.yaml", "--no-such"], None, "--no_such"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    run_python: Run, tmp_path: Path, words: list[str], content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "job.yaml").write_bytes(content)
    done = run_python("-m", "trainer", "convert-tfjob", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("trainer: ")
    assert said in done.stderr


FAST_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a document."""
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.parametrize(
    "odd", [None, "", "x", -1, 2.5, True, [], {}, [1], [[]], [{}], {"a": 1}, [{"name": 3}]], ids=repr
)
def test_whatever_stands_somewhere_a_job_is_converted_or_refused_in_a_sentence(odd: Any) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/train", "subPath": "a"}]}
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": 1}}}
    field = {"fieldRef": {"fieldPath": f"metadata.labels['{NEW}replica-index']"}}
    ports = {"ports": [{"name": "tfjob-port", "containerPort": 2222}], "env": [{"name": "A", "valueFrom": field}]}
    security = {"capabilities": {"drop": ["ALL"], "add": []}, "seccompProfile": {"type": "Localhost"}}
    pod = {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "runs"}}],
        "initContainers": [{"name": "fetch", "image": "busybox", **mount, "securityContext": security}],
        "securityContext": security,
        "serviceAccountName": "robot",
        "schedulerName": "volcano",
        "hostNetwork": True,
        "priority": 3,
        **near(matchLabels={"a": "b"}, matchExpressions=[{"key": "job-role", "operator": "Exists"}]),
        "topologySpreadConstraints": [{"matchLabelKeys": ["job-role"]}],
    }
    metadata = {"labels": {"team": "vision"}, "annotations": {"scheduling.k8s.io/group-name": "b"}}
    rich = replica({**mount, **limits, **ports, "securityContext": security}, pod, metadata, replicas=1)
    policy = {"backoffLimit": 3, "schedulingPolicy": {"minAvailable": 2}}
    job = tfjob({"runPolicy": policy, "successPolicy": ""}, Worker=rich, PS=on_claim("/train"))
    for *parents, last in places(job):
        changed = copy.deepcopy(job)
        place = changed
        for key in parents:
            place = place[key]
        place[last] = odd
        try:
            convert_tfjob.images_without_command(changed)
            yaml.load(convert_tfjob.to_yaml(convert(changed)), Loader=FAST_LOADER)  # noqa: S506 - a safe loader
        except ConfigurationError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either is right, nothing else is


def test_the_documentation_shows_what_the_example_becomes() -> None:
    root = Path(__file__).parents[2]
    conversion = convert(parse_manifest((root / "examples" / "tfjob.yaml").read_text(), "tfjob.yaml")[0])
    page = (root / "docs" / "migrating-from-tfjob.md").read_text()
    for shown in ("\n".join(conversion.notes), convert_tfjob.to_yaml(conversion)):
        assert textwrap.indent(shown, "    ") in page


def test_aliases_that_stand_for_too_many_values_are_refused() -> None:
    for bomb in (yaml_bomb(), merge_bomb()):
        with pytest.raises(ConfigurationError, match="its aliases stand for more than 1,000,000 values"):
            parse_manifest(bomb.decode(), "job.yaml")
