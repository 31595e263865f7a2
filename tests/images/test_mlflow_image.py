"""The image of the MLflow server: in a locked-down container it keeps runs, files and models in /data."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

import trainer
from tests.images.conftest import LOCKED_DOWN, docker, inspected_or_skip

MLFLOW_IMAGE = f"distributed-tensorflow/mlflow:{trainer.__version__}"
USE = """
import pathlib, urllib.request
import mlflow
mlflow.set_tracking_uri("http://127.0.0.1:5000")
client = mlflow.MlflowClient()
run = client.create_run("0")
client.log_metric(run.info.run_id, "loss", 0.5, step=10)
client.log_text(run.info.run_id, "weights", "model/weights")
client.create_registered_model("digits")
client.create_model_version("digits", f"{run.info.artifact_uri}/model", run.info.run_id)
folder = mlflow.artifacts.download_artifacts("models:/digits/1", dst_path="/tmp/model")
print(pathlib.Path(folder, "weights").read_text(), client.get_run(run.info.run_id).data.metrics)
print(b"<html" in urllib.request.urlopen("http://127.0.0.1:5000/").read())
"""


pytestmark = pytest.mark.long  # CI does not build this image; `make e2e-long` does


@pytest.fixture(scope="module")
def image() -> Any:
    """The output of `docker image inspect`; skips if it is not built, because most people have a server."""
    return inspected_or_skip(MLFLOW_IMAGE, "make build-mlflow-image")


@pytest.fixture(scope="module")
def container(image: Any) -> Iterator[Host]:
    """A container in which the server runs."""
    home = "--tmpfs=/home/mlflow:uid=10001,gid=10001"
    started = docker("run", "--detach", *LOCKED_DOWN, home, "--tmpfs=/data:uid=10001,gid=10001", MLFLOW_IMAGE)
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    yield testinfra.get_host(f"docker://{name}")
    docker("rm", "--force", name)


def test_it_is_unprivileged_and_has_a_bill_of_materials(image: Any, container: Host) -> None:
    assert image["Config"]["User"] == "10001:10001"
    assert container.file(image["Config"]["Labels"]["distributed-tensorflow/sbom"]).is_file


def test_it_keeps_runs_files_and_models_in_its_volume(container: Host) -> None:
    deadline = time.monotonic() + 180
    health = "python -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:5000/health\")'"
    while container.run(health).rc:
        assert time.monotonic() < deadline, "the server does not respond"
        time.sleep(2)
    done = container.run("python -c %s", USE)
    assert done.rc == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["weights {'loss': 0.5}", "True"]
    assert set(container.check_output("ls /data").split()) >= {"mlflow.db", "files"}
