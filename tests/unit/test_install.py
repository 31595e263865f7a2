"""`hack/install.py`, which `make run` and `make setup` run, with programs that only note how they are called.

`make test-readme` installs for real.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hack import install

ROOT = Path(__file__).parents[2]
NOTE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in *"$FAIL_ON"*) [ -z "$FAIL_ON" ] || { echo "$FAIL_WITH"; exit 1; };; esac
case "$*" in *"$HANG_ON"*) [ -z "$HANG_ON" ] || exec sleep 600;; esac
"""


class Clone:
    """A clone of the project, in whose `.venv` and PATH python and uv only note how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv = folder / "clone", folder / "clone" / ".venv"
        for each in ("hack", "constraints", ".venv/bin"):
            (self.folder / each).mkdir(parents=True)
        shutil.copy(ROOT / "hack" / "install.py", self.folder / "hack")
        for file in ("pyproject.toml", "constraints/cpu.txt", "constraints/dev.txt", "constraints/uv.txt"):
            shutil.copy(ROOT / file, self.folder / file)
            os.utime(self.folder / file, (0, 0))
        (self.venv / "pyvenv.cfg").write_text("version = {}.{}.{}\n".format(*sys.version_info[:3]))
        self.programs = folder / "programs"
        self.programs.mkdir()
        for program in (self.venv / "bin" / "python", self.programs / "uv"):
            program.write_text(NOTE)
            program.chmod(0o755)
        self.calls = folder / "calls"
        self.calls.touch()
        self.environment = os.environ | {"CALLS": str(self.calls), "PATH": f"{self.programs}:/usr/bin:/bin"}
        self.environment |= {"FAIL_ON": "", "FAIL_WITH": "", "HANG_ON": ""}

    def start(self, target: str, **environment: str) -> subprocess.Popen[str]:
        """Start the installation of a target."""
        command = [sys.executable, str(self.folder / "hack" / "install.py"), target]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment | environment, stdout=pipe, stderr=pipe, text=True)

    def install(self, target: str, **environment: str) -> tuple[int, str, str]:
        """Install a target; return the exit code and both outputs."""
        with self.start(target, **environment) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def stamps(self) -> set[str]:
        """The names of the targets that are installed."""
        return {path.name for path in self.venv.glob(".*-done")}


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A clone in whose `.venv` `make run` has installed."""
    clone = Clone(tmp_path)
    (clone.venv / ".run-done").touch()
    return clone


def test_setup_adds_its_packages_to_those_of_run(clone: Clone) -> None:
    code, out, err = clone.install("setup")
    assert (code, err) == (0, "")
    assert "creating a virtual environment" not in out
    assert "installed in" in out
    calls = [line for line in clone.calls.read_text().splitlines() if line.startswith("uv")]
    assert [("dev.txt" in line, "--require-hashes" in line) for line in calls] == [(True, True), (False, False)]
    assert clone.stamps() == {".setup-done"}


def test_run_has_nothing_to_do_after_setup(clone: Clone) -> None:
    (clone.venv / ".setup-done").touch()
    assert clone.install("run") == (0, "", "")
    assert clone.calls.read_text() == ""
    assert clone.stamps() == {".run-done", ".setup-done"}


@pytest.mark.slow
def test_an_environment_of_other_locks_is_recreated(clone: Clone) -> None:
    os.utime(clone.folder / "constraints" / "cpu.txt", (time.time() + 60, time.time() + 60))
    code, out, _ = clone.install("setup")
    assert code == 0
    assert "creating a virtual environment" in out


def test_an_environment_of_another_clone_is_kept(clone: Clone) -> None:
    """As in a worktree whose `.venv` is a link: to recreate it would empty that of the other clone."""
    other = clone.venv.rename(clone.folder / "other")
    clone.venv.symlink_to(other)
    (other / ".run-done").unlink()
    code, _, err = clone.install("setup")
    assert code == 2
    assert err.strip().endswith(
        f"{clone.venv} is a link, whose target another clone uses: remove the link, and run make again."
    )
    assert (other / "pyvenv.cfg").exists()


def test_pip_installs_where_uv_fails(clone: Clone) -> None:
    code, out, err = clone.install("setup", FAIL_ON="--compile-bytecode", FAIL_WITH="error: bad certificate")
    assert (code, err) == (0, "")
    assert "with pip, as uv has failed (error: bad certificate)" in out
    lock, package = [line for line in clone.calls.read_text().splitlines() if " install " in line][-2:]
    assert lock.startswith("python -m pip")
    assert "--require-hashes" in lock
    assert "dev.txt" in lock
    assert "flit-core.txt" in lock
    assert package.endswith(f"--editable {clone.folder}")
    without_uv = (clone.venv / "flit-core.txt").read_text()
    assert "flit-core==" in without_uv
    assert "uv==" not in without_uv


def test_an_index_that_cannot_be_reached_is_one_sentence(clone: Clone) -> None:
    reason = "error: https://index.invalid/simple/ Could not resolve host"
    code, _, err = clone.install("setup", FAIL_ON="install", FAIL_WITH=reason)
    assert code == 2
    assert err.startswith("install: the package index (https://index.invalid/simple/) cannot be reached")
    assert err.count("\n") == 1
    assert clone.stamps() == set()


def test_any_other_failure_shows_the_output_of_the_program(clone: Clone) -> None:
    code, _, err = clone.install("setup", FAIL_ON="install", FAIL_WITH="the disk is full")
    assert code == 2
    assert err.endswith("has failed:\nthe disk is full\n\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_without_a_stamp(clone: Clone, number: int) -> None:
    with clone.start("setup", HANG_ON="--compile-bytecode") as process:
        while "--compile-bytecode" not in clone.calls.read_text():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == "install: interrupted; the next make installs from the beginning\n"
    assert clone.stamps() == set()


PIP_CONF = """
[global]
index-url = https://global.invalid/simple
trusted-host =
    one.invalid
    two.invalid
[install]
index-url = https://install.invalid/simple
[download]
extra-index-url = https://download.invalid/simple
"""


@pytest.fixture
def pip_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only settings that pip has."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "SSL_CERT"))]:
        monkeypatch.delenv(name)
    file = tmp_path / "pip.conf"
    file.write_text(PIP_CONF)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setattr(install, "PYTHON", Path(sys.executable))
    return file


@pytest.mark.usefixtures("pip_conf")
def test_uv_gets_the_package_index_of_pip() -> None:
    found = install._environment_of_uv()
    assert found["UV_DEFAULT_INDEX"] == "https://install.invalid/simple"
    assert found["UV_INSECURE_HOST"] == "one.invalid two.invalid"
    assert "UV_INDEX" not in found


@pytest.mark.usefixtures("pip_conf")
def test_variables_win_over_the_files_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.invalid/simple")
    assert install._environment_of_uv()["UV_DEFAULT_INDEX"] == "https://variable.invalid/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.invalid/simple")
    assert install._environment_of_uv()["UV_DEFAULT_INDEX"] == "https://uv.invalid/simple"
