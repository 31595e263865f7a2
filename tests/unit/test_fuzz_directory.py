"""A run continues from a training directory with damaged files, or refuses it in a sentence."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import examples, may_refuse, mutations
from trainer.config import Settings
from trainer.run_directory import writer
from trainer.training.context import TaskContext
from trainer.training.train import train

from .conftest import listening

pytestmark = pytest.mark.slow

SAVED, LAST = (2, 4, 6), 8
FILES = [
    *(f"model.ckpt-{step}.{part}" for step in SAVED for part in ("index", "data-00000-of-00001")),
    *("checkpoint", "run.json", "result.json", "settings.yaml", "writer.json", "best/score.json"),
]
ABSENT = b"absent"


Train = Callable[[Path, int], None]


@pytest.fixture
def train_to(task_context: Callable[..., TaskContext]) -> Train:
    """Trains in a directory to this step, in this process."""

    def train_in(directory: Path, steps: int) -> None:
        settings = Settings(train_dir=str(directory), train_steps=steps, hidden_units=4, eval_seconds=0.001)
        saving = dataclasses.replace(settings, save_steps=2, save_share=0.0, keep_checkpoints=3)
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(writer.VARIABLE, raising=False)  # a new process has no claim
            train(task_context(saving))

    return train_in


@pytest.fixture
def original(tmp_path: Path, train_to: Train) -> Path:
    """The training directory of a run with three checkpoints."""
    train_to(tmp_path / "original", SAVED[-1])
    return tmp_path / "original"


@pytest.fixture
def restored() -> Iterator[list[int]]:
    """The steps of the checkpoints that were restored, as the log has them."""
    steps: list[int] = []

    def note(record: logging.LogRecord) -> None:
        path = getattr(record, "report", {}).get("restored")
        steps.extend([int(path.rpartition("-")[2])] if path else [])

    with listening(note):
        yield steps


@examples(12)
@given(st.data())
def test_damaged_files(original: Path, train_to: Train, restored: list[int], data: st.DataObject) -> None:
    directory = original.with_name("damaged")
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(original, directory)
    names = data.draw(st.sets(st.sampled_from(FILES), min_size=1, max_size=3))
    for name in sorted(names):
        content = data.draw(mutations([(original / name).read_bytes()]) | st.just(ABSENT))
        (directory / name).unlink() if content == ABSENT else (directory / name).write_bytes(content)
    whole = [step for step in SAVED if not any(name.startswith(f"model.ckpt-{step}.") for name in names)]
    restored.clear()
    continues = False
    with may_refuse():
        train_to(directory, LAST)
        continues = True
    if continues:
        assert json.loads((directory / "result.json").read_text())["global_step"] == LAST
        assert restored[0] >= max(whole, default=0)
    else:
        assert not whole or names & {"run.json", "result.json"}
