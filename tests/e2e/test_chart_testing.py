"""`ct install` installs every values file in `ci/` that is not marked "not installable", and runs `helm test`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.releases import CHART, Release

NOT_INSTALLABLE = "# not installable:"
ELSEWHERE = {f"{mode}-values.yaml" for mode in ("allreduce", "asynchronous", "synchronous")}
"""Files whose runs other end-to-end tests have."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("left_out", [ELSEWHERE, pytest.param(set(), marks=pytest.mark.long)], ids=["some", "all"])
def test_ct_installs_the_chart_with_each_installable_values_file(
    left_out: set[str], release: Release, tmp_path: Path
) -> None:
    copy = tmp_path / "charts" / CHART.name
    shutil.copytree(CHART, copy)
    for values in (copy / "ci").glob("*-values.yaml"):
        if values.name in left_out or NOT_INSTALLABLE in values.read_text():
            values.unlink()
    assert list((copy / "ci").iterdir()), "ct would install only the default values"
    command = ["ct", "install", "--charts", str(copy), "--namespace", release.namespace]
    command += ["--helm-extra-args=--timeout=3m", "--helm-extra-set-args=--set=common.resources.requests.cpu=20m"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
