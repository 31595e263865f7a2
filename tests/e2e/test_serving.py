"""A release that serves its own model on a real cluster: two versions, answers, and requests that do not fit."""

import copy
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainer
from tests.e2e.conftest import load_or_skip
from tests.e2e.releases import Release, wait
from trainer.data import digits

IMAGE = f"distributed-tensorflow/model-server:{trainer.__version__}"
VALUES: dict[str, Any] = {
    "train": {"train_steps": 300, "report_steps": 20, "seed": 1},
    "worker": {"replicas": 1},
    "serving": {
        "enabled": True,
        "name": "digits",
        "versions": [{"name": "last", "model": "."}],
        "resources": {"requests": {"cpu": "50m", "memory": "300Mi"}},
    },
}
REQUESTS = 40
"""Each of them is a connection of its own, so it is all but certain that each of two versions gets one."""
CLIENT = f"""
import sys, urllib.request
body = sys.stdin.buffer.read()
for _ in range({REQUESTS}):
    urllib.request.urlopen(sys.argv[1], body, timeout=60).close()
"""
HELD_OUT = digits.load()[1]


@pytest.fixture
def server_image(packaged_images: None, kubeconfig: Path) -> None:
    load_or_skip(kubeconfig, IMAGE, "make build-model-server")


def ask(address: str, body: Any) -> tuple[int, Any]:
    """The status and the body of an answer to a predict request."""
    try:
        with urllib.request.urlopen(address, json.dumps(body).encode(), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def predictions(address: str) -> int:
    """How many requests a server has got, by its metrics."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as response:
        found = re.search(r"^request_predict_seconds_count\{.*\} (\S+)$", response.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


@pytest.mark.long  # CI does not build the images; `make e2e-long` does
@pytest.mark.timeout(1500)
def test_a_release_serves_its_own_model(release: Release, server_image: None) -> None:
    release.install(VALUES)
    log = release.finish()
    wait(lambda: release.deployment_is_available("serving-last"), 300, release.describe)

    both = copy.deepcopy(VALUES)
    both["serving"]["versions"].append({"name": "export", "model": "export"})
    release.upgrade(both)
    wait(lambda: release.deployment_is_available("serving-export"), 300, release.describe)
    assert release.finish() == log, "the upgrade does not touch the run"

    example = {"instances": HELD_OUT.inputs[:1].tolist()}
    counts = {}
    for version in ("last", "export"):
        with release.forward(f"deployment/mnist-serving-{version}", 8080) as address:
            predict = f"{address}/v1/models/digits:predict"
            status, answer = ask(predict, {"instances": HELD_OUT.inputs.tolist()})
            assert status == 200
            classes = np.argmax(answer["predictions"], axis=1)
            assert classes[0] == HELD_OUT.targets[0]
            accuracy = float(np.mean(classes == HELD_OUT.targets))
            assert accuracy == pytest.approx(release.result()["best"]["test_accuracy"], abs=1e-3)
            sentence = "images: its shape is [1, 2], but float32 [n, 28, 28, 1] was expected."
            assert ask(predict, {"instances": [[1, 2]]}) == (400, {"error": sentence})
            counts[version] = predictions(address)

    client = ["exec", "--stdin", "deployment/mnist-tensorboard", "--", "python", "-c", CLIENT]
    release.kubectl(*client, "http://mnist-serving/v1/models/digits:predict", text=json.dumps(example))
    for version, before in counts.items():
        with release.forward(f"deployment/mnist-serving-{version}", 8080) as address:
            counts[version] = predictions(address) - before
    assert min(counts.values()) > 0, counts
    assert sum(counts.values()) == REQUESTS


def test_another_server_is_ready_when_the_run_has_exported_its_model(release: Release) -> None:
    values = copy.deepcopy(VALUES)
    image = {"repository": "distributed-tensorflow/trainer", "tag": trainer.__version__}
    command = ["python", "-m", "http.server", "8080", "--directory=/training"]
    server = {"image": image, "command": command, "readinessPath": "/result.json", "mountTraining": True}
    values["serving"]["versions"] = [{"name": "other", **server}]
    release.install(values)
    release.finish()
    wait(lambda: release.deployment_is_available("serving-other"), 60, release.describe)
    with release.forward("service/mnist-serving", 80) as address:
        found = json.load(urllib.request.urlopen(f"{address}/result.json", timeout=60))
    assert found == release.wait_for_result(300)
