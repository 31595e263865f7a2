"""MLflow: the stage that publishes the run, and when an upgrade runs it again."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.chart.chart import CHART, Manifests, Object, refusal, render
from tests.chart.test_stages import VALUES as STAGES
from tests.chart.test_stages import facts, run_of

URI = "http://mlflow.tools:5000"
PUBLISHED = {"mlflow.trackingUri": URI}
RETRIES_IN_AN_HOUR = 15
"""Kubernetes waits 10 s, 20 s, … 320 s, and then 6 minutes each time: 15 pods more are an hour."""


def container(manifests: Manifests) -> Object:
    """The container of the stage that publishes the run."""
    return dict(manifests.get("Job/stage-publish spec template spec containers stage"))


def options(manifests: Manifests, name: str) -> list[str]:
    """The values of an option of the stage's command."""
    words = container(manifests)["args"]
    joined = [word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")]
    return joined + [value for word, value in itertools.pairwise(words) if word == name]


def again(before: dict[str, Any], after: dict[str, Any], chart: Path = CHART) -> set[str]:
    """The stages that an upgrade from some values to others runs again."""
    one, other = facts(render(before), "digest"), facts(render(after, chart=chart), "digest")
    return {name for name, digest in other.items() if one.get(name) != digest}


def test_nothing_is_published_by_default() -> None:
    manifests = render()
    assert not [
        item for item in manifests if "mlflow" in item["metadata"]["name"] or "-publish" in item["metadata"]["name"]
    ]
    assert "stages" not in run_of(manifests)


def test_the_last_stage_publishes_the_training_directory() -> None:
    manifests = render({**STAGES, **PUBLISHED}, release="digits", namespace="ml")
    assert list(facts(manifests, "job")) == ["fetch", "prepare", "evaluate", "infer", "publish"]
    assert [stage["name"] for stage in run_of(manifests)["stages"]["after"]][-1] == "publish"
    assert container(manifests)["args"][:3] == ["models", "publish", "/training"]
    assert options(manifests, "--tracking_uri") == [URI]
    assert options(manifests, "--experiment") == ["digits"]
    assert options(manifests, "--model") == []
    tags = ["image=distributed-tensorflow/trainer:0.1.0", "release=digits", "namespace=ml"]
    assert options(manifests, "--tag") == tags
    mounts = {mount["name"]: mount for mount in container(manifests)["volumeMounts"]}
    assert set(mounts) == {"scratch", "training"}
    assert not mounts["training"].get("readOnly"), "the command writes mlflow.json"


OWN: dict[str, Any] = {
    **PUBLISHED,
    "common.image": {"registry": "example.com", "repository": "mine", "digest": f"sha256:{'a' * 64}"},
    "common.command": ["python", "/app/train.py"],
    "common.args": ['--text={{ .Release.Name }} {{ "{{" }} <&>', "--password=$(PASSWORD)", "$$5"],
    "common.env": [{"name": "PASSWORD", "value": "secret"}],
    "chief.replicas": 1,
}


def test_a_program_of_ones_own_is_published_with_its_image() -> None:
    manifests = render({**OWN, "trainingDirectory.subPath": "first"}, release="digits")
    assert container(manifests)["args"][:3] == ["models", "publish", "/training"]
    assert "--done" in container(manifests)["args"]
    assert options(manifests, "--tag")[0] == f"image=example.com/mine@sha256:{'a' * 64}"
    assert options(manifests, "--model") == ["digits"], "the program has no name"
    assert options(render({**OWN, "mlflow.model": "letters"}), "--model") == ["letters"]
    assert "password" not in str(container(manifests)["args"]), "a command line may have a secret"
    mounts = {mount["name"]: mount for mount in container(manifests)["volumeMounts"]}
    chief = manifests.pods()["chief"]["spec"]["containers"][0]["volumeMounts"]
    assert mounts["training"] in chief, "both write there"


@pytest.mark.parametrize(
    ("values", "role"),
    [
        ({}, "worker"),
        ({"chief.replicas": 1}, "worker"),
        ({"chief.replicas": 1, "worker.replicas": 0}, "chief"),
        ({key: value for key, value in OWN.items() if key != "common.env"}, "chief"),
    ],
)
def test_the_supervisor_tells_the_digest_of_the_image(values: dict[str, Any], role: str) -> None:
    """It is in the notes, and it may be absent: an earlier supervisor has not written it."""
    manifests = render({**PUBLISHED, **values})
    notes = manifests["ConfigMap/run"]["metadata"]["name"]
    variable = container(manifests)["env"][-1]
    assert variable["name"] == "IMAGE_DIGEST"
    assert variable["valueFrom"] == {"configMapKeyRef": {"name": notes, "key": f"image.{role}", "optional": True}}


def test_the_digest_of_the_image_is_not_that_of_the_users_variables() -> None:
    users = [{"name": "IMAGE_DIGEST", "value": "sha256:0"}, {"name": "PROXY", "value": "http://proxy"}]
    variables = container(render({**PUBLISHED, "common.env": users}))["env"]
    assert [variable["name"] for variable in variables] == ["HOME", "PROXY", "IMAGE_DIGEST"]
    assert "value" not in variables[-1]


def test_the_packaged_trainer_says_itself_that_it_is_done() -> None:
    manifests = render(PUBLISHED)
    assert "--done" not in container(manifests)["args"]


def test_the_leader_is_the_program_that_is_published() -> None:
    client = {"client.replicas": 1, "client.command": ["ask"], "client.args": []}
    manifests = render({**OWN, **client, "client.image": {"registry": "", "repository": "client", "digest": ""}})
    assert options(manifests, "--tag")[0] == "image=client:latest"


def test_the_supervisor_may_run_it() -> None:
    manifests = render(PUBLISHED)
    job = manifests["Job/stage-publish"]["metadata"]["name"]
    assert facts(manifests, "job") == {"publish": job}
    rules = manifests["Role/supervisor"]["rules"]
    assert [job in rule.get("resourceNames", []) for rule in rules if "jobs" in rule["resources"]] == [False, True]
    assert ["create"] in [rule["verbs"] for rule in rules if rule["resources"] == ["serviceaccounts"]]
    shared = render({**PUBLISHED, "trainingDirectory.accessModes": ["ReadWriteMany"]})["Role/supervisor"]["rules"]
    assert ["create"] in [rule["verbs"] for rule in shared if rule["resources"] == ["serviceaccounts"]]


def test_it_is_repeated_while_mlflow_is_away_for_more_than_an_hour() -> None:
    spec = render(PUBLISHED)["Job/stage-publish"]["spec"]
    assert spec["backoffLimit"] > RETRIES_IN_AN_HOUR
    assert "activeDeadlineSeconds" not in spec
    assert 138 not in spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]


