"""The best checkpoint: it is chosen by its score, and stored with all of its files."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainer.checkpoint import best
from trainer.checkpoint.score import BestMetric, Score
from trainer.tensorflow import tf1

BY_ACCURACY = BestMetric("accuracy", "max")
Make = Callable[[int], str]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Creates a checkpoint's files, with the step as their content."""

    def files(step: int) -> str:
        for suffix in ("index", "data-00000-of-00001"):
            (tmp_path / f"model.ckpt-{step}.{suffix}").write_text(str(step))
        return str(tmp_path / f"model.ckpt-{step}")

    return files


def test_a_better_checkpoint_replaces_the_current_one(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "best"
    assert best.read(folder) is None
    assert best.offer(folder, make(10), Score(10, 1.0, {"accuracy": 0.5}), BY_ACCURACY)
    assert not best.offer(folder, make(20), Score(20, 0.1, {"accuracy": 0.4}), BY_ACCURACY)
    assert best.offer(folder, make(30), Score(30, 2.0, {"accuracy": 0.6}), BY_ACCURACY)
    assert best.read(folder) == best.Evaluated(str(folder / "model.ckpt-30"), Score(30, 2.0, {"accuracy": 0.6}))
    assert sorted(path.name for path in folder.glob("model*")) == [
        "model.ckpt-30.data-00000-of-00001",
        "model.ckpt-30.index",
    ]
    assert tf1.train.get_checkpoint_state(str(folder)).model_checkpoint_path == str(folder / "model.ckpt-30")


def test_the_smaller_loss_breaks_a_tie_of_accuracies_and_equal_scores_change_nothing(
    make: Make, tmp_path: Path
) -> None:
    assert best.offer(tmp_path / "best", make(10), Score(10, 0.5, {"accuracy": 71 / 72}), BY_ACCURACY)
    assert not best.offer(tmp_path / "best", make(20), Score(20, 0.5, {"accuracy": 71 / 72}), BY_ACCURACY)
    assert best.offer(tmp_path / "best", make(30), Score(30, 0.4, {"accuracy": 71 / 72}), BY_ACCURACY)


@pytest.mark.parametrize(
    ("metric", "better"), [(BestMetric("auc", "max"), 2), (BestMetric("mae", "min"), 1), (BestMetric("loss"), 3)]
)
def test_the_metric_decides(make: Make, tmp_path: Path, metric: BestMetric, better: int) -> None:
    scores = [Score(1, 0.5, {"auc": 0.6, "mae": 0.1}), Score(2, 0.9, {"auc": 0.7, "mae": 0.2}), Score(3, 0.4, {})]
    for score in scores:
        best.offer(tmp_path / "best", make(score.global_step), score, metric)
    kept = best.read(tmp_path / "best")
    assert kept
    assert kept.score.global_step == better


def test_a_score_that_is_not_finite_is_never_the_best(make: Make, tmp_path: Path) -> None:
    assert not best.offer(tmp_path / "best", make(10), Score(10, math.nan, {"accuracy": 1.0}), BY_ACCURACY)
    assert best.read(tmp_path / "best") is None


def test_what_a_task_has_left_that_was_killed_is_removed(make: Make, tmp_path: Path) -> None:
    """It had linked its checkpoint, and not yet written the score."""
    folder = tmp_path / "best"
    assert best.offer(folder, make(10), Score(10, 1.0, {"accuracy": 0.5}), BY_ACCURACY)
    for file in tmp_path.glob("model.ckpt-10.*"):
        (folder / file.name.replace("-10.", "-15.")).write_bytes(file.read_bytes())
    assert best.offer(folder, make(20), Score(20, 1.0, {"accuracy": 0.6}), BY_ACCURACY)
    assert {file.name.partition(".data")[0].removesuffix(".index") for file in folder.glob("model.*")} == {
        "model.ckpt-20"
    }


def test_it_survives_the_deletion_of_the_original(make: Make, tmp_path: Path) -> None:
    best.offer(tmp_path / "best", make(10), Score(10, 1.0, {"accuracy": 0.5}), BY_ACCURACY)
    for file in tmp_path.glob("model.ckpt-10.*"):
        file.unlink()
    kept = best.read(tmp_path / "best")
    assert kept
    assert Path(f"{kept.checkpoint}.index").read_text() == "10"


def test_a_damaged_score_file_is_ignored(make: Make, tmp_path: Path) -> None:
    best.offer(tmp_path / "best", make(10), Score(10, 1.0, {"accuracy": 0.5}), BY_ACCURACY)
    (tmp_path / "best" / "score.json").write_text("{")
    assert best.read(tmp_path / "best") is None
    assert best.offer(tmp_path / "best", make(20), Score(20, 1.0, {"accuracy": 0.1}), BY_ACCURACY)


def test_the_best_of_concurrent_offers_is_kept(make: Make, tmp_path: Path) -> None:
    offers = [(make(step), Score(step, 1.0, {"accuracy": (37 * step % 101) / 101})) for step in range(1, 101)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: best.offer(tmp_path / "best", each[0], each[1], BY_ACCURACY), offers))
    kept = best.read(tmp_path / "best")
    assert kept
    assert kept.score.metrics["accuracy"] == 100 / 101


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"name": 1}',
        b'{"name": "a", "global_step": 1, "loss": "x", "metrics": {}}',
        b'{"name": "a", "global_step": 1, "loss": 1, "metrics": 3}',
    ],
)
def test_a_damaged_score_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / best.SCORE).write_bytes(content)
    assert best.read(tmp_path) is None


def test_a_score_names_a_checkpoint_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / best.SCORE).write_text('{"name": "../../a", "global_step": 1, "loss": 1, "metrics": {}}')
    found = best.read(tmp_path)
    assert found is not None
    assert found.checkpoint == str(tmp_path / "a")
