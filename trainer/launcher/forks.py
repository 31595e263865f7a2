"""Starts tasks as forks of one process that has imported TensorFlow.

A request is a line of JSON with the task's name, the words of its `trainer` command and its own environment variables;
the descriptors of its output and of a pipe for its exit code travel with it. The answer is a line with the process id.
"""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from trainer.launcher.plan import TaskProgram
from trainer.launcher.processes import start_process
from trainer.telemetry import goodput

MODULES = ("trainer.cli", "trainer.training.train", "trainer.training.evaluator", "trainer.training.parameter_server")
"""What every task imports before it reads a model's file."""
ANSWER_BYTES = 32


class Forks:
    """The process that is forked. If something has killed it, a next one imports nothing: tasks then do so themselves.

    So they have in their logs what an import that crashes says.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it with these modules imported, and with this environment. It imports while the caller goes on."""
        self._environment = {**environment, "PYTHONUNBUFFERED": "1"}
        self._has_answered = False
        self._start_server(modules)

    def start(self, program: TaskProgram, output: IO[bytes], began: float) -> "Fork":
        """Start a task that somebody has wanted since this time, in seconds since 1970. It ends with the launcher.

        Raises:
            OSError: no process can be started.
        """
        environment = {**program.environment, goodput.BEGAN: str(began)}
        request = json.dumps({"name": program.task.slug, "words": program.words, "environment": environment})
        reader, writer = os.pipe()
        try:
            task = self._ask(request, [output.fileno(), writer])
            if task is None:
                self.close(0)
                self._start_server(())
                task = self._ask(request, [output.fileno(), writer])
            if task is None or task < 0:
                number = errno.ECHILD if task is None else -task
                raise OSError(number, os.strerror(number))
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return Fork(task, reader)

    def close(self, seconds: float) -> None:
        """End it. A task that still runs receives SIGTERM, and is killed after so many seconds."""
        self._socket.close()
        if self._has_answered:  # otherwise it imports, and there is no task
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(seconds)
        self._server.kill()
        self._server.wait()

    def _start_server(self, modules: Sequence[str]) -> None:
        self._socket, other = socket.socketpair()
        with other:
            words = ["-m", "trainer.launcher.fork_server", str(other.fileno()), *modules]
            self._server = start_process(
                [sys.executable, *words], subprocess.DEVNULL, self._environment, [other.fileno()]
            )

    def _ask(self, request: str, descriptors: Sequence[int]) -> int | None:
        """The process id of the task, or a negative number of an error; None if the server is gone."""
        try:
            socket.send_fds(self._socket, [f"{request}\n".encode()], descriptors)
            answer = self._socket.recv(ANSWER_BYTES)
        except (BrokenPipeError, ConnectionResetError):
            return None
        self._has_answered = bool(answer)
        return int(answer) if answer else None


class Fork:
    """A task's process, with the methods of `subprocess.Popen` that the launcher needs."""

    def __init__(self, pid: int, code: int) -> None:
        """Follow the process whose exit code comes from this descriptor."""
        self.pid = pid
        self.returncode: int | None = None
        self._code = code
        self._end: int | None = None
        """A descriptor that can be read when the process has ended, once nobody tells its exit code."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._await(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended after so many seconds.
        """
        code = self._await(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def terminate(self) -> None:
        """Send SIGTERM if it runs."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL if it runs."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _await(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._end is None and select.select([self._code], [], [], timeout)[0]:
            if text := os.read(self._code, ANSWER_BYTES):
                self.returncode = int(text)
                os.close(self._code)
            else:  # somebody has killed the server, and the task got SIGTERM
                self._follow_alone()
        if self.returncode is None and self._end is not None and select.select([self._end], [], [], timeout)[0]:
            self.returncode = -signal.SIGTERM
            os.close(self._end)
        return self.returncode

    def _follow_alone(self) -> None:
        """Wait for the end of a process that is no child of anybody here."""
        try:
            end = os.pidfd_open(self.pid)
        except (ProcessLookupError, AttributeError):  # it has ended, or the system is not Linux
            self.returncode = -signal.SIGTERM
        else:
            self._end = end
        os.close(self._code)
