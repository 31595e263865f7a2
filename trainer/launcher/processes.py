"""The processes of a launch: they are started, followed, restarted, and always ended."""

import contextlib
import ctypes
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from trainer.launcher.display import Display
from trainer.launcher.log_volume import LogVolume
from trainer.launcher.plan import TaskProgram

POLL_SECONDS = 0.1
LEAVING_SECONDS = 60.0
"""How long the other tasks may take to end after the chief."""


class Process:
    """A task and its current process."""

    def __init__(self, program: TaskProgram, logs: Path) -> None:
        """Prepare a process that appends its output to a file in `logs`."""
        self.task, self.is_chief = program.task, program.is_chief
        self._program = program
        self.log = logs / f"{program.task.slug}.log"
        self.handle: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self.ended = False
        self._output = self.log.open("ab")  # once: when the volume is read-only, a restart could not open it
        self._read = self.log.stat().st_size

    def start(self) -> None:
        """Start or restart the process. It appends to the same log file."""
        self.handle = start_process(self._program.command, self._output, self._program.environment)

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
    command: Sequence[str], output: IO[bytes] | int, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that ends with the launcher. It inherits the launcher's environment if none is given."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # the launcher handles Ctrl-C and terminates the tasks
        preexec_fn=_die_with_parent,
    )


def run_processes(processes: list[Process], max_restarts: int, display: Display) -> tuple[Process, int] | None:
    """Run the tasks until all have ended; return the task that failed permanently, if any, and its exit code."""
    volume = LogVolume(processes[0].log.parent)
    for process in processes:
        process.start()
    chief_ended: float | None = None
    while any(not process.ended for process in processes):
        for process in processes:
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
            elif is_permanent(code) or process.restarts >= max_restarts:
                display.state(process.task, f"failed ({_name_of(code)})")
                return process, code
            else:
                process.restarts += 1
                display.state(process.task, f"starting again ({_name_of(code)})")
                process.start()
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


def _name_of(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _die_with_parent() -> None:
    """Have the kernel terminate this child when the launcher dies. Linux only; elsewhere this does nothing."""
    with contextlib.suppress(AttributeError, OSError):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def end_processes(handles: list[subprocess.Popen[bytes]], seconds: float) -> None:
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
