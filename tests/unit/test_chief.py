"""What the chief alone does, in a run of one process."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.config import Settings
from trainer.data.datasets import Examples
from trainer.errors import ConfigurationError, DivergedError, RollBackError
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.models import mlp
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Clock, Progress
from trainer.tensorflow import tf, tf1
from trainer.training import best, periodic_evaluation
from trainer.training.chief import Chief
from trainer.training.evaluation import CheckpointEvaluator
from trainer.training.periodic_evaluation import PeriodicEvaluation
from trainer.training.run_record import RunRecord
from trainer.training.training_directory import TrainingDirectory

from .conftest import values_in


@dataclass
class TaskContext:
    """One life of a chief: its session and what it said."""

    chief: Chief
    replica: Replica
    session: Any
    metrics: Metrics
    folder: Path
    """For a test's own files."""
    said: list[str] = field(default_factory=list)

    def step(self) -> int:
        feed = dict(zip(self.replica.batches.feeds, self.replica.batches.take(1), strict=True))
        return int(self.session.run(self.replica.replication.executions[1].step, feed))

    def step_and_save(self) -> None:
        self.step()
        self.chief.save()


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TaskContext]]:
    """Gives a chief the next life in the same training directory, ending the one before."""
    monkeypatch.setattr(periodic_evaluation, "SHARE", 1.0)
    sessions: list[Any] = []
    evaluations: list[PeriodicEvaluation] = []

    def next_life(**settings: Any) -> TaskContext:
        chosen = Settings(batch_size=4, steps_per_execution=1, **settings)
        examples = Examples(np.ones((4, 6), np.float32), np.zeros(4, np.int32))
        found = replica.build(chosen, None, mlp, mlp.parameters((6,), 3, 5), examples, 0, "this run")
        for session in sessions:
            session.close()
        sessions.append(tf1.Session(graph=found.graph))
        found.batches.begin(sessions[-1])
        said: list[str] = []
        metrics = Metrics("worker", 0)
        directory, clock = TrainingDirectory(tmp_path), Clock(100)
        record = RunRecord(directory, {"mode": "single"}, clock, None, said.append, metrics)
        evaluation = PeriodicEvaluation(
            1e-9,
            lambda: CheckpointEvaluator(mlp, mlp.parameters((6,), 3, 5), examples),
            lambda candidate, score: record.examined(candidate, score, is_candidate=True),
            said.append,
        )
        chief = Chief(chosen, directory, found, sessions[-1], said.append, metrics, "this run", record, evaluation, 1.1)
        evaluations.append(evaluation)
        return TaskContext(chief, found, sessions[-1], metrics, tmp_path / "own", said)

    yield next_life
    for evaluation in evaluations:
        evaluation.wait()
    for session in sessions:
        session.close()


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("model.ckpt-*.index"))


def test_a_new_run_begins_with_initial_values(live: Callable[..., TaskContext]) -> None:
    life = live()
    life.chief.prepare()
    assert life.session.run([life.replica.is_ready, life.replica.global_step]) == [True, 0]
    assert life.said == []


