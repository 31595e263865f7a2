"""The program that has imported what tasks import, and becomes a task whenever the launcher asks for one.

    python -m trainer.launcher.fork_server DESCRIPTOR MODULE…

The import of TensorFlow takes longer than all else of a task's start, and the tasks of a launch share its memory. This
program imports alone: a session, a server or a GPU of TensorFlow does not survive a fork. `trainer.launcher.forks` is
the other side, and says what a request and an answer are.
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from trainer.config import ENVIRONMENT_PREFIX
from trainer.launcher.processes import die_with_parent

SIZE = 1 << 16
"""How much of a request is read at once, in bytes."""


def main() -> int:
    """Serve until the launcher closes its socket, and then end the tasks that are left; returns 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # one for all: the launcher ends the tasks, and waits
    die_with_parent(signal.SIGKILL)
    with socket.socket(fileno=int(sys.argv[1])) as launcher:
        for name in sys.argv[2:]:
            with contextlib.suppress(Exception):  # a task that needs the module says why it cannot be imported
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a collection would write to the memory that tasks share
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, _ignore)
        codes: dict[int, int] = {}  # the pipe for the exit code of each task
        while True:
            ready, _, _ = select.select([launcher.fileno(), woken], [], [])
            if woken in ready:
                os.read(woken, SIZE)
                _report(codes)
            if launcher.fileno() in ready:
                request, descriptors = _receive(launcher)
                if not request:
                    break
                launcher.sendall(b"%d\n" % _fork(request, descriptors, [launcher.fileno(), woken, wake], codes))
    for task in codes:
        os.kill(task, signal.SIGTERM)
    while codes:
        select.select([woken], [], [])
        os.read(woken, SIZE)
        _report(codes)
    return 0


def _fork(request: dict[str, Any], descriptors: Sequence[int], others: Sequence[int], codes: dict[int, int]) -> int:
    """Start a task; return its process id, or a negative number of an error."""
    server = os.getpid()
    try:
        output, code = descriptors
        task = os.fork()
    except (OSError, ValueError) as error:  # without a descriptor left, fewer come
        for each in descriptors:
            os.close(each)
        return -(getattr(error, "errno", None) or errno.EMFILE)
    if not task:
        _become(request, output, [*others, code, *codes.values()], server)
    os.close(output)
    codes[task] = code
    return task


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler, without which no signal wakes the server."""


def _receive(launcher: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next request and its descriptors; an empty one if the launcher is gone."""
    text, descriptors, _, _ = socket.recv_fds(launcher, SIZE, 2)
    while text and not text.endswith(b"\n"):
        text += launcher.recv(SIZE)
    return (json.loads(text) if text else {}), descriptors


def _report(codes: dict[int, int]) -> None:
    """Write the exit codes of the tasks that have ended, as `subprocess` has them: a signal is negative."""
    while codes:
        task, status = os.waitpid(-1, os.WNOHANG)
        if not task:
            return
        if pipe := codes.pop(task, None):
            with contextlib.suppress(OSError):
                os.write(pipe, b"%d" % os.waitstatus_to_exitcode(status))
            os.close(pipe)


def _become(request: dict[str, Any], output: int, others: Sequence[int], server: int) -> NoReturn:
    """Be the task, `python -m trainer WORDS…` in a session, with an output and an environment of its own.

    Args:
        request: What the launcher wants.
        output: The descriptor of the output.
        others: The server's other descriptors.
        server: The server's process id.
    """
    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with_parent(name=request["name"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # one may have come already
        if os.getppid() != server:  # it has died before that
            sys.exit(128 + signal.SIGTERM)
        for standard in (sys.stdout, sys.stderr):
            os.dup2(output, standard.fileno())
        for each in (output, *others):
            os.close(each)
        for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
            del os.environ[name]  # a setting of the launch, which its tasks find in a file
        os.environ.update(request["environment"])
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # or all tasks would draw the same numbers
        words = ["-m", "trainer", *request["words"]]
        sys.orig_argv, sys.argv = [sys.executable, *words], words[1:]
        runpy.run_module("trainer", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for standard in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # it may be closed
                standard.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    sys.exit(main())
