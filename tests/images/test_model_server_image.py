"""The image of the model server: in a locked-down container it serves the model of a run.

`tests/e2e` lets it serve a version in MLflow.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testinfra.host import Host

import trainer
from tests.images.conftest import docker, inspected_or_skip
from tests.images.test_model_image import HELD_OUT, ask, start, wait_until_ready

SERVER_IMAGE = f"distributed-tensorflow/model-server:{trainer.__version__}"

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.long,  # so CI leaves it out, and `make test-images` does not
]


@pytest.fixture(scope="module")
def image_name() -> str:
    """The image; skips if it is not built, because those who package their models do not need it."""
    inspected_or_skip(SERVER_IMAGE, "make build-model-server")
    return SERVER_IMAGE


@pytest.fixture
def containers() -> Iterator[list[str]]:
    """The names of containers that are removed after the test."""
    names: list[str] = []
    yield names
    for name in names:
        docker("rm", "--force", name)


def test_it_is_unprivileged_and_its_size_is_below_the_documented_limit(image: Any) -> None:
    print(f"{image['Size'] / 1e6:.1f} MB")
    assert image["Size"] < 1.35e9
    assert image["Config"]["User"] == "10001:10001"
    assert image["Config"]["Entrypoint"] == ["trainer", "serve"]


def test_it_has_what_its_bill_of_materials_lists(image: Any, container: Host) -> None:
    bill = json.loads(container.file(image["Config"]["Labels"]["distributed-tensorflow/sbom"]).content_string)
    assert {"mlflow-skinny", "kserve", "tensorflow-cpu"} <= {
        each["name"].replace("_", "-") for each in bill["components"]
    }
    assert container.run("python -c 'import mlflow, kserve'").rc == 0


def test_without_a_model_it_ends_with_one_sentence(image_name: str) -> None:
    done = docker("run", "--rm", image_name)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("trainer: MODEL=/model: it has no exported model; name the directory of a run")


def test_it_serves_a_run_as_soon_as_it_has_exported_its_model(
    image_name: str, trained: Path, containers: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o755)
    volume = f"--volume={run}:/training:ro"
    containers.append(start(image_name, "/training", "--name=digits", "--wait", options=[volume]))
    (name,) = containers
    while "waiting for the model: MODEL=/training: it has no exported model" not in docker("logs", name).stderr:
        assert json.loads(docker("inspect", name).stdout)[0]["State"]["Running"], docker("logs", name).stderr
        time.sleep(0.5)
    shutil.copytree(trained / "export", run / "partial")
    (run / "partial").rename(run / "export")
    wait_until_ready(name)
    result = json.loads((trained / "result.json").read_text())
    status, answer = ask(name, "/v1/models/digits:predict", {"instances": HELD_OUT.inputs.tolist()})
    assert status == 200
    accuracy = float(np.mean(np.argmax(answer["predictions"], axis=1) == HELD_OUT.targets))
    assert round(accuracy, 4) == result["best"]["test_accuracy"]
    status, _ = ask(name, "/v1/models/digits:predict", {"instances": [[1, 2]]})
    assert status == 400
