"""Commands that a message names."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.text.command_lines import command_line


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a clone with a Python environment, whose program `trainer` prints its arguments, a line each."""
    programs = tmp_path / "my clone" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "trainer").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (programs / "trainer").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.chdir(tmp_path / "my clone")
    return programs


def test_a_program_below_the_working_directory_has_a_relative_path(environment: Path) -> None:
    assert command_line("trainer", "report", "runs/1") == ".venv/bin/trainer report runs/1"


def test_a_program_elsewhere_has_its_path(environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command_line("trainer", "--help") == f"{shlex.quote(str(environment / 'trainer'))} --help"


def test_a_program_on_path_has_its_name(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(environment), prepend=os.pathsep)
    assert command_line("trainer", "--help") == "trainer --help"


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("word", ["runs/second try", "runs/[lr=0.1]", "it's", "$HOME", "50%", "#1", "Größe", "a;b"])
def test_a_shell_gives_the_program_the_same_words(word: str) -> None:
    command = command_line("trainer", "launch", "--train_dir", word, "--ps", 1)
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == ["launch", "--train_dir", word, "--ps", "1"]