def test_a_training_directory_on_an_object_store_is_published_with_the_credentials_of_both() -> None:
    values = {
        **PUBLISHED,
        "trainingDirectory.uri": "s3://bucket/run",
        "common.envFrom": [{"secretRef": {"name": "s3"}}],
        "mlflow.envFrom": [{"secretRef": {"name": "mlflow"}}],
    }
    manifests = render(values)
    assert container(manifests)["args"][2] == "s3://bucket/run"
    assert [source["secretRef"]["name"] for source in container(manifests)["envFrom"]] == ["s3", "mlflow"]
    assert {mount["name"] for mount in container(manifests)["volumeMounts"]} == {"scratch"}


@pytest.mark.parametrize(
    ("values", "stage", "tag"),
    [
        ({}, "distributed-tensorflow/trainer:0.1.0-cpu-mlflow", "distributed-tensorflow/trainer:0.1.0"),
        (
            {"image.registry": "example.com/team", "worker.gpus": 1},
            "example.com/team/distributed-tensorflow/trainer:0.1.0-cpu-mlflow",
            "example.com/team/distributed-tensorflow/trainer:0.1.0-gpu",
        ),
        (
            {"image.repository": "mine", "image.digest": f"sha256:{'a' * 64}"},
            "distributed-tensorflow/trainer:0.1.0-cpu-mlflow",
            f"mine@sha256:{'a' * 64}",
        ),
        (
            {"worker.replicas": 0, "chief.replicas": 1, "chief.image.tag": "chief"},
            "distributed-tensorflow/trainer:0.1.0-cpu-mlflow",
            "distributed-tensorflow/trainer:chief",
        ),
        (
            {"mlflow.image": {"repository": "mine", "digest": f"sha256:{'b' * 64}"}, "image.registry": "example.com"},
            f"mine@sha256:{'b' * 64}",
            "example.com/distributed-tensorflow/trainer:0.1.0",
        ),
    ],
)
def test_its_image_has_the_client_and_its_tag_names_the_image_that_trains(
    values: dict[str, Any], stage: str, tag: str
) -> None:
    manifests = render({**PUBLISHED, **values})
    assert container(manifests)["image"] == stage
    assert options(manifests, "--tag")[0] == f"image={tag}"


