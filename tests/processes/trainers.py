"""Helpers that start real `trainer` processes in tests, watch them, and find their child processes."""

import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from trainer.telemetry import report
from trainer.telemetry.progress import parse

PATIENCE = 240.0
"""Seconds after which a test treats a process as hung."""
WITHOUT_EVALUATIONS = "--eval_seconds=600"
"""An evaluation may keep a checkpoint that is newer than the last saved one, and is restored instead of it, or that is
better than the last one, and is exported instead of it."""
WITHOUT_SAVES = "--save_share=0"
"""No checkpoint is saved within the first minute, however slow the machine is."""
SETTINGS = ["--learning_rate", "0.003", "--batch_size", "200", "--report_steps", "100", "--train_steps"]
"""With these, 800 steps reach the best accuracy of this network on digits, with less variance than the defaults."""
MARK = "RUN_OF_TEST"
SET_BY_IMPORT = {"TF_CPP_MIN_LOG_LEVEL", "TF_USE_LEGACY_KERAS"}
"""What importing `trainer.tensorflow` sets in the process of the tests: a user's shell does not have it."""


class Trainer:
    """Starts `trainer` processes with a unique mark in their environment, which child processes inherit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[str]] = []
        self._followers: list[threading.Thread] = []

    def start(self, *words: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Start `trainer WORDS…`; `.stdout` provides its stdout and stderr."""
        return self.python("-m", "trainer", *words, **environment)

    def python(self, *words: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Start `python WORDS…`, such as an example program; `.stdout` provides its stdout and stderr."""
        return self._start([sys.executable, *map(str, words)], environment)

    def start_in(self, namespace: Sequence[str], log: Path, *words: str | Path) -> subprocess.Popen[str]:
        """Start `trainer WORDS…` with the words that enter a network namespace, and write its output to a file."""
        process = self._start([*namespace, sys.executable, "-m", "trainer", *map(str, words)], {})

        def follow() -> None:
            with log.open("a") as file:
                for line in process.stdout or ():
                    file.write(line)
                    file.flush()

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        self._followers.append(follower)
        return process

    def start_in_terminal(
        self, *words: str | Path, errors: int = subprocess.STDOUT
    ) -> tuple[subprocess.Popen[str], int]:
        """Start `trainer WORDS…` in a terminal; return the process and the descriptor of the terminal's other end."""
        controller, terminal = pty.openpty()
        command = [sys.executable, "-m", "trainer", *map(str, words)]
        process = self._start(command, {"TERM": "xterm", "COLUMNS": "120"}, terminal, errors)
        os.close(terminal)
        return process, controller

    def _start(
        self,
        command: list[str],
        environment: dict[str, str],
        output: int = subprocess.PIPE,
        errors: int = subprocess.STDOUT,
    ) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if name not in SET_BY_IMPORT}
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=errors,
            text=True,
            cwd=self.folder,
            env={**inherited, report.VARIABLE: "yes", **environment, MARK: self._mark},
        )
        self._started.append(process)
        return process

    def run(self, *words: str | Path, patience: float = PATIENCE, **environment: str) -> tuple[int, str]:
        """Run `trainer WORDS…` to its end, within `patience` seconds; return its exit code and output."""
        process = self.start(*words, **environment)
        output, _ = process.communicate(timeout=patience)
        return process.returncode, output

    def launch(
        self, *words: str | Path, patience: float = PATIENCE, environment: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Run `trainer launch WORDS… --json` to its successful end; return the result."""
        process = self.start("launch", *words, "--json", **(environment or {}))
        output, _ = process.communicate(timeout=patience)
        code = process.returncode
        assert code == 0, output
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result

    def processes(self) -> list[psutil.Process]:
        """Return all live processes of this test."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def task(self, role: str, index: int = 0) -> psutil.Process:
        """Return the launched process of a task."""

        def find() -> psutil.Process | None:
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name() == f"{role}-{index}":
                        return process
            return None

        found: psutil.Process = wait_until(find)
        return found

    def end(self) -> None:
        """Kill the processes that still run."""
        for process in self.processes():
            process.kill()
        for started in self._started:
            started.wait()
        for follower in self._followers:
            follower.join(PATIENCE)
        for started in self._started:
            if started.stdout:
                started.stdout.close()


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until `condition` returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"the condition is not true after {seconds:g} s"
        time.sleep(0.05)
    return value


def wait_for_line(log: Path, *parts: str) -> None:
    """Wait until a log has a line with all these parts."""
    wait_until(
        lambda: log.exists() and any(all(part in line for part in parts) for line in log.read_text().splitlines())
    )


def step_in(log: Path) -> int:
    """Return the last global step in a log; 0 before the first."""
    steps = [found.step for line in log.read_text().splitlines() if (found := parse(line))] if log.exists() else []
    return steps[-1] if steps else 0
