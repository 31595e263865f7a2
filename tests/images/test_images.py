"""What both images share: an unprivileged user, nothing left of the build, a bill of materials, a prompt start."""

import ast
import json
import time
from typing import Any

import pytest
from testinfra.host import Host

import trainer
from tests.images.conftest import IMAGE, LOCKED_DOWN, SUPERVISOR_IMAGE, docker

PYTHON = "/opt/trainer/bin/python"


@pytest.fixture(scope="module", params=[IMAGE, SUPERVISOR_IMAGE], ids=["trainer", "supervisor"])
def image_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_its_user_is_a_number_and_not_root(image: Any, container: Host) -> None:
    assert image["Config"]["User"] == "10001:10001"
    assert container.check_output("id -u; id -g") == "10001\n10001"
    assert container.check_output("whoami") == "trainer"  # some programs fail for a user without a name


def test_it_starts_the_trainer(image: Any) -> None:
    assert image["Config"]["Entrypoint"] == ["trainer"]
    assert not image["Config"]["Cmd"]
    assert "Healthcheck" not in image["Config"]


def test_its_labels_say_what_it_is(image_name: str, image: Any, container: Host) -> None:
    labels = image["Config"]["Labels"]
    said = {name: labels[f"org.opencontainers.image.{name}"] for name in ("title", "version", "licenses")}
    assert said == {
        "title": image_name.replace("/", "-").partition(":")[0],
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


def test_nothing_in_it_is_the_users_to_change_even_when_its_root_is_writable(image_name: str) -> None:
    search = ["find", "/", "-xdev", "-writable", "-not", "-type", "l", "-not", "-path", "/proc/*"]
    found = docker("run", "--rm", "--entrypoint", search[0], image_name, *search[1:]).stdout.split()
    shared = {"/tmp", "/var/tmp", "/run/lock"}  # noqa: S108 - everyone's by their nature
    assert {path for path in found if not path.startswith("/dev/")} - shared == {"/home/trainer"}


@pytest.mark.parametrize("program", ["gcc", "cc", "g++", "c++", "make", "ld", "git", "curl"])
def test_no_tool_for_building_is_left(container: Host, program: str) -> None:
    assert container.exists("trainer")  # the way of asking sees what is there
    assert not container.exists(program)


def test_nothing_is_left_of_the_build(image_name: str, container: Host) -> None:
    assert container.check_output("ls -A /mnt /opt") == "/mnt:\n\n/opt:\ntrainer"
    # Root's own folders cannot be looked into by the container's user.
    left = "ls -A /root; find /root/.cache /var/cache/apt/archives /var/lib/apt/lists -type f -not -name lock"
    looked = docker("run", "--rm", "--user=0", "--entrypoint=sh", image_name, "-c", left)
    assert not [line for line in looked.stdout.splitlines() if line not in (".bashrc", ".profile")]


def test_its_bill_of_materials_lists_what_is_installed(image: Any, container: Host) -> None:
    bill = json.loads(container.file(image["Config"]["Labels"]["distributed-tensorflow/sbom"]).content_string)
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(component["name"].replace("_", "-"), component["version"]) for component in bill["components"]}
    debian = container.check_output("dpkg-query --show --showformat='${Package} ${Version}\\n'").splitlines()
    ask = "from importlib.metadata import distributions as d; print({(x.name, x.version) for x in d()})"
    python = ast.literal_eval(container.check_output(f"{PYTHON} -c '{ask}'"))
    installed = {(package, version) for package, version in map(str.split, debian)}
    installed |= {(package.replace("_", "-"), version) for package, version in python}
    assert {"libc6", "pydantic", "distributed-tensorflow-trainer"} <= {name for name, _ in installed}
    assert listed == installed
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references))


def test_its_bytecode_is_there_and_in_force(container: Host) -> None:
    # -v tells of each module whether it was compiled now or read as compiled before.
    said = container.run(f"{PYTHON} -v -c 'import trainer.cli'").stderr
    assert "/opt/trainer/lib/python3.11/site-packages/trainer/__pycache__/cli.cpython-311.pyc matches" in said
    assert "# could not create" not in said
    assert "# wrote" not in said


def test_help_comes_promptly(image_name: str, image: Any) -> None:
    begun = time.monotonic()
    said = docker("run", "--rm", *LOCKED_DOWN, image_name, "--help")
    seconds = time.monotonic() - begun
    print(f"trainer --help, with the container's start and end: {seconds:.2f} s")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("usage: trainer COMMAND")
    assert seconds < 30


def test_a_wrong_argument_is_one_sentence_and_code_2(image_name: str, image: Any) -> None:
    said = docker("run", "--rm", *LOCKED_DOWN, image_name, "convert-tfjob", "--worker_count", "3")
    assert said.returncode == 2
    assert said.stdout == ""
    (sentence,) = said.stderr.splitlines()
    assert "--worker_count" in sentence
