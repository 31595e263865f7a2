"""The wheel and the sdist, each with the chart: the one in `charts/`, as `helm package` takes it."""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from hack.release.tree import CHART

BUILD = "import sys; from flit_core.buildapi import *; print(build_wheel(sys.argv[1])); print(build_sdist(sys.argv[1]))"
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "trainer")


def build(root: Path, chart: Path, to: Path) -> list[Path]:
    """Build the wheel and the sdist of a tree.

    Args:
        root: The tree.
        chart: The packaged chart, a .tgz file.
        to: The folder for the files.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        for name in SOURCES:
            if (root / name).is_dir():
                shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, source)
        with tarfile.open(chart) as archive:
            archive.extractall(source, filter="data")
        (source / Path(CHART).name).rename(source / "trainer" / "chart")
        command = [sys.executable, "-c", BUILD, str(to.resolve())]
        done = subprocess.run(command, cwd=source, check=True, stdout=subprocess.PIPE, text=True)
        return [to / name for name in done.stdout.split()]
