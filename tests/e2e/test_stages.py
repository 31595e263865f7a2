"""Stages on a real cluster: their order, what an upgrade runs again, a stage that fails, and the example's pipeline."""

import copy
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.paths import KUBECONFIG
from tests.e2e.conftest import cluster_tool
from tests.e2e.releases import ROOT, Release, wait
from tests.processes.mlflow_servers import MlflowApi

PIPELINE: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "values-pipeline.yaml").read_text())
CHEAP = {"requests": {"cpu": "10m", "memory": "32Mi"}}


def a_stage(name: str, program: str, **more: Any) -> dict[str, Any]:
    """A stage that runs a shell program in the packaged image."""
    return {"name": name, "command": ["sh", "-c", program], "resources": CHEAP, **more}


def values_with(*after: dict[str, Any], before: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "train": {"train_steps": 200},
        "worker": {"replicas": 1},
        "tensorboard": {"enabled": False},
        "stages": {"before": [*before], "after": [*after]},
    }


def states(release: Release) -> dict[str, str]:
    """The state of each stage, by name."""
    return {name: each["state"] for name, each in release.notes()["stages"].items()}


def stage_log(release: Release, name: str) -> str:
    """The log of a stage's newest Job; empty if it has no pod."""
    jobs = [job["metadata"] for job in release.get("jobs", labelSelector="app.kubernetes.io/component=stage")["items"]]
    mine = [job for job in jobs if f"-stage-{name}-" in f"{job['name']}-"]
    newest = max(mine, key=lambda job: str(job["creationTimestamp"]))["name"]
    return release.try_kubectl("logs", f"job/{newest}").stdout


def upgrade_to_end(release: Release, values: dict[str, Any], *words: str, seconds: float = 120) -> str:
    """Upgrade the release, wait until another supervisor has brought the run to success, and return its log."""
    before = release.notes()["supervisor"]
    release.upgrade(values, *words)

    def is_over() -> bool:
        notes = release.notes()
        return bool(notes["supervisor"] != before and notes["state"] == "Succeeded")

    wait(is_over, seconds, release.describe)
    return release.finish()


def test_stages_run_in_order_and_an_upgrade_runs_only_what_has_changed(release: Release) -> None:
    prepare = a_stage("prepare", "test ! -e /training/run.json && date +%s > /training/prepared")
    evaluate = a_stage("evaluate", "test -s /training/result.json && cat /training/prepared")
    infer = a_stage("infer", 'echo "predicts $NUMBER"', env=[{"name": "NUMBER", "value": "1"}])
    values = values_with(evaluate, infer, before=(prepare,)) | {"commonLabels": {"team": "a"}}
    release.install(values)
    log = release.finish()
    accounts = release.get("serviceaccounts", labelSelector="team=a")["items"]
    assert [each for each in accounts if "-stage-prepare-" in each["metadata"]["name"]], "the supervisor has created it"
    lines = ["stage prepare starts", "stage prepare is done", "starting 1 ps, 1 worker", "the training succeeded"]
    lines += ["stage evaluate starts", "stage evaluate is done", "stage infer starts", "stage infer is done"]
    places = [log.find(line) for line in lines]
    assert places == sorted(places), log
    assert -1 not in places, log
    assert states(release) == {"prepare": "done", "evaluate": "done", "infer": "done"}
    assert stage_log(release, "infer") == "predicts 1\n"
    prepared = stage_log(release, "evaluate")

    changed = copy.deepcopy(values)
    changed["stages"]["after"][0]["resources"] = {"requests": {"cpu": "20m"}}  # another Job, and nothing to do for it
    changed["stages"]["after"][1]["env"][0]["value"] = "2"
    log = upgrade_to_end(release, changed, "--wait", "--wait-for-jobs", "--timeout=3m")
    assert "stage evaluate is skipped" in log
    assert "stage infer is done" in log
    assert "stage prepare" not in log
    assert "starting 1 ps" not in log
    assert stage_log(release, "infer") == "predicts 2\n"

    release.upgrade(changed)  # nothing has changed
    assert release.finish() == log

    changed["train"]["train_steps"] = 300  # the training goes on, and what follows it runs again
    log = upgrade_to_end(release, changed)
    assert "stage prepare is skipped" in log
    assert "stage evaluate is done" in log
    assert stage_log(release, "evaluate") == prepared


