"""`ct install` installs values files of `ci/` that are not marked "not installable", and runs `helm test`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.releases import CHART, Release

NOT_INSTALLABLE = "# not installable:"
EVERY_ROLE = "every-role-values.yaml"
"""The file that CI installs; other end-to-end tests have runs like those of the others."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("files", [EVERY_ROLE, pytest.param("*-values.yaml", marks=pytest.mark.long)])
def test_ct_installs_the_chart_with_installable_values_files(files: str, release: Release, tmp_path: Path) -> None:
    copy = tmp_path / "charts" / CHART.name
    shutil.copytree(CHART, copy)
    for values in (copy / "ci").glob("*-values.yaml"):
        if not values.match(files) or NOT_INSTALLABLE in values.read_text():
            values.unlink()
    assert list((copy / "ci").iterdir()), "ct would install only the default values"
    command = ["ct", "install", "--charts", str(copy), "--namespace", release.namespace]
    command += ["--helm-extra-args=--timeout=3m", "--helm-extra-set-args=--set=common.resources.requests.cpu=20m"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
