"""The images of trainer and supervisor have the trainer's command as their entrypoint. It starts fast."""

import time
from typing import Any

import pytest
from testinfra.host import Host

import trainer
from tests.images.conftest import IMAGE, LOCKED_DOWN, SUPERVISOR_IMAGE, docker


@pytest.fixture(scope="module", params=[IMAGE, SUPERVISOR_IMAGE], ids=["trainer", "supervisor"])
def image_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_its_entrypoint_is_the_trainer(image: Any) -> None:
    assert image["Config"]["Entrypoint"] == ["trainer"]
    assert not image["Config"]["Cmd"]
    assert "Healthcheck" not in image["Config"]


def test_its_labels_have_title_version_license_and_revision(image_name: str, image: Any, container: Host) -> None:
    labels = image["Config"]["Labels"]
    values = {name: labels[f"org.opencontainers.image.{name}"] for name in ("title", "version", "licenses")}
    assert values == {
        "title": image_name.replace("/", "-").partition(":")[0],
        "version": trainer.__version__,
        "licenses": "Apache-2.0",
    }
    assert labels["org.opencontainers.image.description"]
    assert int(labels["org.opencontainers.image.revision"].removesuffix("-dirty"), 16)
    assert container.file(labels["distributed-tensorflow/sbom"]).is_file


def test_help_is_fast(image_name: str, image: Any) -> None:
    started = time.monotonic()
    result = docker("run", "--rm", *LOCKED_DOWN, image_name, "--help")
    seconds = time.monotonic() - started
    print(f"trainer --help, including the container's start and stop: {seconds:.2f} s")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: trainer COMMAND")
    assert seconds < 30


def test_an_invalid_argument_is_reported_in_one_sentence_with_code_2(image_name: str, image: Any) -> None:
    result = docker("run", "--rm", *LOCKED_DOWN, image_name, "convert-tfjob", "--worker_count", "3")
    assert result.returncode == 2
    assert result.stdout == ""
    (sentence,) = result.stderr.splitlines()
    assert "--worker_count" in sentence
