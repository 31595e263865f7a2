"""The best checkpoint of a run, stored in `best/`, where `keep_checkpoints` deletes nothing.

The chief and the evaluator both offer the checkpoints that they have evaluated. A file lock serialises their writes.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainer.checkpoint import table_files
from trainer.checkpoint.files import link, link_file, write_state
from trainer.checkpoint.score import BestMetric, Score
from trainer.data.files import write_atomically

SCORE = "score.json"


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint and its score on the held-out split."""

    checkpoint: str
    score: Score

    def to_json(self) -> dict[str, Any]:
        """The evaluation in the form of result.json."""
        return {**self.score.to_json(), "checkpoint": self.checkpoint}


def read(folder: Path) -> Evaluated | None:
    """Return the best checkpoint in this folder, or None."""
    try:
        content = json.loads((folder / SCORE).read_text(encoding="utf-8"))
        name = Path(content.pop("name")).name
        return Evaluated(str(folder / name), TypeAdapter(Score).validate_python(content))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def offer(folder: Path, checkpoint: str, score: Score, metric: BestMetric) -> bool:
    """Store a checkpoint in this folder if it is better than the current one; return whether it was stored."""
    folder.mkdir(exist_ok=True)
    with _locked(folder):
        current = read(folder)
        if not score.is_finite or (current and _key(current.score, metric) >= _key(score, metric)):
            return False
        name, bases = f"model.ckpt-{score.global_step}", table_files.bases_of(checkpoint)
        link(checkpoint, folder, name)
        for base in bases:
            if not (folder / base.name).exists():  # no other file has this name
                link_file(base, folder / base.name)
        write_atomically(folder / SCORE, (json.dumps({"name": name, **asdict(score)}) + "\n").encode())
        write_state(folder, [str(folder / name)])
        for file in folder.glob("model.ckpt-*"):  # of the earlier one, and what a task has left that was killed
            if not file.name.startswith(f"{name}."):
                file.unlink(missing_ok=True)
        table_files.remove_unused(folder)
        return True


def _key(score: Score, metric: BestMetric) -> tuple[float, float]:
    return metric.key(score.loss, score.metrics)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("a") as file:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
