"""The image holds what training takes and nothing more, and trains when locked down."""

import json
import time
from typing import Any

import pytest
from testinfra.host import Host

import trainer
from tests.images.conftest import IMAGE, LOCKED_DOWN, docker

PYTHON = "/opt/trainer/bin/python"


def test_it_is_no_larger_than_promised(image: Any) -> None:
    assert image["Size"] < 1.6e9


def test_its_user_is_a_number_and_not_root(image: Any, container: Host) -> None:
    assert image["Config"]["User"] == "10001:10001"
    assert container.check_output("id -u; id -g") == "10001\n10001"
    assert container.check_output("whoami") == "trainer"  # some programs fail for a user without a name


def test_it_starts_the_trainer(image: Any) -> None:
    assert image["Config"]["Entrypoint"] == ["trainer"]
    assert not image["Config"]["Cmd"]
    assert "Healthcheck" not in image["Config"]


def test_its_labels_say_what_it_is(image: Any, container: Host) -> None:
    labels = image["Config"]["Labels"]
    said = {name: labels[f"org.opencontainers.image.{name}"] for name in ("title", "version", "licenses")}
    assert said == {
        "title": "distributed-tensorflow-trainer",
        "version": trainer.__version__,
        "licenses": "Apache-2.0",
    }
    assert labels["org.opencontainers.image.description"]
    assert int(labels["org.opencontainers.image.revision"].removesuffix("-dirty"), 16)
    assert container.file(labels["distributed-tensorflow/sbom"]).is_file


def test_only_home_and_tmp_are_written_to(container: Host) -> None:
    assert container.run("touch ~/file /tmp/file").rc == 0
    for folder in ("/", "/opt/trainer", "/usr/lib", "/etc"):
        assert "Read-only file system" in container.run(f"touch {folder}/file").stderr


def test_nothing_in_it_is_the_users_to_change_even_when_its_root_is_writable() -> None:
    search = ["find", "/", "-xdev", "-writable", "-not", "-type", "l", "-not", "-path", "/proc/*"]
    found = docker("run", "--rm", "--entrypoint", search[0], IMAGE, *search[1:]).stdout.split()
    shared = {"/tmp", "/var/tmp", "/run/lock"}  # noqa: S108 - everyone's by their nature
    assert {path for path in found if not path.startswith("/dev/")} - shared == {"/home/trainer"}


def test_its_versions_are_the_projects(container: Host) -> None:
    ask = "import platform, tensorflow; print(platform.python_version(), tensorflow.__version__)"
    python, tensorflow = container.check_output(f"{PYTHON} -c '{ask}'").split()
    assert python.startswith("3.11.")
    assert tensorflow.startswith("2.21.")
    assert container.check_output("trainer --version") == trainer.__version__


@pytest.mark.parametrize("program", ["gcc", "cc", "g++", "c++", "make", "ld", "git", "curl"])
def test_no_tool_for_building_is_left(container: Host, program: str) -> None:
    assert container.exists("trainer")  # the way of asking sees what is there
    assert not container.exists(program)


def test_nothing_is_left_of_the_build(container: Host) -> None:
    assert container.check_output("ls -A /mnt /opt") == "/mnt:\n\n/opt:\ntrainer"
    # Root's own folders cannot be looked into by the container's user.
    left = "ls -A /root; find /root/.cache /var/cache/apt/archives /var/lib/apt/lists -type f -not -name lock"
    looked = docker("run", "--rm", "--user=0", "--entrypoint=sh", IMAGE, "-c", left)
    assert not [line for line in looked.stdout.splitlines() if line not in (".bashrc", ".profile")]


def test_its_packages_fit_together(container: Host) -> None:
    assert container.check_output("pip check") == "No broken requirements found."


def test_what_was_left_out_of_packages_is_not_missed(container: Host) -> None:
    modules = "tensorflow.lite, keras, h5py, numpy.testing, scipy.stats, scipy.special, sklearn.ensemble, clang.cindex"
    assert container.run(f"{PYTHON} -c 'import {modules}'").rc == 0


def test_its_bill_of_materials_lists_what_is_installed(container: Host) -> None:
    bill = json.loads(container.file("/usr/share/sbom/trainer.cdx.json").content_string)
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(component["name"].replace("_", "-"), component["version"]) for component in bill["components"]}
    debian = container.check_output("dpkg-query --show --showformat='${Package} ${Version}\\n'").splitlines()
    python = json.loads(container.check_output("pip list --format=json --disable-pip-version-check"))
    installed = {(package, version) for package, version in map(str.split, debian)}
    installed |= {(package["name"].replace("_", "-"), package["version"]) for package in python}
    assert {"libc6", "tensorflow-cpu", "distributed-tensorflow-trainer"} <= {name for name, _ in installed}
    assert listed == installed
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references))


def test_its_bytecode_is_there_and_in_force(container: Host) -> None:
    # -v tells of each module whether it was compiled now or read as compiled before.
    said = container.run(f"{PYTHON} -v -c 'import trainer.cli, keras'").stderr
    assert "/opt/trainer/lib/python3.11/site-packages/trainer/__pycache__/cli.cpython-311.pyc matches" in said
    assert "# could not create" not in said
    assert "# wrote" not in said


def test_help_comes_promptly(image: Any) -> None:
    begun = time.monotonic()
    said = docker("run", "--rm", *LOCKED_DOWN, IMAGE, "--help")
    seconds = time.monotonic() - begun
    print(f"trainer --help, with the container's start and end: {seconds:.2f} s")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("usage: trainer COMMAND")
    assert seconds < 30


def test_a_wrong_argument_is_one_sentence_and_code_2(image: Any) -> None:
    said = docker("run", "--rm", *LOCKED_DOWN, IMAGE, "launch", "--worker_count", "3")
    assert said.returncode == 2
    assert said.stdout == ""
    (sentence,) = said.stderr.splitlines()
    assert "--worker_count" in sentence


def test_a_cluster_trains_in_it(image: Any) -> None:
    command = ["launch", "--ps", "1", "--workers", "2", "--train_steps", "600", "--json"]
    said = docker("run", "--rm", *LOCKED_DOWN, IMAGE, *command)
    assert said.returncode == 0, said.stderr
    result = json.loads(said.stdout)
    assert result["global_step"] >= 600
    assert result["test_accuracy"] > 0.9


def test_tensorboard_is_there(container: Host) -> None:
    assert container.check_output("tensorboard --version").startswith("2.")
