"""The chart and the wheel of a release."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import trainer
from hack.cluster import engine
from hack.release import base, chart, wheel
from hack.release.tree import CHART, ROOT, ReleaseError, notes, tree
from tests.chart.chart import environment_with_tools, render

DIGEST = f"sha256:{'a' * 64}"
PINNED = {
    f"distributed-tensorflow/{name}:{trainer.__version__}{variant}": DIGEST
    for name, variant in (("trainer", ""), ("trainer", "-gpu"), ("supervisor", ""))
}


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged chart of a copy of this tree."""
    folder = tmp_path_factory.mktemp("release")
    subprocess.run(["cp", "-r", "--parents", CHART, str(folder)], check=True, cwd=ROOT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", environment_with_tools()["PATH"])
        return chart.package(folder, "registry.example.com/x", PINNED, folder, None)


def test_the_chart_of_a_release_has_its_registry_and_its_images_by_digest(packaged: Path) -> None:
    manifests = render({"worker.gpus": 1}, chart=packaged)
    images = {pod["spec"]["containers"][0]["image"] for pod in manifests.pods().values()}
    assert images == {
        f"registry.example.com/x/distributed-tensorflow/{name}@{DIGEST}" for name in ("trainer", "supervisor")
    }
    facts = yaml.safe_load((packaged.parent / CHART / "Chart.yaml").read_text())
    listed = yaml.safe_load(facts["annotations"]["artifacthub.io/images"])
    assert {each["image"].rpartition("@")[2] for each in listed} == {DIGEST}
    others = render({"image.tag": "other", "supervisor.image.tag": "other"}, chart=packaged)
    images = {pod["spec"]["containers"][0]["image"].rpartition("/")[2] for pod in others.pods().values()}
    assert images == {"trainer:other", "supervisor:other"}, "a tag of one's own is not pinned"


def test_the_wheel_has_the_chart_and_installs_it(packaged: Path, tmp_path: Path) -> None:
    made = wheel.build(ROOT, packaged, tmp_path)
    assert [file.suffix for file in made] == [".whl", ".gz"]
    with zipfile.ZipFile(made[0]) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert not [name for name in names if "tests" in name.split("/")[0]]
    assert {"trainer/chart/Chart.yaml", "trainer/chart/files/task.sh", "trainer/kernels/row_ops.cc"} <= {*names}
    values = yaml.safe_load((tmp_path / "installed/trainer/chart/values.yaml").read_text())
    assert values["image"]["registry"] == "registry.example.com/x"
    command = [sys.executable, "-m", "trainer", "submit", "--dry_run", "--name", "mine"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert f"helm install mine {tmp_path}/installed/trainer/chart" in done.stdout


def test_a_release_of_a_bad_version_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"VERSION: 'v1' was given, but one such as 0\.2\.0"), tree("v1"):
        pass


def test_the_notes_of_a_release_are_those_of_its_version(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changes\n\n## [Unreleased]\n\n## [0.2.0] - x\n\n- New\n\n## [0.1.0]\n\n- Old\n"
    )
    assert notes(tmp_path, "0.2.0") == "- New\n"


def test_no_image_is_pinned_in_a_clone() -> None:
    assert json.loads((ROOT / CHART / "files/digests.json").read_text()) == {}


@pytest.mark.parametrize("image", ["debian", "debian:bookworm-slim", "docker.io/library/debian:bookworm-slim"])
def test_a_base_image_is_named_by_the_digest_of_its_own_repository(image: str) -> None:
    pushed_too = [f"localhost:5000/debian@sha256:{'b' * 64}", f"debian@{DIGEST}"]
    assert base.by_digest(image, pushed_too) == f"debian@{DIGEST}"
    assert base.by_digest("localhost:5000/debian:bookworm-slim", pushed_too) == pushed_too[0]
    assert base.by_digest(image, pushed_too[:1]) is None


def test_the_base_image_is_that_of_the_dockerfile() -> None:
    assert base.default(ROOT) == engine.BASE_IMAGE
