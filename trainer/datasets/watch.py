"""`trainer data watch`: a command that runs for each new version of a Lance dataset, or each move of a tag.

It reads the dataset, starts the command, and writes the state file.
"""

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.data.files import write_atomically
from trainer.datasets import tags
from trainer.errors import ConfigurationError, StoreError
from trainer.storage import lance_dataset
from trainer.text import one_line

logger = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 300.0
"""The longest pause before a command that failed is repeated."""
READ_SECONDS = 60.0
"""How long the dataset may take to respond before the watch reports it."""
POLL_SECONDS = 0.25
"""The longest call that blocks: Python handles a signal that arrives just before such a call only after it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Request:
    """The arguments of a watch."""

    uri: str
    tag: str | None
    command: Sequence[str]
    interval: float
    state: Path | None


@dataclass(frozen=True)
class Version:
    """A version that the command is to run for, or has run for; the content of the state file."""

    uri: str
    tag: str | None
    version: int
    transaction: str
    """The UUID of the transaction that made it: a dataset that was deleted and made anew has the same numbers."""


def run(request: Request) -> None:
    """Watch until a signal ends the process.

    Raises:
        ConfigurationError: an argument is wrong, the command is not a program, or the dataset cannot be read at first.
        SystemExit: a signal.
    """
    if request.tag is not None:
        tags.check_name(request.tag)
    program = request.command[0]
    if shutil.which(program) is None:
        if "/" in program and os.path.isfile(program):
            raise ConfigurationError(f"COMMAND={program}: the file is not executable; run chmod +x on it.")
        raise ConfigurationError(f"COMMAND={program}: there is no such program; install it, or name its path.")
    done = _read_state(request)
    what = f"the tag {request.tag}" if request.tag else "the newest version"
    first = f"version {done.version} is done" if done else "the command runs first for the present version"
    logger.info(f"watching {what}, every {request.interval:g} s; {first}")
    _follow(request, done)


def _follow(request: Request, done: Version | None) -> None:
    reader = _Reader(request)
    failed: Version | None = None
    pause = next_try = 0.0
    while True:
        found = reader.read()
        if found is None or found == done or (found == failed and time.monotonic() < next_try):
            _sleep(request.interval)
            continue
        problem = _run_command(request, found)
        if not problem:
            done, failed = found, None
            continue
        pause = min(2 * pause, max(MAX_PAUSE_SECONDS, request.interval)) if found == failed else request.interval
        failed, next_try = found, time.monotonic() + pause
        logger.warning(f"version {found.version}: {problem}; it runs again in {pause:g} s, or for another version")


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, POLL_SECONDS))


class _Reader:
    """Reads which version is present, and logs what prevents it, once."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._thread = ThreadPoolExecutor(1)
        """A read of a volume or a store that hangs cannot be interrupted, but a signal must end the process."""
        self._pending: Future[Version | str] | None = None
        self._has_access = self._has_read = self._is_away = False
        self._reason = ""

    def read(self) -> Version | None:
        """The present version; None if there is none, or if it cannot be read.

        Raises:
            ConfigurationError: it could never be read, and a retry does not help.
        """
        try:
            found = self._result()
        except (ConfigurationError, StoreError) as error:
            if isinstance(error, ConfigurationError) and not self._has_read:
                raise
            if not self._is_away:
                logger.warning(f"{one_line(str(error)).rstrip('.')}; the watch goes on")
            self._is_away = True
            return None
        if self._is_away:
            logger.info(f"{self._request.uri} can be read again")
        self._has_read, self._is_away = True, False
        reason = found if isinstance(found, str) else ""
        if reason and reason != self._reason:
            logger.info(f"waiting: {reason}")
        self._reason = reason
        return None if isinstance(found, str) else found

    def _result(self) -> Version | str:
        """The present version, or why there is none."""
        self._pending = self._pending or self._thread.submit(self._look)
        end = time.monotonic() + READ_SECONDS
        while not wait([self._pending], POLL_SECONDS).done:
            if time.monotonic() > end:
                raise StoreError(f"{self._request.uri} does not respond for {READ_SECONDS:g} s")
        pending, self._pending = self._pending, None
        return pending.result()

    def _look(self) -> Version | str:
        uri, tag = self._request.uri, self._request.tag
        if not self._has_access:
            lance_dataset.check_access(uri, "URI")
            self._has_access = True
        dataset = lance_dataset.find_dataset(uri)
        if dataset is None:
            return f"there is no dataset at {uri}"
        try:
            number = dataset.version
            if tag:
                named = dataset.tags.list().get(tag)
                if named is None:
                    return f"{uri} has no tag {tag}"
                number = named["version"]
            made_by = dataset.read_transaction(number)
        except lance_dataset.ERRORS as error:
            raise lance_dataset.refusal(uri, "read", error) from None
        return Version(uri, tag, number, made_by.uuid if made_by else "")


