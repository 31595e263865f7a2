"""A run of processes on this machine: `trainer launch`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.cluster import SUPERVISOR, FaultError, Line
from benchmarks.faults.workload import Workload

MARK = "RUN_OF_FAULTS"
END_SECONDS = 40.0


class LogFile:
    """Reads the lines that are added to a log file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new_lines(self) -> list[str]:
        """The complete lines since the last call; none if the file does not exist."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._read)
                text = log.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()


class Launch:
    """A run by `trainer launch`; its tasks are found by a mark in their environment."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        """Start the run with its training directory in `folder`."""
        self.workload = workload
        self.directory = folder / "run"
        self._mark = uuid.uuid4().hex
        self._output = folder / "launcher.log"
        self._logs: dict[Path, LogFile] = {}
        self._known: dict[str, psutil.Process] = {}
        words = [f"--ps={workload.ps}", f"--workers={workload.workers}", "--max_restarts=1000"]
        words += ["--chief"] * workload.chief + ["--evaluator"] * workload.evaluator
        words += [f"--{name}={value}" for name, value in workload.settings.items()]
        words += [f"--model={workload.model}", f"--train_dir={self.directory}"]
        environment = {MARK: self._mark, "PYTHONUNBUFFERED": "1", **workload.environment}
        with self._output.open("wb") as output:
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "trainer", "launch", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C goes to this program, which ends the run
            )

    def new_lines(self) -> list[Line]:
        """The lines of the tasks' logs, with the time at which this reads them, and the launcher's own."""
        now = time.time()
        for path in [self._output, *self.directory.glob("logs/*.log")]:
            self._logs.setdefault(path, LogFile(path))
        found = []
        for path, log in self._logs.items():
            task = SUPERVISOR if path == self._output else path.stem
            # The launcher repeats the lines of tasks; only its own begin with the name of a task.
            found += [Line(now, task, text) for text in log.new_lines() if task != SUPERVISOR or _is_own(text)]
        return found

    def send_signal(self, tasks: Sequence[str], number: int) -> None:
        """Send a signal to the processes of these tasks."""
        targets = [self._process(task) for task in tasks]
        for target in targets:
            with contextlib.suppress(psutil.NoSuchProcess):
                target.send_signal(number)

    def processes(self, task: str) -> list[int]:
        """The process id of a task, or of the launcher."""
        if task == SUPERVISOR:
            return [self._launcher.pid]
        with contextlib.suppress(FaultError):
            return [self._process(task, 0).pid]
        return []

    def _process(self, task: str, seconds: float = 30) -> psutil.Process:
        deadline = time.monotonic() + seconds
        while True:
            known = self._known.get(task)
            if known and known.is_running() and known.status() != psutil.STATUS_ZOMBIE:
                return known
            for process in self._marked():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name() == task:
                        self._known[task] = process
                        return process
            if time.monotonic() >= deadline:
                raise FaultError(f"{task} does not run")
            time.sleep(0.05)

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def exit_code(self) -> int | None:
        """The launcher's exit code."""
        return self._launcher.poll()

    def restarts(self) -> int:
        """How often the launcher has said that it starts a task again."""
        return self._output.read_text(errors="replace").count(": starting again")

    def result(self) -> dict[str, Any]:
        """The content of result.json."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.directory / "result.json").read_text()))
        return {}

    def close(self) -> None:
        """End the launcher and its tasks."""
        if self._launcher.poll() is None:
            self._launcher.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(END_SECONDS)
        for process in self._marked():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._launcher.wait()


def _is_own(line: str) -> bool:
    """Whether the launcher itself says this: `ps 0: starting again (SIGKILL)`."""
    return not line[:2].isdigit()