def test_a_stage_that_fails_ends_the_run_with_its_log_and_another_attempt_goes_on(release: Release) -> None:
    """With an identity, so that the supervisor creates the Jobs."""
    identity = {"serviceAccount": {"annotations": {"example.com/identity": "training"}}}
    count = a_stage("count", "echo x >> /training/count; wc -l < /training/count")
    failing = a_stage("infer", "echo the folder is absent; exit 2")
    values = values_with(count, failing, a_stage("last", "true"))
    values["stages"] |= identity
    release.install(values)
    log = release.finish("failed")
    assert "| infer: the folder is absent" in log
    assert "the run failed: stage infer failed with code 2" in log.splitlines()[-1]
    assert states(release) == {"count": "done", "infer": "failed", "last": "waiting"}
    assert set(release.scales().values()) == {0}

    corrected = values_with(count, a_stage("infer", "echo predicts"), a_stage("last", "true"))
    corrected["stages"] |= identity
    log = upgrade_to_end(release, corrected)
    assert "only the stages after it are left" in log
    assert stage_log(release, "count") == "1\n"
    (account,) = (each for each in release.get("serviceaccounts")["items"] if each["metadata"]["name"] == "mnist-stage")
    assert account["metadata"]["annotations"]["example.com/identity"] == "training"


def test_a_stage_before_the_training_that_fails_ends_the_run_before_it_trains(release: Release) -> None:
    release.install(values_with(before=(a_stage("prepare", "echo no data; exit 3"),)))
    log = release.finish("failed")
    assert "| prepare: no data" in log
    assert "stage prepare failed with code 3" in log.splitlines()[-1]
    assert "starting 1 ps" not in log


@pytest.fixture
def data_image(packaged_images: None, kubeconfig: Path) -> None:
    """Load the packaged image with Lance onto the throw-away cluster's node."""
    if kubeconfig == KUBECONFIG:
        image = f"distributed-tensorflow/trainer:{PIPELINE['image']['tag']}"
        if cluster_tool("load", image).returncode:
            pytest.skip(f"the Docker engine has no {image}: `make build-images DATA=yes` builds it")


@pytest.mark.long  # CI does not build the image; `make e2e-long` does
@pytest.mark.timeout(1500)
def test_the_pipeline_of_the_example(
    release: Release, data_image: None, mlflow_server: MlflowApi, tmp_path: Path
) -> None:
    release.install(PIPELINE)
    finished = ["wait", "--for=condition=complete", "job", "--timeout=10m"]
    selector = "--selector=app.kubernetes.io/instance=mnist,app.kubernetes.io/component=supervisor"
    done = release.try_kubectl(*finished, selector)
    assert done.returncode == 0, release.describe()
    assert set(states(release).values()) == {"done"}
    assert "1,797 new rows" in stage_log(release, "prepare")
    assert predictions(release, "predictions") > 0.9

    changed = copy.deepcopy(PIPELINE)
    changed["stages"]["after"][1]["args"][-1] = "/training/others"
    log = upgrade_to_end(release, changed)
    assert "stage evaluate is skipped" in log
    assert "stage publish is skipped" in log
    assert "starting 1 ps" not in log
    assert predictions(release, "others") > 0.9

    log = upgrade_to_end(release, json.loads(json.dumps(changed).replace('"first"', '"second"')), seconds=600)
    order = ["prepare is done", "starting 1 ps", "evaluate is done", "infer is done", "publish is done"]
    assert all(line in log for line in order), log
    versions = mlflow_server.versions("digits")
    assert {each["version"]: each["tags"]["dataset_version"] for each in versions} == {"1": "1", "2": "2"}
    words = ["models", "compare", "1", "2", "--data", "digits", "--json"]
    compared = subprocess.run(
        [sys.executable, "-m", "trainer", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MLFLOW_TRACKING_URI": mlflow_server.uri},
    )
    assert compared.returncode == 0, compared.stderr
    assert min(model["accuracy"] for model in json.loads(compared.stdout)["models"]) > 0.9


def predictions(release: Release, folder: str) -> float:
    """The share of the predicted images that are right, by the names of their folders."""
    place = f"/training/{folder}"
    words = ["exec", "deployment/mnist-tensorboard", "--", "cat", f"{place}/predictions.csv"]
    rows = list(csv.DictReader(release.kubectl(*words).splitlines()))
    assert len(rows) == 360
    assert release.kubectl("exec", "deployment/mnist-tensorboard", "--", "ls", f"{place}/predictions.parquet")
    right = [row["prediction"] == row["file"].partition("/")[0] for row in rows]
    return right.count(True) / len(right)
