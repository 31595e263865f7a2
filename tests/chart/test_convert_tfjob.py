"""The values that `trainer convert-tfjob` prints: Helm renders the pods that the TFJob specifies."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.chart import CHART, DEFAULTS, EVERY_VOLUME_AND_VARIABLE, Manifests, parse, template
from tests.chart.chart import render as render_chart
from trainer.tfjob import convert as convert_tfjob
from trainer.tfjob.parse import parse_manifest
from trainer.tfjob.replica import OWN_ENVIRONMENT, PACKAGED
from trainer.tfjob.volumes import OWN_VOLUMES

EXAMPLE = Path(__file__).parents[2] / "examples" / "tfjob.yaml"

RUN = {
    "successPolicy": ("Chief", {"enum": ["Chief", "AllWorkers"]}),
    "backoffLimit": (6, {"type": ["integer", "null"]}),
    "activeDeadlineSeconds": (None, {"type": ["integer", "null"]}),
    "startTimeoutSeconds": (600, {"type": ["integer", "null"]}),
    "ttlSecondsAfterFinished": (None, {"type": ["integer", "null"]}),
    "cleanPodPolicy": ("All", {"enum": ["All", "Running", "None"]}),
    "suspend": (False, {"type": "boolean"}),
}

EVERYTHING = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: everything
spec:
  successPolicy: AllWorkers
  runPolicy: {cleanPodPolicy: Running, backoffLimit: 3, activeDeadlineSeconds: 60, ttlSecondsAfterFinished: 5}
  tfReplicaSpecs:
    Master: &replica
      restartPolicy: OnFailure
      template:
        metadata:
          labels: {team: vision, training.kubeflow.org/team: vision}
          annotations: {example.com/cost: "1e3"}
        spec:
          nodeSelector: {disk: fast}
          tolerations: [{key: spot, operator: Exists}]
          affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}
          topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
          priorityClassName: high
          schedulerName: volcano
          runtimeClassName: nvidia
          hostNetwork: true
          shareProcessNamespace: true
          schedulingGates: [{name: example.com/quota}]
          dnsPolicy: None
          dnsConfig: {nameservers: [192.0.2.1]}
          hostAliases: [{ip: 192.0.2.2, hostnames: [store]}]
          terminationGracePeriodSeconds: 0
          imagePullSecrets: [{name: pull}]
          serviceAccountName: robot
          securityContext: {runAsUser: 0, fsGroup: 100}
          initContainers: [{name: fetch, image: busybox}]
          volumes:
            - {name: config, configMap: {name: mine}}
            - {name: runs, persistentVolumeClaim: {claimName: runs}}
          containers:
            - name: tensorflow
              image: registry.example.com/team/mnist:1.0
              imagePullPolicy: Always
              command: [python, train.py]
              args: ["1e3", "y", "$(A)", "{{.Name}}"]
              env:
                - {name: A, value: "0o17"}
                - name: INDEX
                  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
              envFrom: [{secretRef: {name: keys}}]
              ports: [{name: tfjob-port, containerPort: 3333}]
              resources: {limits: {memory: 1Gi}, requests: {cpu: 100m}}
              securityContext: {privileged: true}
              volumeMounts: [{name: config, mountPath: /config}, {name: runs, mountPath: /runs}]
              livenessProbe: {httpGet: {port: 80}}
              readinessProbe: {httpGet: {port: 81}}
              startupProbe: {httpGet: {port: 82}}
              lifecycle: {preStop: {exec: {command: [save]}}}
            - {name: log, image: busybox}
    Worker:
      <<: *replica
      replicas: 2
    PS: *replica
    Evaluator: *replica
"""

