"""The stages: their Jobs, what gives them another digest or another Job, and what the supervisor may do with them."""

import json
from typing import Any

import pytest
import yaml

import trainer
from tests.chart.chart import CHART, Manifests, render

VALUES: dict[str, Any] = {
    "data.enabled": True,
    "stages.before": [
        {"name": "fetch", "image": {"repository": "mine"}, "command": ["fetch"], "makes": ["/data/raw"]},
        {"name": "prepare", "args": ["data", "import", "/data/raw", "/data/x.lance"], "needs": ["/data/raw"]},
    ],
    "stages.after": [
        {"name": "evaluate", "args": ["report", "/training"], "needs": ["/training"]},
        {"name": "infer", "args": ["models", "predict", "/training"]},
    ],
}
NAMES = ["fetch", "prepare", "evaluate", "infer"]


def run_of(manifests: Manifests) -> dict[str, Any]:
    return dict(json.loads(manifests["ConfigMap/supervisor"]["data"]["run.json"]))


def facts(manifests: Manifests, key: str) -> dict[str, Any]:
    """A fact of each stage, such as its digest, by its name."""
    stages = run_of(manifests)["stages"]
    return {stage["name"]: stage[key] for stage in [*stages["before"], *stages["after"]]}


def with_stage(name: str, **more: Any) -> dict[str, Any]:
    """The values with more keys of a stage."""
    return {
        key: [stage | more if stage["name"] == name else stage for stage in value]
        if key.startswith("stages.")
        else value
        for key, value in VALUES.items()
    }


def changed(key: str, values: dict[str, Any], before: dict[str, Any] = VALUES) -> list[str]:
    """The stages that have another digest, or another Job, with other values."""
    one, other = facts(render(before), key), facts(render(values), key)
    return [name for name in NAMES if one[name] != other[name]]


def test_each_stage_is_a_job_that_the_supervisor_may_patch() -> None:
    manifests = render(VALUES)
    jobs = facts(manifests, "job")
    assert list(jobs) == NAMES
    for name, job in jobs.items():
        assert manifests[f"Job/stage-{name}"]["metadata"]["name"] == job
    rules = manifests["Role/supervisor"]["rules"]
    (own,) = (rule for rule in rules if rule["apiGroups"] == ["batch"] and "patch" in rule["verbs"])
    assert own["resourceNames"] == [run_of(manifests)["job"], *jobs.values()]
    assert next(rule["verbs"] for rule in rules if rule["resources"] == ["serviceaccounts"]) == ["create"]


def test_a_stage_has_an_account_that_the_chart_does_not_make_and_no_suspend() -> None:
    manifests = render(VALUES)
    job = manifests["Job/stage-infer"]
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert account == job["metadata"]["name"]
    assert account not in {each["metadata"]["name"] for each in manifests.of("ServiceAccount")}
    assert "suspend" not in job["spec"]


@pytest.mark.parametrize(
    ("key", "value", "account"),
    [
        (
            "stages.serviceAccount.annotations",
            {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"},
            "mnist-stage",
        ),
        ("stages.serviceAccount.name", "with-identity", "with-identity"),
    ],
)
def test_stages_with_a_cloud_identity_have_one_account_and_jobs_of_the_supervisor(
    key: str, value: Any, account: str
) -> None:
    """A Job of the chart would start at once, as its account exists. A cloud binds an identity to a fixed name."""
    manifests = render({**VALUES, key: value, "mlflow.trackingUri": "http://mlflow:5000"})
    assert not [job for job in manifests.of("Job") if "-stage-" in job["metadata"]["name"]]
    made = facts(manifests, "manifest")
    assert list(made) == [*NAMES, "publish"]
    for job in made.values():
        assert job["spec"]["template"]["spec"]["serviceAccountName"] == account
    found = manifests.get("ServiceAccount/stage metadata annotations")
    assert found == (value if account == "mnist-stage" else None)
    rules = manifests["Role/supervisor"]["rules"]
    assert ["create"] in [rule["verbs"] for rule in rules if rule["resources"] == ["jobs"]]
    assert [rule["verbs"] for rule in rules if rule["resources"] == ["serviceaccounts"]] == [["create"], ["patch"]]


def test_what_the_supervisor_creates_has_the_common_labels_and_annotations() -> None:
    common = {"team": "{{ .Release.Name }}-team"}
    values = {**VALUES, "commonLabels": common, "commonAnnotations": common}
    run = run_of(render(values))
    assert run["labels"]["team"] == run["annotations"]["team"] == "mnist-team"
    assert run["labels"]["app.kubernetes.io/instance"] == "mnist"
    (first, *_) = run_of(render({**values, "stages.serviceAccount.name": "mine"}))["stages"]["before"]
    metadata = first["manifest"]["metadata"]
    assert metadata["labels"]["team"] == metadata["annotations"]["team"] == "mnist-team"


def test_a_stage_runs_the_packaged_image_or_its_own_with_the_volumes_that_exist() -> None:
    manifests = render(VALUES)
    fetch, prepare = (manifests[f"Job/stage-{name}"]["spec"]["template"]["spec"] for name in ("fetch", "prepare"))
    assert fetch["containers"][0]["image"] == "mine:latest"
    assert fetch["containers"][0]["command"] == ["fetch"]
    container = prepare["containers"][0]
    assert container["image"] == "distributed-tensorflow/trainer:0.1.0"
    assert container["args"][:2] == ["data", "import"]
    assert "command" not in container
    mounts = {mount["name"]: mount for mount in container["volumeMounts"] if mount["name"] != "scratch"}
    assert {name: mount["mountPath"] for name, mount in mounts.items()} == {"training": "/training", "data": "/data"}
    none = render(with_stage("prepare", volumes=[]))["Job/stage-prepare"]["spec"]["template"]["spec"]
    assert [volume["name"] for volume in none["volumes"]] == ["scratch"]
    assert "affinity" not in none


def test_a_stage_can_write_data_that_tasks_cannot() -> None:
    manifests = render({**VALUES, "data.readOnly": True})
    stage, worker = (manifests.pods()[name]["spec"]["containers"][0]["volumeMounts"] for name in ("stage", "worker"))
    assert [mount.get("readOnly") for mount in stage if mount["name"] == "data"] == [None]
    assert [mount.get("readOnly") for mount in worker if mount["name"] == "data"] == [True]


def test_a_stage_moves_to_a_gpu_by_one_key() -> None:
    pod = render(with_stage("infer", gpus=1))["Job/stage-infer"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "distributed-tensorflow/trainer:0.1.0-gpu"
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["tolerations"]


def test_a_stage_has_the_settings_of_common_unless_it_has_its_own() -> None:
    common = {"common.nodeSelector": {"disk": "fast"}, "common.envFrom": [{"secretRef": {"name": "s3"}}]}
    pods = render({**with_stage("infer", nodeSelector={"disk": "slow"}), **common})
    for name, disk in (("evaluate", "fast"), ("infer", "slow")):
        pod = pods[f"Job/stage-{name}"]["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == {"disk": disk}
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "s3"}}]