def test_the_packaged_image_is_not_pulled_without_a_registry() -> None:
    policies = [
        container(render({**PUBLISHED, **values}))["imagePullPolicy"]
        for values in ({}, {"image.registry": "example.com"}, {"mlflow.image": {"pullPolicy": "Always"}})
    ]
    assert policies == ["Never", "IfNotPresent", "Always"]


def test_text_with_braces_is_no_template() -> None:
    experiment = '{{ .Release.Name }} {{ "{{" }}'
    assert options(render({**PUBLISHED, "mlflow.experiment": experiment}), "--experiment") == [experiment]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"mlflow.experiment": "digits"}, {"publish"}),
        ({"mlflow.model": "digits"}, {"publish"}),
        ({"mlflow.trackingUri": "http://other:5000"}, {"publish"}),
        ({"mlflow.image": {"tag": "9"}}, {"publish"}),
        ({"mlflow.envFrom": [{"secretRef": {"name": "mlflow"}}]}, {"publish"}),
        ({"trainingDirectory.subPath": "second"}, {"fetch", "prepare", "evaluate", "infer", "publish"}),
        ({"train.train_steps": 7}, {"evaluate", "infer", "publish"}),
        ({"stages.after": [STAGES["stages.after"][0], {"name": "infer", "args": ["other"]}]}, {"infer"}),
        ({"worker.image": {"tag": "9"}}, {"evaluate", "infer", "publish"}),
        ({"mlflow.resources.requests.cpu": "1"}, set()),
        ({"mlflow.image": {"pullPolicy": "Always"}}, set()),
    ],
)
def test_what_an_upgrade_runs_again(values: dict[str, Any], expected: set[str]) -> None:
    before = {**STAGES, **PUBLISHED}
    assert again(before, {**before, **values}) == expected


def test_another_attempt_publishes_what_a_program_of_ones_own_trains_again() -> None:
    assert again(OWN, {**OWN, "run.attempt": 2}) == {"publish"}
    before = {**STAGES, **PUBLISHED}
    assert again(before, {**before, "run.attempt": 2}) == set(), "the directory of the packaged trainer has the result"


def test_to_begin_to_publish_runs_only_the_stage_that_publishes() -> None:
    before, after = render(STAGES), render({**STAGES, **PUBLISHED})
    for key in ("hash", "definition"):
        assert run_of(before)[key] == run_of(after)[key]
    assert again(STAGES, {**STAGES, **PUBLISHED}) == {"publish"}


def test_a_new_version_of_the_chart_does_not_publish_an_old_run_again(tmp_path: Path) -> None:
    newer = tmp_path / "chart"
    shutil.copytree(CHART, newer)
    file = newer / "Chart.yaml"
    file.write_text(file.read_text().replace("appVersion: ", "appVersion: 9"))
    assert options(render(PUBLISHED, chart=newer), "--tag")[0] != options(render(PUBLISHED), "--tag")[0]
    assert again(PUBLISHED, PUBLISHED, newer) == set()


def test_it_runs_in_each_run_after_a_stage_that_always_runs() -> None:
    always = {**PUBLISHED, "stages.after": [{**STAGES["stages.after"][0], "always": True}]}
    jobs = [facts(render({**always, "ps.replicas": number}), "job")["publish"] for number in (1, 2)]
    assert jobs[0] != jobs[1]


def test_the_directory_must_exist() -> None:
    values = {**PUBLISHED, "trainingDirectory.enabled": False, "tensorboard.enabled": False}
    assert ": mlflow.trackingUri: " in refusal(values)


def test_a_refused_address_shows_no_password() -> None:
    for uri in ("https://me:secret@mlflow", "me:secret@mlflow:5000", "https://me:sec/ret@mlflow"):
        error = refusal({"mlflow.trackingUri": uri})
        assert ": mlflow.trackingUri: an address such as" in error
        assert "secret" not in error.replace("/", "")


def test_a_stage_may_be_called_publish_if_nothing_is_published() -> None:
    own = {"stages.after": [{"name": "publish", "command": ["publish"]}]}
    assert list(facts(render(own), "job")) == ["publish"]
