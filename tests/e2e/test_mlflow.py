"""A release beside an MLflow server on a real cluster: each run becomes a run of MLflow, and its model a version."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainer
from tests.e2e.releases import Release, wait
from tests.e2e.test_stages import stage_log, states, upgrade_to_end
from tests.processes.mlflow_servers import MlflowApi, pairs

VALUES: dict[str, Any] = {
    "train": {"train_steps": 200, "report_steps": 20, "seed": 1},
    "worker": {"replicas": 1},
    "tensorboard": {"enabled": False},
    "trainingDirectory": {"subPath": "first"},
    "mlflow": {"model": "digits", "trackingUri": "http://mlflow:5000"},
}

pytestmark = pytest.mark.long  # CI does not build the image; `make e2e-long` does


@pytest.mark.timeout(1500)
def test_each_run_of_a_release_becomes_a_version_of_the_model(
    release: Release, mlflow_server: MlflowApi, tmp_path: Path
) -> None:
    server = mlflow_server
    release.install(VALUES)
    finished = ["wait", "--for=condition=complete", "job", "--timeout=10m"]
    selector = "--selector=app.kubernetes.io/instance=mnist,app.kubernetes.io/component=supervisor"
    done = release.try_kubectl(*finished, selector)
    assert done.returncode == 0, f"{stage_log(release, 'publish')}\n{release.describe()}"
    assert states(release) == {"publish": "done"}
    assert "digits version 1" in stage_log(release, "publish")

    expected = {
        "image": f"distributed-tensorflow/trainer:{trainer.__version__}",
        "release": "mnist",
        "namespace": release.namespace,
        "dataset": "digits",
    }
    (version,) = server.versions("digits")
    assert version["version"] == "1"
    assert version["tags"].items() >= expected.items()
    assert re.fullmatch("sha256:[0-9a-f]{64}", version["tags"]["image_digest"])
    (run,) = server.runs()
    assert run["info"]["status"] == "FINISHED"
    assert pairs(run["data"]["tags"]).items() >= expected.items()
    assert pairs(run["data"]["tags"])["image_digest"] == version["tags"]["image_digest"]
    assert pairs(run["data"]["params"])["seed"] == "1"
    experiment = server.get("experiments/get-by-name", experiment_name="mnist")["experiment"]
    assert run["info"]["experiment_id"] == experiment["experiment_id"]

    other = copy.deepcopy(VALUES)
    other["train"]["seed"] = 2
    other["trainingDirectory"]["subPath"] = "second"
    log = upgrade_to_end(release, other, seconds=600)
    assert "stage publish is done" in log
    assert sorted(each["version"] for each in server.versions("digits")) == ["1", "2"]
    assert sorted(pairs(each["data"]["params"])["seed"] for each in server.runs()) == ["1", "2"]

    other["mlflow"]["experiment"] = "others"  # the training is not repeated, and the model is a version already
    log = upgrade_to_end(release, other, seconds=600)
    assert "starting 1 ps" not in log
    assert "digits version 2, registered before" in stage_log(release, "publish")
    assert len(server.runs()) == 3
    assert len(server.versions("digits")) == 2

    words = ["models", "compare", "models:/digits/1", "models:/digits/2", "--tracking_uri", server.uri, "--json"]
    compared = subprocess.run(
        [sys.executable, "-m", "trainer", *words], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert compared.returncode == 0, compared.stderr
    accuracies = [each["accuracy"] for each in json.loads(compared.stdout)["models"]]
    assert min(accuracies) > 0.5


PROGRAM = """
import tensorflow as tf

class Doubled(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
    def __call__(self, x):
        return {"y": 2 * x}

with tf.summary.create_file_writer("/training/fit").as_default():
    for step in range(10):
        tf.summary.scalar("loss", 1 / (step + 1), step)
model = Doubled()
tf.saved_model.save(model, "/training/model", signatures=model.__call__)
"""


@pytest.mark.timeout(1500)
def test_a_program_of_ones_own_is_published_too(release: Release, mlflow_server: MlflowApi) -> None:
    values = copy.deepcopy(VALUES)
    del values["train"], values["mlflow"]["model"]
    values |= {"ps": {"replicas": 0}, "common": {"command": ["python", "-c", PROGRAM]}}
    release.install(values)
    words = ["get", "pod", "mnist-worker-0", "--output=jsonpath={.status.containerStatuses[0].imageID}"]
    wait(lambda: release.try_kubectl(*words).stdout, 120, release.describe)
    known = release.kubectl(*words)
    log = release.finish()
    assert "stage publish is done" in log, f"{stage_log(release, 'publish')}\n{release.describe()}"
    (version,) = mlflow_server.versions("mnist")
    assert version["tags"]["image"] == f"distributed-tensorflow/trainer:{trainer.__version__}"
    assert known.endswith(version["tags"]["image_digest"])
    (run,) = mlflow_server.runs()
    assert run["info"]["status"] == "FINISHED"
    found = mlflow_server.get("metrics/get-history", run_id=run["info"]["run_id"], metric_key="fit/loss")["metrics"]
    assert [each["value"] for each in found] == pytest.approx([1 / (step + 1) for step in range(10)])