def test_the_limits_of_a_stage_are_those_of_its_job() -> None:
    assert render(VALUES)["Job/stage-infer"]["spec"]["backoffLimit"] == 6
    job = render(with_stage("infer", backoffLimit=0, activeDeadlineSeconds=60))["Job/stage-infer"]["spec"]
    assert (job["backoffLimit"], job["activeDeadlineSeconds"]) == (0, 60)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (with_stage("fetch", env=[{"name": "A", "value": "1"}]), NAMES),
        (with_stage("evaluate", args=["report", "/training", "--output=-"]), ["evaluate", "infer"]),
        (with_stage("infer", image={"tag": "2"}), ["infer"]),
        ({**VALUES, "image.tag": "2"}, NAMES),
        ({**VALUES, "train.train_steps": 7}, ["evaluate", "infer"]),
        ({**VALUES, "data.existingClaim": "other"}, NAMES),
        (with_stage("infer", resources={"requests": {"cpu": 2}}), []),
        ({**VALUES, "run.attempt": 2}, []),
        ({**VALUES, "run.backoffLimit": 1}, []),
        ({**VALUES, "worker.nodeSelector": {"a": "b"}}, []),
    ],
)
def test_what_determines_a_stage_changes_its_digest_and_those_after_it(
    values: dict[str, Any], expected: list[str]
) -> None:
    assert changed("digest", values) == expected
    assert set(changed("job", values)) >= set(expected)


def test_stages_before_the_training_belong_to_the_run_and_those_after_it_do_not() -> None:
    same = run_of(render(VALUES))
    for name, is_same in (("prepare", False), ("infer", True)):
        other = run_of(render(with_stage(name, env=[{"name": "A", "value": "1"}])))
        assert ((other["hash"], other["definition"]) == (same["hash"], same["definition"])) == is_same


def test_without_stages_a_run_is_what_it_was() -> None:
    run = run_of(render())
    assert "stages" not in run
    after = run_of(render({"stages.after": VALUES["stages.after"]}))
    assert (after["hash"], after["definition"]) == (run["hash"], run["definition"])


def test_another_attempt_gets_new_jobs_because_a_job_runs_once() -> None:
    assert changed("job", {**VALUES, "run.attempt": 2}) == NAMES
    assert changed("job", {**VALUES, "run.backoffLimit": 1}) == []


def test_a_stage_that_always_runs_has_another_job_in_each_run_and_so_have_those_after_it() -> None:
    always = with_stage("prepare", always=True)
    assert changed("digest", always) == []
    assert changed("job", {**always, "ps.args": [], "worker.replicas": 3}, always) == NAMES[1:]
    assert facts(render(always), "always") == {"fetch": False, "prepare": True, "evaluate": False, "infer": False}


def test_the_example_has_the_image_of_this_version_and_one_name_for_its_data_and_its_training() -> None:
    values = yaml.safe_load((CHART.parents[1] / "examples" / "values-pipeline.yaml").read_text())
    assert values["image"]["tag"] == f"{trainer.__version__}-data"
    other = json.loads(json.dumps(values).replace('"first"', '"second"'))
    one, two = render(values), render(other)
    assert one.get("ConfigMap/config data trainer.yaml data_version") == "first"
    assert facts(one, "digest").keys() == {"fetch", "prepare", "statistics", "evaluate", "infer", "publish"}
    before, after = facts(one, "digest"), facts(two, "digest")
    assert not [name for name in before if before[name] == after[name]]
    assert run_of(one)["hash"] != run_of(two)["hash"]
