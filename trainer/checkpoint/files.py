"""The files of checkpoints in a directory: their list, their names and links to them."""

import contextlib
import glob
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from trainer.checkpoint import table_files
from trainer.checkpoint.table_files import StoredArrays
from trainer.data.files import write_atomically
from trainer.shards.course import Course
from trainer.tensorflow import tf, tf1

Found = TypeVar("Found")
GLOBAL_STEP = "global_step"
COURSE, CALLBACKS, TOTALS, FILES = (f"trainer/{name}" for name in ("course", "callbacks", "totals", "files"))
"""Arrays of a checkpoint beside those of the model: `Course.array`, the state of the callbacks, the epoch's sums, and
which of the dealt files are not done."""
OF_ANY_SIZE = (CALLBACKS, TOTALS, FILES)
STEP = re.compile(r"-([0-9]{1,18})$")
"""The step at the end of a checkpoint's name."""


class CheckpointList:
    """The checkpoints that the file `checkpoint` of a directory lists, with a limit on their number."""

    def __init__(self, directory: Path, keep: int, keep_hours: float | None = None) -> None:
        """Read the list of the directory. If it has none, its place is taken by the checkpoints that are found there.

        Args:
            directory: The directory.
            keep: How many of the latest checkpoints to keep.
            keep_hours: In addition, keep one checkpoint for each time of this length; None keeps none.
        """
        self._directory, self._keep = directory.resolve(), keep
        self._keep_seconds = math.inf if keep_hours is None else 3600 * keep_hours
        state = _read_state(directory)
        listed = [path for path in state.all_model_checkpoint_paths if STEP.search(path)] if state else []
        self.paths: list[str] = listed or find(directory)
        """Oldest first."""
        self.is_listed = bool(listed)
        """Whether there was a list."""
        times = list(state.all_model_checkpoint_timestamps) if state else []
        times = times if len(times) == len(self.paths) else [_time_of(path) for path in self.paths]
        self._times = dict(zip(self.paths, times, strict=True))
        """Seconds since 1970."""
        self._preserved = state.last_preserved_timestamp if state else 0.0
        """The time of the last checkpoint that was kept in addition."""
        self._kept = {path for path in self.paths[:-keep] if self._times[path] <= self._preserved}

    def add(self, path: str) -> None:
        """Append a checkpoint, and delete the oldest ones above the limit."""
        paths = [*(each for each in self.paths if Path(each).name != Path(path).name), path]
        self._times[path] = time.time()
        removed = [each for each in paths[: -self._keep] if not self._keeps(each)]
        self.paths = [each for each in paths if each not in removed]
        write_state(self._directory, self.paths, [self._times[each] for each in self.paths], self._preserved)
        for each in removed:
            for file in files_of(each):
                file.unlink(missing_ok=True)

    def _keeps(self, path: str) -> bool:
        """Whether to keep a checkpoint that is above the limit."""
        found = self._times[path]
        if path not in self._kept and abs(found - self._preserved) >= self._keep_seconds:  # the clock may be set back
            self._preserved = found
            self._kept.add(path)
        return path in self._kept


def _read_state(directory: Path) -> Any:
    """Read the file `checkpoint` of a directory; return None if there is none, or if it is damaged."""
    try:
        return tf1.train.get_checkpoint_state(str(directory))
    except (tf.errors.OpError, ValueError):
        return None


def step_of(path: str) -> int:
    """The global step in the name of a checkpoint; -1 without one."""
    found = STEP.search(path)
    return int(found[1]) if found else -1


def newest_course(directory: Path) -> tuple[Course, int]:
    """The course and the global step of the newest checkpoint in a directory that can be read; step 0 without one."""
    return _of_newest(directory, lambda path, stored: (course_of(stored), step_of(path))) or (Course(last_step=0), 0)


def newest_array(directory: Path, name: str) -> npt.NDArray[Any] | None:
    """An array of the newest checkpoint in a directory that can be read; None if it has none."""
    return _of_newest(directory, lambda _, stored: stored.whole(name) if name in stored.names else None)


def _of_newest(directory: Path, read: Callable[[str, StoredArrays], Found]) -> Found | None:
    """What a function returns for the newest checkpoint that can be read; None without one."""
    for path in reversed(CheckpointList(directory, keep=1).paths):
        with contextlib.suppress(tf.errors.OpError, ValueError):
            return read(path, StoredArrays(path))
    return None


def course_of(stored: StoredArrays) -> Course:
    """The course of the run in a checkpoint. An older version of the trainer has saved none."""
    return Course.of(stored.whole(COURSE)) if COURSE in stored.names else Course(last_step=0)


def find(directory: Path) -> list[str]:
    """The checkpoints whose files are in a directory, by their step."""
    found = [str(file.with_suffix("")) for file in directory.glob("model.ckpt-*.index")]
    steps = {step_of(path): path for path in found if step_of(path) >= 0}
    return [steps[step] for step in sorted(steps)]


def _time_of(path: str) -> float:
    try:
        return Path(f"{path}.index").stat().st_mtime
    except OSError:
        return 0.0


def write_state(
    directory: Path, paths: Sequence[str], times: Sequence[float] | None = None, preserved: float | None = None
) -> None:
    """Write the file `checkpoint`, in which TensorFlow looks up the checkpoints of a directory, newest last.

    The file has names without directories, so the directory can be copied or mounted elsewhere.
    """
    names = [Path(each).name for each in paths]
    state = tf1.train.generate_checkpoint_state_proto(
        str(directory.resolve()), names[-1], names, list(times) if times else None, preserved
    )
    write_atomically(directory / "checkpoint", str(state).encode())


def move(path: str, directory: Path) -> str:
    """Move the files of a complete checkpoint into a directory of the same volume; return its path there.

    Their content reaches the disk first, so that a list never names what a power failure has lost.
    """
    for file in reversed(files_of(path)):
        with file.open("rb") as written:
            os.fsync(written.fileno())
        file.rename(directory / file.name)
    return str(directory / Path(path).name)


def link(path: str, folder: Path, name: str) -> str:
    """Link the files of a checkpoint, but for those that it shares, under this name to a folder; return its path there.

    Raises:
        OSError: a file is absent, or cannot be linked or copied.
    """
    for file in files_of(path):
        link_file(file, folder / (name + file.name.removeprefix(Path(path).name)))
    return str(folder / name)


def link_file(source: Path, target: Path) -> None:
    """Link a file, or copy it to file systems without hard links. Another target is replaced."""
    if source == target:
        return
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        partial = target.with_name(f".{target.name}")
        shutil.copyfile(source, partial)
        partial.rename(target)


def files_of(path: str) -> list[Path]:
    """The files of a checkpoint, without those that it shares with others."""
    stem = Path(path)
    own = [stem.with_name(f"{stem.name}.index"), *stem.parent.glob(f"{glob.escape(stem.name)}.data-*")]
    return own + table_files.files_of(path)
