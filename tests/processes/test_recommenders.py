"""The recommenders' benchmark with real processes: the trainer and `fit` on the same few examples."""

from pathlib import Path

import pytest

from benchmarks.recommenders import click_log, programs
from benchmarks.recommenders.click_log import CHUNK, Law
from benchmarks.recommenders.records import Form
from benchmarks.recommenders.work import Given, Work

LAW = Law(Form(4, {"user": 3000, "item": 2000, "place": 1000}), 1.2)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    click_log.make(folder, LAW, CHUNK, CHUNK)
    return folder


def test_the_trainer_learns_from_a_click_log(examples: Path, tmp_path: Path) -> None:
    work = Work("dlrm", "clicks", 256, "synchronous", examples=CHUNK, every=CHUNK)
    outcome = programs.run_trainer(Given(work, examples, tmp_path))
    assert outcome.rate > 0
    assert outcome.memory.keys() == {"ps", "worker"}
    count, seconds, auc = outcome.curve[-1]
    assert count == CHUNK
    assert seconds > 0
    assert 0.55 < auc < 1


def test_fit_trains_on_the_same_examples(examples: Path, tmp_path: Path) -> None:
    outcome = programs.run_fit(Given(Work("dlrm", "clicks", 2048, workers=1, ps=0, examples=CHUNK), examples, tmp_path))
    assert outcome.rate > 0
    assert outcome.memory.keys() == {"fit"}
