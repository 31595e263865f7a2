"""The processes of one run: started together, watched for their memory, and all ended when the run is."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

BETWEEN_LOOKS = 0.2
"""Seconds between two looks at the processes' memory."""


class FailedError(Exception):
    """A run ended without a result; says what its processes wrote last."""


@dataclass(frozen=True)
class Task:
    """A process to start."""

    role: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Processes:
    """The running processes of a run, in the order of their tasks."""

    def __init__(self, running: Sequence[tuple[Task, subprocess.Popen[str]]], folder: Path, patience: float) -> None:
        self._running, self._folder = running, folder
        self._deadline = time.monotonic() + patience
        self.began = time.time()
        """When they had been started, in seconds since 1970."""
        self.memory: dict[str, float] = {}
        """Peak resident memory in MiB by role, of the largest process of each."""

    def wait(self, number: int) -> str:
        """The standard output of a task that ends by itself.

        Raises:
            FailedError: it ended otherwise than well, or not in time.
        """
        task, process = self._running[number]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, self._deadline - time.monotonic()))
        if process.returncode != 0:
            raise FailedError(f"{task.role}: exit code {process.returncode}\n{self._said(number)}")
        return (self._folder / f"{number}.out").read_text()

    def wait_for_line(self, number: int) -> str:
        """The first whole line of a task's standard output, which may be its last act, its end being slow.

        Raises:
            FailedError: it ended without one, or wrote none in time.
        """
        output = self._folder / f"{number}.out"
        task, process = self._running[number]
        while True:
            has_ended = process.poll() is not None
            line, newline, _ = output.read_text().partition("\n")
            if newline:
                return line
            if has_ended or time.monotonic() > self._deadline:
                raise FailedError(f"{task.role}: no result, exit code {process.returncode}\n{self._said(number)}")
            time.sleep(0.05)

    def _said(self, number: int) -> str:
        return (self._folder / f"{number}.err").read_text()[-2000:]

    def look(self) -> None:
        """Note the memory of every process now."""
        for task, process in self._running:
            with contextlib.suppress(psutil.Error):
                peak = psutil.Process(process.pid).memory_info().rss / 2**20
                self.memory[task.role] = max(self.memory.get(task.role, 0.0), round(peak, 1))


@contextlib.contextmanager
def running(tasks: Sequence[Task], folder: Path, patience: float) -> Iterator[Processes]:
    """Start these tasks, their outputs going to files in a folder, and kill those that are left at the end.

    A task that is waited for more than `patience` seconds after the start is taken for hanging.
    """
    started: list[tuple[Task, subprocess.Popen[str]]] = []
    over = threading.Event()
    try:
        for number, task in enumerate(tasks):
            with (folder / f"{number}.out").open("w") as output, (folder / f"{number}.err").open("w") as error:
                process = subprocess.Popen(
                    task.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=error,
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **task.environment},
                    text=True,
                    start_new_session=True,  # a Ctrl-C is the benchmark's, which ends them
                )
            started.append((task, process))
        processes = Processes(started, folder, patience)

        def watch() -> None:
            while not over.wait(BETWEEN_LOOKS):
                processes.look()

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        yield processes
    finally:
        over.set()
        for _, process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