def test_a_chief_that_comes_back_restores_the_last_checkpoint(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    first = live()
    first.chief.prepare()
    first.step_and_save()
    first.step_and_save()
    first.step()  # lost
    second = live()
    second.chief.prepare()
    assert second.session.run(second.replica.global_step) == 2
    assert second.said == [f"restored {tmp_path}/model.ckpt-2"]


def test_values_that_are_there_already_are_left_alone(live: Callable[..., TaskContext]) -> None:
    life = live()
    life.chief.prepare()
    life.step_and_save()
    life.step()
    life.chief.prepare()
    assert life.session.run(life.replica.global_step) == 2
    assert "going on" in life.said[-1]


@pytest.mark.parametrize("damage", ["truncated", "deleted", "changed"])
def test_a_checkpoint_that_cannot_be_read_makes_way_for_the_one_before(
    live: Callable[..., TaskContext], tmp_path: Path, damage: str
) -> None:
    first = live()
    first.chief.prepare()
    first.step_and_save()
    first.step_and_save()
    data = tmp_path / "model.ckpt-2.data-00000-of-00001"
    content = data.read_bytes()
    if damage == "deleted":
        data.unlink()
    else:
        data.write_bytes(content[: len(content) // 2] if damage == "truncated" else bytes(len(content)))
    second = live()
    second.chief.prepare()
    assert second.session.run([second.replica.is_ready, second.replica.global_step]) == [True, 1]
    assert f"{tmp_path}/model.ckpt-2 cannot be read" in second.said[0]
    assert second.said[1] == f"restored {tmp_path}/model.ckpt-1"


def test_a_run_without_a_readable_checkpoint_is_not_silently_begun_again(
    live: Callable[..., TaskContext], tmp_path: Path
) -> None:
    first = live()
    first.chief.prepare()
    first.step_and_save()
    (tmp_path / "model.ckpt-1.index").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=f"none of the checkpoints in {tmp_path} can be read"):
        live().chief.prepare()


def test_a_checkpoint_of_other_names_is_one_sentence(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        other = tf1.get_variable("hid_w", initializer=np.ones((6, 5), np.float32))
        session.run(other.initializer)
        tf1.train.Saver([other]).save(session, str(tmp_path / "model.ckpt"), global_step=1)
    life = live()
    with pytest.raises(ConfigurationError, match=f"none of the checkpoints in {tmp_path} can be read"):
        life.chief.prepare()
    assert "not found in checkpoint" in life.said[0]


def test_checkpoints_are_saved_by_step(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    life = live(save_steps=3, save_seconds=600)
    life.chief.prepare()
    for _ in range(10):
        life.chief.save_if_due(life.step())
    assert saved_steps(tmp_path) == [3, 6, 9]


def test_checkpoints_are_saved_by_time(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    rarely = live(save_seconds=600)
    rarely.chief.prepare()
    rarely.chief.save_if_due(rarely.step())
    assert saved_steps(tmp_path) == []
    often = live(save_seconds=1e-9)
    often.chief.prepare()
    for _ in range(2):
        often.chief.save_if_due(often.step())
    assert saved_steps(tmp_path) == [1, 2]


def test_only_so_many_checkpoints_are_kept_over_all_lives(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    for _ in range(2):
        life = live(keep_checkpoints=2)
        life.chief.prepare()
        for _ in range(3):
            life.step_and_save()
    assert saved_steps(tmp_path) == [5, 6]


def test_the_same_step_is_saved_once(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    life = live()
    life.chief.prepare()
    life.step_and_save()
    written = (tmp_path / "model.ckpt-1.index").stat().st_mtime_ns
    life.chief.save()
    assert (tmp_path / "model.ckpt-1.index").stat().st_mtime_ns == written
    assert life.metrics.checkpoints == 1


def test_reports_are_points_of_curves(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    life = live()
    with life.chief as chief:
        chief.report(Progress(10, 20, 0.5, 0.75, 100.0))
    (file,) = (tmp_path / "train").iterdir()
    events = list(tf1.train.summary_iterator(str(file)))
    points = {value.tag: value.simple_value for event in events for value in event.summary.value}
    assert points == {"loss": 0.5, "accuracy": 0.75, "steps_per_second": 100.0}
    assert events[-1].step == 10


def test_a_last_save_waits_for_one_that_is_under_way_and_does_not_repeat_it(
    live: Callable[..., TaskContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    life = live()
    life.chief.prepare()
    life.step()
    really_save, saves, under_way = life.replica.saver.save, [], threading.Event()

    def save_slowly(*arguments: Any, **options: Any) -> str:
        saves.append(arguments)
        under_way.set()
        time.sleep(0.3)
        return str(really_save(*arguments, **options))

    monkeypatch.setattr(life.replica.saver, "save", save_slowly)
    main = threading.Thread(target=life.chief.save)
    main.start()
    under_way.wait()
    life.chief.save_at_last()
    assert life.chief.checkpoint, "it came back while the other one still saved"
    main.join()
    assert len(saves) == 1


def evaluate(life: TaskContext) -> None:
    life.chief.evaluate_if_due()
    evaluation = life.chief._evaluation
    assert evaluation
    evaluation.wait()


def test_the_best_candidate_stays_whatever_is_kept(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    life = live(keep_checkpoints=1, learning_rate=0.1)
    life.chief.prepare()
    life.step_and_save()
    evaluate(life)
    for _ in range(20):
        life.step()
    evaluate(life)
    for _ in range(3):
        life.step_and_save()
    kept = best.read(tmp_path / "best")
    assert kept
    assert kept.score.global_step == 21
    assert kept.score.accuracy == 1.0
    assert tf1.train.latest_checkpoint(str(tmp_path / "best")) == f"{tmp_path}/best/model.ckpt-21" == kept.checkpoint
    assert saved_steps(tmp_path) == [24]
    assert saved_steps(tmp_path / "best") == [21]
    again = live()
    again.replica.saver.restore(again.session, kept.checkpoint)
    assert again.session.run(again.replica.global_step) == 21


def test_result_json_tells_how_far_the_run_is(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    life = live()
    life.chief.prepare()
    life.step()
    evaluate(life)
    life.step_and_save()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["state"], result["global_step"], result["mode"]) == ("running", 2, "single")
    assert result["last"]["global_step"] == result["best"]["global_step"] == 1
    assert result["best"]["checkpoint"] == f"{tmp_path}/best/model.ckpt-1"


def test_a_run_without_any_other_checkpoint_goes_on_from_its_best(
    live: Callable[..., TaskContext], tmp_path: Path
) -> None:
    first = live()
    first.chief.prepare()
    for _ in range(3):
        first.step()
    evaluate(first)
    second = live()
    second.chief.prepare()
    assert second.said == [f"restored {tmp_path}/best/model.ckpt-3"]
    assert second.session.run(second.replica.global_step) == 3


def test_a_run_that_is_rolled_back_goes_on_from_its_best_at_a_later_step_with_half_the_rate(
    live: Callable[..., TaskContext], tmp_path: Path
) -> None:
    life = live(on_divergence="restore")
    life.chief.prepare()
    life.step_and_save()
    evaluate(life)
    wanted = values_in(life.chief.checkpoint)
    for _ in range(5):
        life.step()
    with pytest.raises(RollBackError) as found:
        life.chief.watch_loss(6, float("nan"))
    life.chief.prepare(found.value)
    assert life.session.run(life.replica.global_step) == 7
    assert life.chief.checkpoint == f"{tmp_path}/model.ckpt-7"
    values = values_in(life.chief.checkpoint)
    assert all(np.array_equal(values[name], wanted[name]) for name in wanted if name != "global_step")
    assert life.session.run(life.replica.rate_scale) == 0.5
    again = live(on_divergence="restore")
    again.chief.prepare()
    assert again.session.run(again.replica.global_step) == 7
    assert again.session.run(again.replica.rate_scale) == 0.5


def test_a_run_without_anything_to_roll_back_to_stops(live: Callable[..., TaskContext]) -> None:
    life = live(on_divergence="restore")
    life.chief.prepare()
    with pytest.raises(DivergedError, match="there is no checkpoint to restore"):
        life.chief.prepare(RollBackError("the run diverges", 3))


def test_a_run_that_was_rolled_back_too_often_stops(live: Callable[..., TaskContext]) -> None:
    life = live(on_divergence="restore")
    life.chief.prepare()
    life.step_and_save()
    for step in range(8):
        life.chief.prepare(RollBackError("the run diverges", step))
    with pytest.raises(DivergedError, match="it was rolled back 8 times"):
        life.chief.prepare(RollBackError("the run diverges", 9))


def make_not_finite(life: TaskContext) -> None:
    """Give the parameters one value that is no number."""
    checkpoint = life.chief.checkpoint
    values = values_in(checkpoint)
    life.folder.mkdir()
    values["softmax/biases"][0] = np.nan
    with tf.Graph().as_default(), tf1.Session() as session:
        spoilt = str(life.replica.saver.save(life.session, life.folder / "spoilt"))
        names = list(values)
        session.run(
            tf.raw_ops.SaveV2(
                prefix=spoilt,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[values[name] for name in names],
            )
        )
    life.replica.saver.restore(life.session, spoilt)
    life.step()


def test_parameters_that_are_not_finite_are_never_saved(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    life = live()
    life.chief.prepare()
    life.step_and_save()
    make_not_finite(life)
    life.chief.save()
    evaluate(life)
    assert saved_steps(tmp_path) == [1]
    assert not (tmp_path / "best").exists()
    assert "the parameters are not finite at step 2: no checkpoint is saved" in life.said[-1]
    with pytest.raises(DivergedError, match="lower learning_rate"):
        life.chief.save_the_end()


def test_a_run_that_diverges_says_so_once(live: Callable[..., TaskContext]) -> None:
    life = live()
    life.chief.prepare()
    life.chief.watch_loss(10, float("nan"))
    life.chief.watch_loss(20, float("nan"))
    assert [line for line in life.said if "diverges" in line] == [
        "warning: the run diverges: the loss is nan at step 10; no checkpoint has been examined yet; "
        "lower learning_rate (0.003), or set global_clipnorm."
    ]


def test_a_run_that_diverges_stops_where_that_is_wanted(live: Callable[..., TaskContext]) -> None:
    life = live(on_divergence="stop")
    life.chief.prepare()
    with pytest.raises(DivergedError, match="the loss is inf at step 10"):
        life.chief.watch_loss(10, float("inf"))


def test_a_checkpoint_from_before_amsgrad_goes_on(live: Callable[..., TaskContext], tmp_path: Path) -> None:
    first = live(amsgrad=False)
    first.chief.prepare()
    first.step_and_save()
    second = live()
    second.chief.prepare()
    second.step_and_save()
    reader = tf1.train.load_checkpoint(str(tmp_path / "model.ckpt-2"))
    second_moment, largest = (reader.get_tensor(f"softmax/weights/{slot}") for slot in ("Adam_1", "vhat"))
    assert second_moment.any()
    assert (largest >= second_moment).all()
