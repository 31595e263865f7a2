"""Properties of all images: an unprivileged user, no build tools or caches, a bill of materials."""

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from tests.images.conftest import IMAGE, SUPERVISOR_IMAGE, docker

PYTHON = "/opt/trainer/bin/python"
ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.timeout(1200)  # building an image installs TensorFlow


@pytest.fixture(
    scope="module",
    params=["trainer", "supervisor", pytest.param("model", marks=pytest.mark.long)],
)
def image_name(request: pytest.FixtureRequest) -> str:
    names = {"trainer": IMAGE, "supervisor": SUPERVISOR_IMAGE}
    return names.get(request.param) or str(request.getfixturevalue("packaged").image)


def test_its_user_is_numeric_and_not_root(image: Any, container: Host) -> None:
    assert image["Config"]["User"] == "10001:10001"
    assert container.check_output("id -u; id -g") == "10001\n10001"
    assert container.check_output("whoami") == "trainer"  # some programs fail if the user has no name


def test_only_home_and_tmp_are_writable(container: Host) -> None:
    assert container.run("touch ~/file /tmp/file").rc == 0
    for folder in ("/", "/opt/trainer", "/usr/lib", "/etc"):
        assert "Read-only file system" in container.run(f"touch {folder}/file").stderr


def test_the_user_can_write_only_to_its_home_when_the_root_filesystem_is_writable(image_name: str) -> None:
    search = ["find", "/", "-xdev", "-writable", "-not", "-type", "l", "-not", "-path", "/proc/*"]
    found = docker("run", "--rm", "--entrypoint", search[0], image_name, *search[1:]).stdout.split()
    shared = {"/tmp", "/var/tmp", "/run/lock"}  # noqa: S108 - writable for every user by design
    assert {path for path in found if not path.startswith("/dev/")} - shared == {"/home/trainer"}


@pytest.mark.parametrize("program", ["gcc", "cc", "g++", "c++", "make", "ld", "git", "curl"])
def test_it_has_no_build_tools(container: Host, program: str) -> None:
    assert container.exists("trainer")  # `exists` finds programs that are installed
    assert not container.exists(program)


def test_it_has_no_build_caches(image_name: str, container: Host) -> None:
    assert container.check_output("ls -A /mnt /opt") == "/mnt:\n\n/opt:\ntrainer"
    # The container's user cannot list root's folders.
    search = "ls -A /root; find /root/.cache /var/cache/apt/archives /var/lib/apt/lists -type f -not -name lock"
    result = docker("run", "--rm", "--user=0", "--entrypoint=sh", image_name, "-c", search)
    assert not [line for line in result.stdout.splitlines() if line not in (".bashrc", ".profile")]


def test_its_bill_of_materials_lists_what_is_installed(image: Any, container: Host) -> None:
    bill = json.loads(container.file(image["Config"]["Labels"]["distributed-tensorflow/sbom"]).content_string)
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(component["name"].replace("_", "-"), component["version"]) for component in bill["components"]}
    debian = container.check_output("dpkg-query --show --showformat='${Package} ${Version}\\n'").splitlines()
    program = "from importlib.metadata import distributions as d; print({(x.name, x.version) for x in d()})"
    python = ast.literal_eval(container.check_output(f"{PYTHON} -c '{program}'"))
    installed = {(package, version) for package, version in map(str.split, debian)}
    installed |= {(package.replace("_", "-"), version) for package, version in python}
    assert {"libc6", "pydantic", "distributed-tensorflow"} <= {name for name, _ in installed}
    assert listed == installed
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references))


def test_it_uses_precompiled_bytecode(container: Host) -> None:
    # -v prints for each module whether Python compiled it or read existing bytecode.
    output = container.run(f"{PYTHON} -v -c 'import trainer.cli'").stderr
    assert "/opt/trainer/lib/python3.11/site-packages/trainer/__pycache__/cli.cpython-311.pyc matches" in output
    assert "# could not create" not in output
    assert "# wrote" not in output


def test_make_passes_the_platform_and_the_sources_of_packages_to_the_build() -> None:
    given = {"BASE_IMAGE": "a.example/debian", "DEBIAN_MIRROR": "https://b.example", "INDEX_URL": "https://c.example"}
    words = ["make", "--dry-run", "build-images", "PLATFORM=linux/amd64", *("=".join(pair) for pair in given.items())]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    builds = [line for line in done.stdout.splitlines() if " build --file images/Dockerfile" in line]
    assert len(builds) == 2
    arguments = (ROOT / "images" / "Dockerfile").read_text()
    for name, value in given.items():
        assert all(f"--build-arg {name}={value}" in line for line in builds)
        assert f"\nARG {name}=" in arguments
    assert all("--platform linux/amd64" in line for line in builds)
