"""The processes of one run: start them together, sample their memory, and kill them when the run ends."""

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

SAMPLE_INTERVAL = 0.2
"""Seconds between two samples of the processes' memory."""


class FailedError(Exception):
    """A run gave no result; the message ends with the last output of its processes."""


@dataclass(frozen=True)
class Task:
    """A process to start."""

    role: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """A machine, or what stands for one."""

    address: str = "localhost"
    enter: tuple[str, ...] = ()
    """The words before a command that runs there."""


class Processes:
    """The running processes of a run, in the order of their tasks."""

    def __init__(self, running: Sequence[tuple[Task, subprocess.Popen[str]]], folder: Path, timeout: float) -> None:
        self._running, self._folder = running, folder
        self._deadline = time.monotonic() + timeout
        self.started_at = time.time()
        """When all had started, in seconds since 1970."""
        self.memory: dict[str, float] = {}
        """Peak resident memory in MiB by role, of the largest process of each role."""

    def wait(self, number: int) -> str:
        """Wait for a task to exit, and return its standard output.

        Raises:
            FailedError: the task failed or timed out.
        """
        task, process = self._running[number]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, self._deadline - time.monotonic()))
        if process.returncode != 0:
            raise FailedError(f"{task.role}: exit code {process.returncode}\n{self._stderr(number)}")
        return (self._folder / f"{number}.out").read_text()

    def wait_for_line(self, number: int) -> str:
        """Wait for the first complete line of a task's standard output, without waiting for its exit.

        Raises:
            FailedError: the task exited without printing a line, or timed out.
        """
        output = self._folder / f"{number}.out"
        task, process = self._running[number]
        while True:
            has_ended = process.poll() is not None
            line, newline, _ = output.read_text().partition("\n")
            if newline:
                return line
            if has_ended or time.monotonic() > self._deadline:
                raise FailedError(f"{task.role}: no result, exit code {process.returncode}\n{self._stderr(number)}")
            time.sleep(0.05)

    def output(self, number: int) -> str:
        """What a task has written to its standard output."""
        return (self._folder / f"{number}.out").read_text(errors="replace")

    def cpu_seconds(self) -> list[float]:
        """The CPU time that each task has taken."""
        times = [psutil.Process(process.pid).cpu_times() for _, process in self._running]
        return [each.user + each.system for each in times]

    def check(self) -> None:
        """Check that all tasks run.

        Raises:
            FailedError: one has ended, or the time-out has passed.
        """
        for number, (task, process) in enumerate(self._running):
            if process.poll() is not None or time.monotonic() > self._deadline:
                raise FailedError(f"{task.role}: exit code {process.poll()}\n{self._stderr(number)}")

    def _stderr(self, number: int) -> str:
        return (self._folder / f"{number}.err").read_text()[-2000:]

    def sample_memory(self) -> None:
        """Sample the memory of every process."""
        for task, process in self._running:
            with contextlib.suppress(psutil.Error):
                peak = psutil.Process(process.pid).memory_info().rss / 2**20
                self.memory[task.role] = max(self.memory.get(task.role, 0.0), round(peak, 1))


@contextlib.contextmanager
def running(tasks: Sequence[Task], folder: Path, timeout: float) -> Iterator[Processes]:
    """Start these tasks with their output in files of `folder`, and kill what still runs when the context ends.

    Waiting for a task fails `timeout` seconds after the start.
    """
    started: list[tuple[Task, subprocess.Popen[str]]] = []
    stopped = threading.Event()
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
                    start_new_session=True,  # Ctrl-C goes to the benchmark, which kills them
                )
            started.append((task, process))
        processes = Processes(started, folder, timeout)

        def sample() -> None:
            while not stopped.wait(SAMPLE_INTERVAL):
                processes.sample_memory()

        threading.Thread(target=sample, daemon=True).start()
        yield processes
    finally:
        stopped.set()
        for _, process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
