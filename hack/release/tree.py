"""The tree of a release: a commit that has the version everywhere, in a git work tree of its own."""

import contextlib
import datetime
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = re.compile(r"\d+\.\d+\.\d+(-(rc|beta|alpha)\.\d+)?")
"""Versions that both Python and Helm take."""
CHART = "charts/distributed-tensorflow"


class ReleaseError(Exception):
    """A release is not possible: one sentence."""


@contextlib.contextmanager
def tree(version: str) -> Iterator[Path]:
    """The folder of the release's commit. It is removed at the end; the commit stays.

    Raises:
        ReleaseError: the version is none, or files differ from the last commit.
    """
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION: {version!r} was given, but one such as 0.2.0 or 0.2.0-rc.1 was expected.")
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise ReleaseError(f"files differ from the last commit: {changed.split()[1]}; commit them first.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "release")
        git("worktree", "add", "--quiet", "--detach", str(path), "HEAD")
        try:
            _set_version(path, version)
            git("commit", "--quiet", "--all", "--allow-empty", "--message", f"Release {version}", at=path)
            yield path
        finally:
            git("worktree", "remove", "--force", str(path))


def git(*words: str, at: Path = ROOT) -> str:
    """Run git, and return its output."""
    return subprocess.run(["git", "-C", str(at), *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _set_version(path: Path, version: str) -> None:
    today = datetime.date.today().isoformat()
    _edit(path / "trainer/__init__.py", r'(?m)^__version__ = ".*"', f'__version__ = "{version}"')
    _edit(path / CHART / "Chart.yaml", r"(?m)^(version|appVersion): .*", rf"\1: {version}")
    if f"## [{version}]" not in (path / "CHANGELOG.md").read_text():
        _edit(path / "CHANGELOG.md", r"(?m)^## \[Unreleased\]$", f"## [Unreleased]\n\n## [{version}] - {today}")


def _edit(file: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, file.read_text())
    if not count:
        raise ReleaseError(f"{file.name} has nothing that matches {pattern}.")
    file.write_text(text)


def notes(path: Path, version: str) -> str:
    """What CHANGELOG.md of a tree says about a version."""
    _, _, rest = (path / "CHANGELOG.md").read_text().partition(f"## [{version}]")
    body = re.split(r"(?m)^## \[", rest.partition("\n")[2])[0]
    return f"{body.strip()}\n"
