"""A local directory and its copy on an object store, which a thread keeps up to date.

Only one process writes the directory: that of the chief. It works on the local directory, so an object store that is
slow or away does not hold up training. If this process is lost, the next one continues from the copy. So the copy is
complete at each time: the files that name others, such as TensorFlow's `checkpoint`, are copied after these.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from trainer.errors import StoreError, SupersededError
from trainer.run_directory import writer
from trainer.run_directory.writer import Writer
from trainer.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0
SHARE = 0.05
"""The maximum share of the time for copying while a run trains, unless the pauses exceed LONGEST_SECONDS."""
LONGEST_SECONDS = 30.0
REMINDER_SECONDS = 60.0
PATIENCE_SECONDS = 600.0
POINTERS = ("checkpoint", "score.json", "result.json")
"""Names of files that are copied last, in this order, because they name other files or sum them up."""
NOT_RESUMED = ("export", "train", "test", "logs")
"""Folders that a continued run does not read."""

SUMMARIES = ("train", "test")
SUMMARIES_SECONDS = 60.0

PREFIX = "train_dir-"
LOCK = ".lock"
"""A file that the process of a directory has locked. Without it, the directory stays."""

_State = tuple[int, int]


def make_directory() -> Path:
    """Make a temporary directory for a mirror, and remove those of processes that were killed."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (old / LOCK).open() as lock:  # it may be another user's
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = os.open(directory / f"{LOCK}.new", os.O_CREAT | os.O_WRONLY)  # the end of the process releases it
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (directory / f"{LOCK}.new").rename(directory / LOCK)
    return directory