OTHERS = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data:
  text: "{{ .Values }} \\t {{ '"
  "{{a": "x"
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: runs}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
"""

PLAIN = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: plain}
spec:
  tfReplicaSpecs:
    Chief: &replica
      template:
        spec:
          containers:
            - name: tensorflow
              image: mnist:1.0
              command: [python]
              resources: {limits: {amd.com/gpu: 2}}
    Worker: *replica
    PS: *replica
"""


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the chart whose schema has all keys that `convert-tfjob` writes."""
    folder = tmp_path_factory.mktemp("chart") / CHART.name
    shutil.copytree(CHART, folder)
    schema = json.loads((folder / "values.schema.json").read_text())
    values = yaml.safe_load((folder / "values.yaml").read_text())
    for key, (default, rule) in RUN.items():
        part = schema["properties"].setdefault(
            "run", {"type": "object", "additionalProperties": False, "properties": {}}
        )
        if "properties" in part:
            part["properties"].setdefault(key, rule)
        values.setdefault("run", {}).setdefault(key, default)
    schema["properties"].setdefault("portName", {"type": "string"})
    values.setdefault("portName", "grpc")
    schema["definitions"]["role"]["properties"].setdefault("taskType", {"enum": ["chief", "master"]})
    (folder / "values.schema.json").write_text(json.dumps(schema))
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return folder


def render(manifest: str, chart: Path) -> Manifests:
    """Return the objects that Helm renders for a TFJob."""
    tfjob, others = parse_manifest(manifest, "job.yaml")
    job = convert_tfjob.convert(tfjob, {}, others)
    apis = ("scheduling.volcano.sh/v1beta1/PodGroup",)
    done = template(convert_tfjob.to_yaml(job), job.name, chart=chart, apis=apis)
    assert done.returncode == 0, done.stderr
    return Manifests(job.name, [item for item in parse(done.stdout) if item])


def missing(expected: Any, rendered: Any) -> list[str]:
    """Return what a part of the TFJob has and a part of the manifests has not. Lists and maps may have more items."""
    if isinstance(expected, dict) and isinstance(rendered, dict):
        return [f"{key}.{path}" for key, value in expected.items() for path in missing(value, rendered.get(key))]
    if isinstance(expected, list) and isinstance(rendered, list):
        return [f"{item}" for item in expected if all(missing(item, other) for other in rendered)]
    return [] if expected == rendered else [f"{expected!r} is not {rendered!r}"]


@pytest.mark.parametrize(
    ("role", "key"), [("chief", "Master"), ("worker", "Worker"), ("ps", "PS"), ("evaluator", "Evaluator")]
)
def test_a_role_has_the_pods_that_the_tfjob_specifies(chart: Path, role: str, key: str) -> None:
    replica = parse_manifest(EVERYTHING, "job.yaml")[0]["spec"]["tfReplicaSpecs"][key]
    manifests = render(EVERYTHING, chart)
    pod = manifests.pods()[role]
    specified = replica["template"]["spec"]
    container, sidecar = specified.pop("containers")
    volume, _claim = specified.pop("volumes")
    assert missing(specified, pod["spec"]) == []
    assert missing(replica["template"]["metadata"], pod["metadata"]) == []
    task, *others = pod["spec"]["containers"]
    assert others == [sidecar]
    command = container.pop("command") + container.pop("args")
    ports, mounts = container.pop("ports"), container.pop("volumeMounts")
    del container["name"]
    assert missing(container, task) == []
    assert task["args"] == command
    assert task["ports"][0]["containerPort"] == ports[0]["containerPort"]
    assert missing([{"name": f"tfjob-{volume['name']}", "configMap": {"name": "mine"}}], pod["spec"]["volumes"]) == []
    paths = {mount["mountPath"]: mount["name"] for mount in task["volumeMounts"]}
    assert {mount["mountPath"] for mount in mounts} <= set(paths)
    names = {item["name"]: item.get("persistentVolumeClaim") for item in pod["spec"]["volumes"]}
    assert names[paths["/runs"]] == {"claimName": "runs"}
    assert len(paths) == len(task["volumeMounts"])
    assert manifests.environment(role)["TASK_EXITS"] == "0-0:End 1-255:Restart"


def test_a_pod_has_the_labels_by_which_others_select_a_tfjobs_pods(chart: Path) -> None:
    pods = render(EVERYTHING, chart).pods()
    types = {"chief": "master", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}
    for role, replica_type in types.items():
        labels = pods[role]["metadata"]["labels"]
        own = {"job-name": "everything", "operator-name": "tfjob-controller", "replica-type": replica_type}
        assert missing({f"training.kubeflow.org/{key}": value for key, value in own.items()}, labels) == []
        assert labels.get("training.kubeflow.org/job-role") == ("master" if role == "chief" else None)


def test_other_objects_of_the_file_are_rendered_as_they_are(chart: Path) -> None:
    manifests = render(PLAIN + OTHERS, chart)
    expected = [item for item in yaml.safe_load_all(OTHERS) if item]
    assert [item for item in manifests.objects if item["metadata"]["name"] in ("notes", "runs")] == expected


def test_a_job_with_a_claim_gets_no_other_claim_and_no_pod_affinity(chart: Path) -> None:
    manifests = render(EVERYTHING, chart)
    assert manifests.of("PersistentVolumeClaim") == []
    assert manifests.of("Deployment") == [], "a TFJob has no TensorBoard"
    assert all(
        "podAffinity" not in pod["spec"]["affinity"] for pod in manifests.pods().values() if "affinity" in pod["spec"]
    )


@pytest.mark.parametrize("role", ["chief", "worker", "ps"])
def test_fields_that_the_job_leaves_out_get_none_of_the_charts_defaults(chart: Path, role: str) -> None:
    pod = render(PLAIN, chart).pods()[role]["spec"]
    (container,) = pod["containers"]
    assert "securityContext" not in {*pod, *container}
    assert container["resources"] == {"limits": {"amd.com/gpu": 2}}
    assert pod["terminationGracePeriodSeconds"] == 30
    assert container["image"] == "mnist:1.0"
    assert container["args"] == ["python"]
    if role != "ps":
        assert pod["tolerations"] == [{"key": "amd.com/gpu", "operator": "Exists"}]


def test_the_example_has_a_parameter_server_and_two_workers(chart: Path) -> None:
    manifests = render(EXAMPLE.read_text(), chart)
    assert {item["metadata"]["name"] for item in manifests.of("StatefulSet")} == {"digits-ps", "digits-worker"}
    (pod,) = {json.dumps(manifests.pods()[role]["spec"]["containers"][0]["args"]) for role in ("ps", "worker")}
    assert json.loads(pod) == ["trainer", "train", "--train_steps=300"]
    assert json.loads(manifests.get("ConfigMap/config data cluster.json") or "{}") == {
        "ps": ["digits-ps-0.digits-ps:2222"],
        "worker": ["digits-worker-0.digits-worker:2222", "digits-worker-1.digits-worker:2222"],
    }


def test_the_packaged_image_comes_from_the_registry_of_the_release(chart: Path) -> None:
    assert DEFAULTS["image"]["repository"] == PACKAGED
    tfjob, _ = parse_manifest(EXAMPLE.read_text(), "tfjob.yaml")
    values = {**convert_tfjob.convert(tfjob, {}).values, "image": {"registry": "registry.example.com/team"}}
    done = template(json.dumps(values), "digits", chart=chart)
    pods = Manifests("digits", [item for item in parse(done.stdout) if item]).pods()
    images = {pods[role]["spec"]["containers"][0]["image"] for role in ("worker", "ps")}
    policies = {pods[role]["spec"]["containers"][0]["imagePullPolicy"] for role in ("worker", "ps")}
    assert images == {"registry.example.com/team/distributed-tensorflow/trainer:0.1.0"}
    assert policies == {"IfNotPresent"}


def test_the_conversion_knows_every_volume_and_variable_that_the_chart_makes_for_a_task() -> None:
    manifests = render_chart(EVERY_VOLUME_AND_VARIABLE)
    roles = ("chief", "worker", "ps", "evaluator", "client")
    volumes = {item["name"] for role in roles for item in manifests.pods()[role]["spec"]["volumes"]}
    assert set(OWN_VOLUMES) == volumes
    variables = {name for role in roles for name in manifests.environment(role)}
    settings = {name for name in variables if name.startswith("TRAINER_")} | {"HOME"}  # a user may set these
    assert set(OWN_ENVIRONMENT) == variables - settings
