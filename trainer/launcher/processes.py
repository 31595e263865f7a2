"""The processes of a launch: they are started, followed, restarted, and always ended."""

import contextlib
import ctypes
import math
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from trainer.errors import AGAIN, LostPeersError
from trainer.launcher.display import Display
from trainer.launcher.log_volume import LogVolume
from trainer.launcher.plan import TaskProgram

POLL_SECONDS = 0.1
SHORT_LIFE_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 4.0
"""The pause before a restart of a task that lived shorter than SHORT_LIFE_SECONDS: first, and at most. It doubles, so
that what is away for some seconds does not use up the restarts."""
LEAVING_SECONDS = 60.0
"""How long the other tasks may take to end after the chief."""


class Handle(Protocol):
    """A process: what the launcher needs of `subprocess.Popen`."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""

    def terminate(self) -> None:
        """Send SIGTERM if it runs."""

    def kill(self) -> None:
        """Send SIGKILL if it runs."""


Start = Callable[[TaskProgram, IO[bytes], float], Handle]
"""Starts a program with this output, which is wanted since this time in seconds since 1970."""


class Process:
    """A task and its current process."""

    def __init__(self, program: TaskProgram, logs: Path, start: Start) -> None:
        """Prepare a process that appends its output to a file in `logs`."""
        self.task, self.is_chief = program.task, program.is_chief
        self._program, self._start = program, start
        self.log = logs / f"{program.task.slug}.log"
        self.handle: Handle | None = None
        self.restarts = 0
        self.ended = False
        self._pause, self._started, self._due = 0.0, 0.0, math.inf
        self._output = self.log.open("ab")  # once: when the volume is read-only, a restart could not open it
        self._read = self.log.stat().st_size

    def restart(self) -> None:
        """Count a restart, and start the process at once, or make it due after a pause if it has lived shortly."""
        now = time.monotonic()
        lives_shortly = now - self._started < SHORT_LIFE_SECONDS
        self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LAST_PAUSE_SECONDS) if lives_shortly else 0.0
        self.restarts, self.handle, self._due = self.restarts + 1, None, now + self._pause
        self.start_if_due()

    @property
    def is_due_later(self) -> bool:
        """Whether it waits to be started again."""
        return self._due < math.inf

    def start_if_due(self) -> None:
        """Start the process if its restart is due.

        Raises:
            LostPeersError: as `start`.
        """
        if time.monotonic() >= self._due:
            self.start()

    def start(self, began: float | None = None) -> None:
        """Start or restart the process, which is wanted since this time, or now. It appends to the same log file.

        Raises:
            LostPeersError: the system has no room for one more.
        """
        self._started, self._due = time.monotonic(), math.inf
        try:
            self.handle = self._start(self._program, self._output, time.time() if began is None else began)
        except OSError as error:
            raise LostPeersError(
                f"{self.task}: no process can be started ({error.strerror}): free memory, launch fewer tasks, or raise "
                "the limits of processes and of open files (ulimit -u, ulimit -n)."
            ) from None

    def asks_again(self) -> bool:
        """Whether the task that has ended has asked to be started again."""
        file = self._program.environment.get(AGAIN)
        if not file or not Path(file).exists():
            return False
        Path(file).unlink()
        return True

    def close(self) -> None:
        """Close the log file. The process is not affected."""
        self._output.close()

    def poll(self) -> int | None:
        """Return the exit code of a process that has exited and is not marked as ended; None otherwise."""
        return None if self.handle is None or self.ended else self.handle.poll()

    def terminate(self) -> None:
        """Send SIGTERM if the process runs."""
        if self.handle is not None and not self.ended:
            self.handle.terminate()

    def new_lines(self) -> list[str]:
        """Return the complete lines in the log since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()


def start_process(
    command: Sequence[str],
    output: IO[bytes] | int,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process that ends with the launcher, with its environment unless one is given, and these descriptors."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # the launcher handles Ctrl-C and terminates the tasks
        pass_fds=descriptors,
        preexec_fn=die_with_parent,
    )


def run_processes(processes: list[Process], max_restarts: int, display: Display) -> tuple[Process, int] | None:
    """Run the tasks until all have ended; return the task that failed permanently, if any, and its exit code."""
    volume = LogVolume(processes[0].log.parent)
    began = time.time()
    for process in processes:
        process.start(began)
    chief_ended: float | None = None
    while any(not process.ended for process in processes):
        for process in processes:
            if chief_ended is None or process.task.role == "evaluator":
                process.start_if_due()
            elif process.is_due_later:
                process.ended = True
                display.state(process.task, "done")
            code = process.poll()  # poll before reading the log, so that its last line is included
            for line in process.new_lines():
                display.line(process.task, line)
            if code is None:
                continue
            if code == 0:
                process.ended = True
                display.state(process.task, "done")
                if process.is_chief:
                    chief_ended = time.monotonic()
            elif chief_ended is not None and process.task.role != "evaluator":
                process.ended = True  # the run is done; this task restarted too late to take part in its end
                display.state(process.task, "done")
            elif process.asks_again():
                process.start()
            elif is_permanent(code) or process.restarts >= max_restarts:
                display.state(process.task, f"failed ({name_of(code)})")
                return process, code
            else:
                process.restart()
                count = f"restart {process.restarts} of {max_restarts}"
                display.state(process.task, f"starting again ({name_of(code)}), {count}")
        servers = [process for process in processes if process.task.role == "ps"]
        if chief_ended is not None and servers and all(server.ended for server in servers):
            for process in processes:
                if process.task.role == "worker":
                    process.terminate()  # a worker that has just restarted would wait for parameter servers
        if chief_ended is not None and time.monotonic() - chief_ended > LEAVING_SECONDS:
            for process in processes:
                if not process.ended:
                    display.state(process.task, "did not exit in time; terminated")
            return None
        volume.check()
        display.refresh()
        time.sleep(POLL_SECONDS)
    return None


def is_permanent(code: int) -> bool:
    """Return whether a retry would not help. See `trainer.errors` for the exit codes; negative codes are signals."""
    return 0 < code < 128


def name_of(code: int) -> str:
    """How a process has ended, in words: a negative code is a signal."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def die_with_parent(number: int = signal.SIGTERM, name: str = "") -> None:
    """Have the kernel send a signal to this process when its parent dies, and give it a name for `ps` and `top`.

    Linux only; elsewhere this does nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        set_parent_death_signal, set_name = 1, 15
        control = ctypes.CDLL(None).prctl
        control(set_parent_death_signal, number)
        if name:
            control(set_name, name.encode())


def end_processes(handles: Sequence[Handle], seconds: float) -> None:
    """Terminate these processes, and kill those that still run after `seconds`."""
    for handle in handles:
        if handle.poll() is None:
            handle.terminate()
    deadline = time.monotonic() + seconds
    for handle in handles:
        try:
            handle.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            handle.kill()
            handle.wait()