class Mirror:
    """Keeps the copy of a directory up to date, from entry to exit. The exit copies the last changes."""

    def __init__(self, store: ObjectStore, directory: Path, is_stopping: Callable[[], bool], chief: Writer) -> None:
        """Take a directory that `make_directory` has made.

        Args:
            store: Where the copy is.
            directory: The directory.
            is_stopping: Whether this task must end soon.
            chief: The identity of the process. Another chief that claims the copy ends the copying.
        """
        self._chief = chief
        self._is_stopping = is_stopping
        self._store, self._directory = store, directory
        self._staging = directory / ".upload"
        self._copied: dict[str, _State] = {}
        self._is_removed = False
        self._summaries_copied = 0.0
        self._next_warning = 0.0
        self._pushing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._push_again_and_again, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        """Claim the copy, and copy what a continued run reads into the directory.

        Raises:
            StoreError: it cannot be read.
            SupersededError: this chief has restarted, and another one has claimed the copy meanwhile.
        """
        self._store.upload(writer.FILE, self._chief.claim(self._store.read(writer.FILE)))
        for name in self._store.names():
            if name.partition("/")[0] not in NOT_RESUMED and name != writer.FILE:
                self._store.download(name, self._directory / name)
                self._copied[name] = _state(self._directory / name)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Copy the last changes, and remove the directory.

        The other tasks of a run that is done have ended, so nobody can repeat it: copying is repeated for ten minutes.

        Raises:
            StoreError: they cannot be copied. After another error it is only logged. The directory stays.
            SupersededError: another chief has claimed the copy.
        """
        self._ended.set()
        self._thread.join()
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while not self._try_to_push(deadline, is_last=error is not None):
                time.sleep(INTERVAL_SECONDS)
        except StoreError as failed:
            (self._directory / LOCK).unlink(missing_ok=True)
            sentence = f"{failed}; the last files are in {self._directory}"
            if error is None:
                raise StoreError(sentence) from failed
            logger.error(sentence)
        except SupersededError:
            self._remove()
            if error is None:
                raise
        else:
            self._remove()

    def _remove(self) -> None:
        with self._pushing:
            self._is_removed = True
            shutil.rmtree(self._directory, ignore_errors=True)

    def push(self, everything: bool = True) -> None:
        """Copy all changes. Without `everything`, summaries are copied at most once a minute: they always grow.

        Raises:
            StoreError: a request failed.
            SupersededError: another chief has claimed the copy.
        """
        with self._pushing:
            if self._is_removed:  # the watchdog pushes too, in its own thread
                return
            if everything or time.monotonic() - self._summaries_copied > SUMMARIES_SECONDS:
                self._summaries_copied = time.monotonic()
                everything = True
            names, staged = self._stage(everything)
            deleted = self._copied.keys() - names
            if staged or deleted:
                self._check_claim()
            for name in sorted(staged, key=_rank):
                if _rank(name):  # the files before it may have taken minutes
                    self._check_claim()
                self._store.upload(name, self._staging / name)
                self._copied[name] = staged[name]
            if deleted:
                self._check_claim()
            for name in deleted:
                self._store.delete(name)
                del self._copied[name]

    def _check_claim(self) -> None:
        """Check the claim of the copy. If it is another chief's, it becomes that of the directory too.

        Raises:
            StoreError: it cannot be read.
            SupersededError: it is another chief's.
        """
        found = self._store.read(writer.FILE)
        try:
            self._chief.check(found)
        except SupersededError:
            (self._directory / f".{writer.FILE}").write_bytes(found or b"")
            (self._directory / f".{writer.FILE}").replace(self._directory / writer.FILE)
            raise

    def _stage(self, everything: bool) -> tuple[set[str], dict[str, _State]]:
        """Hard-link the changed files into a folder, so that they stay while they are copied.

        A pointer changes before the files that it no longer names are deleted. So if none has changed meanwhile, the
        files that the staged pointers name are staged, or copied already.

        Returns:
            The names of all files, and the states of the staged ones.
        """
        while True:
            shutil.rmtree(self._staging, ignore_errors=True)
            pointers = self._pointers()
            names = set(self._names())
            staged: dict[str, _State] = {}
            for name in names:
                state, is_due = _state(self._directory / name), everything or name.partition("/")[0] not in SUMMARIES
                if self._copied.get(name) != state and is_due:
                    (self._staging / name).parent.mkdir(parents=True, exist_ok=True)
                    with contextlib.suppress(FileNotFoundError):  # deleted since `_names`
                        os.link(self._directory / name, self._staging / name)
                        staged[name] = state
            if pointers == self._pointers():
                return names, staged

    def _pointers(self) -> dict[str, _State]:
        return {name: _state(self._directory / name) for name in self._names() if _rank(name)}

    def _names(self) -> list[str]:
        """All files but those that are being written, and locks."""
        found = (path.relative_to(self._directory) for path in self._directory.rglob("*") if path.is_file())
        return [path.as_posix() for path in found if not _is_temporary(path) and path.name != writer.FILE]

    def _try_to_push(self, deadline: float, is_last: bool) -> bool:
        """Copy all changes; False if it must be tried again.

        Raises:
            StoreError: a request failed, and there is no time left.
        """
        try:
            self.push()
        except StoreError as error:
            if is_last or self._is_stopping() or time.monotonic() > deadline:
                raise
            self._warn(f"{error}; trying again")
            return False
        return True

    def _push_again_and_again(self) -> None:
        pause = INTERVAL_SECONDS
        while not self._ended.wait(pause):
            began = time.monotonic()
            try:
                self.push(everything=False)
            except StoreError as error:
                self._warn(f"{error}; training goes on, and the copy is made later")
            except SupersededError:
                return  # the main thread finds the claim in the directory
            took = time.monotonic() - began
            pause = max(INTERVAL_SECONDS, min(took * (1 / SHARE - 1), LONGEST_SECONDS))

    def _warn(self, sentence: str) -> None:
        if time.monotonic() > self._next_warning:
            self._next_warning = time.monotonic() + REMINDER_SECONDS
            logger.warning(sentence)


def _state(path: Path) -> _State:
    """What changes when a file changes; zeros if it does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _is_temporary(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts) or ".tempstate" in path.name  # TensorFlow's


def _rank(name: str) -> int:
    """The position of a file that names others among these; 0 for all others."""
    base = name.rpartition("/")[2]
    return POINTERS.index(base) + 1 if base in POINTERS else 0
