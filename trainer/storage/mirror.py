"""A local directory and its copy on an object store, which a thread keeps up to date.

Only one process writes the directory: that of the chief. It works on the local directory, so an object store that is
slow or away does not hold up training. If this process is lost, the next one continues from the copy. So the copy is
complete at each time: the files that name others, such as TensorFlow's `checkpoint`, are copied after these.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from trainer.errors import StoreError
from trainer.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0
REMINDER_SECONDS = 60.0
PATIENCE_SECONDS = 600.0
POINTERS = ("checkpoint", "score.json", "result.json")
"""Names of files that are copied last, in this order, because they name other files or sum them up."""
NOT_RESUMED = ("export", "train", "test", "logs")
"""Folders that a continued run does not read."""

SUMMARIES = ("train", "test")
SUMMARIES_SECONDS = 60.0

_State = tuple[int, int]


class Mirror:
    """Keeps the copy of a directory up to date, from entry to exit. The exit copies the last changes."""

    def __init__(self, store: ObjectStore, directory: Path, is_stopping: Callable[[], bool]) -> None:
        """Take an empty directory.

        Args:
            store: Where the copy is.
            directory: The directory.
            is_stopping: Whether this task must end soon.
        """
        self._is_stopping = is_stopping
        self._store, self._directory = store, directory
        self._copied: dict[str, _State] = {}
        self._summaries_copied = 0.0
        self._next_warning = 0.0
        self._pushing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._push_again_and_again, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        """Copy what a continued run reads into the directory.

        Raises:
            StoreError: it cannot be read.
        """
        for name in self._store.names():
            if name.partition("/")[0] not in NOT_RESUMED:
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
        """
        self._ended.set()
        self._thread.join()
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while not self._try_to_push(deadline, is_last=error is not None):
                time.sleep(INTERVAL_SECONDS)
        except StoreError as failed:
            sentence = f"{failed}; the last files are in {self._directory}"
            if error is None:
                raise StoreError(sentence) from failed
            logger.error(sentence)
        else:
            shutil.rmtree(self._directory, ignore_errors=True)

    def push(self, everything: bool = True) -> None:
        """Copy all changes. Without `everything`, summaries are copied at most once a minute: they always grow.

        Raises:
            StoreError: a request failed.
        """
        with self._pushing:
            if everything or time.monotonic() - self._summaries_copied > SUMMARIES_SECONDS:
                self._summaries_copied = time.monotonic()
                everything = True
            while not self._push_once(everything):
                pass

    def _push_once(self, everything: bool) -> bool:
        """Copy the changes since the last pass. False if the directory changed so that they may not fit each other."""
        # Read the pointers first: what they name is complete then.
        pointers = {name: _state(self._directory / name) for name in self._names() if _rank(name)}
        try:
            contents = {name: (self._directory / name).read_bytes() for name in pointers}
            states = {name: _state(self._directory / name) for name in self._names() if not _rank(name)}
            for name, state in states.items():
                is_due = everything or name.partition("/")[0] not in SUMMARIES
                if self._copied.get(name) != state and is_due:
                    self._store.upload(name, self._directory / name)
                    self._copied[name] = state
        except FileNotFoundError:
            return False
        for name in sorted(pointers, key=_rank):
            if self._copied.get(name) != pointers[name]:
                self._store.upload(name, contents[name])
                self._copied[name] = pointers[name]
        if any(_state(self._directory / name) != state for name, state in pointers.items()):
            return False  # the copied pointers may name files that exist no longer
        for name in self._copied.keys() - states.keys() - pointers.keys():
            self._store.delete(name)
            del self._copied[name]
        return True

    def _names(self) -> list[str]:
        """All files but those whose names begin with a dot: files that are being written, and locks."""
        found = (path.relative_to(self._directory) for path in self._directory.rglob("*") if path.is_file())
        return [path.as_posix() for path in found if not any(part[0] == "." for part in path.parts)]

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
        while not self._ended.wait(INTERVAL_SECONDS):
            try:
                self.push(everything=False)
            except StoreError as error:
                self._warn(f"{error}; training goes on, and the copy is made later")

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


def _rank(name: str) -> int:
    """The position of a file that names others among these; 0 for all others."""
    base = name.rpartition("/")[2]
    return POINTERS.index(base) + 1 if base in POINTERS else 0