def _run_command(request: Request, version: Version) -> str:
    """Run the command, and write the state if it succeeds; return its problem, if any.

    Raises:
        ConfigurationError: the command is not a program.
        SystemExit: a signal arrived meanwhile. The command has got it and has ended.
    """
    environment = {
        "DATA_URI": version.uri,
        "DATA_TAG": version.tag or "",
        "DATA_VERSION": str(version.version),
        "DATA_TRANSACTION": version.transaction,
    }
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: Any) -> None:
        received.append(number)
        if process is not None:
            _send(process, number)

    logger.info(f"version {version.version}: the command starts")
    began = time.monotonic()
    handlers = {number: signal.signal(number, forward) for number in SIGNALS}
    try:
        # In a session of its own, so that Ctrl-C in a terminal reaches it once.
        process = subprocess.Popen(
            request.command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, start_new_session=True
        )
        for number in received:
            _send(process, number)
        while (code := process.poll()) is None:
            time.sleep(POLL_SECONDS)
        problem = _describe(code)
        if not problem:
            logger.info(f"version {version.version}: the command is done, in {time.monotonic() - began:.1f} s")
            _write_state(request, version)
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            raise ConfigurationError(
                f"COMMAND={request.command[0]}: the file is not a program; if it is a script, add a first line such as "
                "#!/bin/sh."
            ) from None
        problem = f"the command cannot start ({error.strerror})"
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        ended = problem or "the command has ended"
        logger.info(f"version {version.version}: {ended} after {signal.Signals(received[0]).name}")
        sys.exit(128 + received[0])
    return problem


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to the command and the processes that it started, as a terminal does."""
    with contextlib.suppress(OSError):  # it has ended
        os.killpg(process.pid, number)


def _describe(code: int) -> str:
    if code < 0:
        return f"the command was ended by signal {-code} ({signal.strsignal(-code)})"
    return f"the command has ended with code {code}" if code else ""


def _read_state(request: Request) -> Version | None:
    """The version in the state file; None without one."""
    if not request.state:
        return None
    try:
        found = Version(**json.loads(request.state.read_text(encoding="utf-8")))
    except FileNotFoundError:
        if os.access(request.state.parent, os.W_OK):
            return None
        raise ConfigurationError(
            f"--state: {request.state} cannot be written; name a file in a writable folder."
        ) from None
    except OSError as error:
        raise ConfigurationError(f"--state: {request.state} cannot be read ({error.strerror}); name a file.") from None
    except (TypeError, ValueError):
        raise ConfigurationError(f"--state: {request.state} is not the state of a watch; name another file.") from None
    if (found.uri, found.tag) != (request.uri, request.tag):
        of = f"the tag {found.tag} of {found.uri}" if found.tag else found.uri
        raise ConfigurationError(f"--state: {request.state} is the state of a watch of {of}; name another file.")
    return found


def _write_state(request: Request, version: Version) -> None:
    if not request.state:
        return
    try:
        write_atomically(request.state, (json.dumps(asdict(version)) + "\n").encode())
    except OSError as error:
        logger.warning(
            f"{request.state} cannot be written ({error.strerror}); a restart would repeat version {version.version}"
        )
