"""The best checkpoint of a run, kept beside the others in `best/`, where `keep_checkpoints` removes nothing.

The chief and the evaluator both offer what they have examined; a lock keeps one from undoing what the other has kept.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.data.files import write_atomically
from trainer.graph.checkpoints import files_of, write_state
from trainer.training.evaluation import Score

SCORE = "score.json"


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint and its score on the held-out split."""

    checkpoint: str
    score: Score

    def to_json(self) -> dict[str, Any]:
        """As result.json has it."""
        return {**self.score.to_json(), "checkpoint": self.checkpoint}


def read(folder: Path) -> Evaluated | None:
    """The best checkpoint that is kept in this folder, if there is one."""
    try:
        content = json.loads((folder / SCORE).read_text(encoding="utf-8"))
        return Evaluated(str(folder / content.pop("name")), Score(**content))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def offer(folder: Path, checkpoint: str, score: Score) -> bool:
    """Keep a checkpoint in this folder if it is better than the one there; whether it is."""
    folder.mkdir(exist_ok=True)
    with _locked(folder):
        before = read(folder)
        if not score.is_finite or (before and before.score.key >= score.key):
            return False
        name = f"model.ckpt-{score.global_step}"
        for file in files_of(checkpoint):
            _link(file, folder / (name + file.name.removeprefix(Path(checkpoint).name)))
        write_atomically(folder / SCORE, (json.dumps({"name": name, **asdict(score)}) + "\n").encode())
        write_state(folder, [str(folder / name)])
        for file in files_of(before.checkpoint) if before and Path(before.checkpoint).name != name else ():
            file.unlink(missing_ok=True)
        return True


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # not every file system has hard links
        shutil.copyfile(source, target)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("a") as file:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
