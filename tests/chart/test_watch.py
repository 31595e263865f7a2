"""`data.watch`: the supervisor gives each version of the data to the tasks and the stages, without more permissions."""

import json
import re
from typing import Any

import pytest

from tests.chart.chart import render
from tests.chart.test_refusals import STAGE, WATCH
from tests.chart.test_stages import run_of

VARIABLE = {
    "name": "DATA_VERSION",
    "valueFrom": {"configMapKeyRef": {"name": "mnist-ended", "key": "data_version"}},
}


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, "v$(DATA_VERSION)"),
        ({"trainingDirectory.subPath": "team/digits/"}, "team/digits/v$(DATA_VERSION)"),
        ({"trainingDirectory.subPath": "a$(B)"}, "a$$(B)/v$(DATA_VERSION)"),
    ],
)
def test_each_version_has_a_folder_of_its_own_which_tensorboard_shows_together(
    given: dict[str, Any], folder: str
) -> None:
    pods = render({**WATCH, **given, "stages.after": [STAGE]}).pods()
    (task,) = [each for each in pods["worker"]["spec"]["containers"][0]["volumeMounts"] if each["name"] == "training"]
    assert task == {"name": "training", "mountPath": "/training", "subPathExpr": folder}
    mounts = pods["tensorboard"]["spec"]["containers"][0]["volumeMounts"]
    (shown,) = [each for each in mounts if each["name"] == "training"]
    assert shown.get("subPath") == given.get("trainingDirectory.subPath")


def test_on_an_object_store_too() -> None:
    manifests = render({**WATCH, "trainingDirectory.uri": "s3://bucket/digits/"})
    arguments = manifests.pods()["worker"]["spec"]["containers"][0]["args"]
    assert "--train_dir=s3://bucket/digits/v$(DATA_VERSION)" in arguments
    assert "--data_version=$(DATA_VERSION)" in arguments


def test_tasks_and_stages_learn_the_version_and_wait_for_it() -> None:
    manifests = render({**WATCH, "stages.before": [STAGE]})
    environment = manifests.pods()["ps"]["spec"]["containers"][0]["env"]
    assert VARIABLE in environment
    values = {each["name"]: each.get("value") for each in environment}
    assert values["TASK_RUN"] == f"{run_of(manifests)['hash']}.v$(DATA_VERSION)"
    assert values["TASK_WAITS"] == "start"
    assert not manifests.of("Job")[1:], "only that of the supervisor: it creates the stages' Jobs"
    (stage,) = run_of(manifests)["stages"]["before"]
    assert stage["manifest"]["metadata"]["name"] == stage["job"] == "mnist-stage-infer"
    account = stage["manifest"]["spec"]["template"]["spec"]["serviceAccountName"]
    assert manifests["ServiceAccount/stage"]["metadata"]["name"] == account
    (container,) = stage["manifest"]["spec"]["template"]["spec"]["containers"]
    assert container["env"][0] == VARIABLE


def test_another_dataset_is_another_run_and_another_template_another_job() -> None:
    one, other = (run_of(render({**WATCH, "data.uri": uri})) for uri in ("s3://b/one.lance", "s3://b/other.lance"))
    assert one["definition"] != other["definition"]
    assert one["hash"] != other["hash"]
    stages = [{**STAGE, "resources": {"requests": {"cpu": cpu}}} for cpu in ("1", "2")]
    (first,), (second,) = (run_of(render({**WATCH, "stages.before": [stage]}))["stages"]["before"] for stage in stages)
    assert (first["job"], first["digest"]) == (second["job"], second["digest"])
    assert first["template"] != second["template"]


def test_a_failed_run_is_noticed_although_the_supervisor_goes_on() -> None:
    values = {"metrics.enabled": True, "metrics.prometheusRule.enabled": True}
    groups = "PrometheusRule/run spec groups"
    (usual, *_), (watched, *_) = (render(given).get(groups)[0]["rules"] for given in (values, {**WATCH, **values}))
    assert "kube_job_failed" in usual["expr"]
    assert "trainer_run_state{" in watched["expr"]
    assert 'state="Failed"' in watched["expr"]


def test_the_supervisor_reads_the_data_with_the_credentials_of_the_tasks() -> None:
    values = {
        "common.envFrom": [{"secretRef": {"name": "bucket"}}],
        "common.env": [{"name": "A", "value": "b"}],
    }
    (container,) = render({**WATCH, **values}).pods()["supervisor"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert {"name": "A", "value": "b"} in container["env"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "data"]
    assert mount["readOnly"] is True
    (container,) = render({**WATCH, **values, "data.watch.enabled": False}).pods()["supervisor"]["spec"]["containers"]
    assert "envFrom" not in container
    assert "data" not in {each["name"] for each in container["volumeMounts"]}


def test_it_needs_no_more_permissions_except_for_the_jobs_of_stages() -> None:
    def rules(**more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = render({**WATCH, **more})["Role/supervisor"]["rules"]
        return found

    def named(rules: list[dict[str, Any]]) -> str:
        return re.sub(r"-[0-9a-f]{8}\b", "", json.dumps(rules))

    assert named(rules()) == named(rules(**{"data.watch.enabled": False}))
    added = rules(**{"stages.after": [STAGE]})
    jobs = [rule for rule in added if rule["resources"] == ["jobs"] and {"create", "delete"} & {*rule["verbs"]}]
    assert [rule["verbs"] for rule in jobs] == [["create"], ["delete"]]
    assert len(jobs[1]["resourceNames"]) == 1


def test_tensorboard_is_ended_by_the_supervisor_which_does_not_end() -> None:
    values = {"tensorboard.ttlSecondsAfterFinished": 60}
    assert len(render(values).of("Job")) == 2
    assert len(render({**WATCH, **values}).of("Job")) == 1
