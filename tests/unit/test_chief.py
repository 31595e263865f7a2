"""The chief's duties, in a run of one process."""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.checkpoint import best, manager
from trainer.checkpoint.background import Background
from trainer.checkpoint.saver import Snapshot
from trainer.checkpoint.score import BestMetric
from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.errors import ConfigurationError, DivergedError, RollBackError
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.models import mlp
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.shards.course import Course
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Progress
from trainer.tensorflow import tf, tf1
from trainer.training import periodic_evaluation
from trainer.training.chief import Chief
from trainer.training.context import TaskContext
from trainer.training.outcome import Outcome
from trainer.training.periodic_evaluation import PeriodicEvaluation
from trainer.training.run_context import RunContext
from trainer.training.run_record import RunRecord

from .conftest import MLP, values_in


def outcome(step: int, loss: float) -> Outcome:
    """The outcome of an execution of one step."""
    return Outcome(1, step, loss, {}, seconds=0.1, ended=0.0)


@dataclass
class ChiefRun:
    """One chief with its session and its log lines."""

    chief: Chief
    writing: Background
    evaluation: PeriodicEvaluation
    replica: Replica
    session: Any
    metrics: Metrics
    folder: Path
    """For a test's own files."""
    log_lines: list[str]
    """Since the start of the chief."""

    def step(self) -> int:
        feed = dict(zip(self.replica.batches.feeds(1), self.replica.batches.take(1, 0), strict=True))
        return int(self.session.run(self.replica.replication.executions[1].step, feed))

    def end_execution(self) -> None:
        """End an execution of one step, and wait for what it saves."""
        self.chief.on_execution_end(outcome(self.step(), 1.0))
        self.writing.wait()

    def step_and_save(self) -> None:
        self.step()
        self.chief.checkpoints.save_and_wait()


@pytest.fixture
def start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: list[str],
    task_context: Callable[..., TaskContext],
) -> Iterator[Callable[..., ChiefRun]]:
    """Starts a chief in the same training directory and closes the previous one."""
    monkeypatch.setattr(periodic_evaluation, "SHARE", 1.0)
    sessions: list[Any] = []
    evaluations: list[PeriodicEvaluation] = []

    def start_next(**settings: Any) -> ChiefRun:
        chosen = Settings(**{"batch_size": 4, "steps_per_execution": 1, "eval_seconds": 1e-9, **settings})
        examples = Examples(np.ones((4, 6), np.float32), np.zeros(4, np.int32))
        found = replica.build(chosen, None, MLP, mlp.parameters((6,), 3, 5), examples, 0, "this run")
        for session in sessions:
            session.close()
        sessions.append(tf1.Session(graph=found.graph))
        found.batches.begin(sessions[-1])
        log_lines.clear()
        directory, context = TrainingDirectory(tmp_path), task_context(chosen)
        record = RunRecord(
            directory,
            {"mode": "single"},
            BestMetric("accuracy", "max"),
            context.clock,
            {},
            context.metrics,
            context.account,
        )
        evaluation = PeriodicEvaluation(
            chosen.eval_seconds,
            chosen.train_steps,
            lambda: CheckpointEvaluator(MLP, mlp.parameters((6,), 3, 5), examples),
            lambda candidate, score: record.add_evaluation(candidate, score, is_candidate=True),
        )
        writing = Background("checkpoint")
        run = RunContext(
            context,
            found,
            directory,
            "this run",
            lambda saved, step: Course(chosen.train_steps),
            record,
            evaluation,
            writing,
            untrained_loss=1.1,
        )
        chief = Chief(run, sessions[-1])
        evaluations.append(evaluation)
        return ChiefRun(chief, writing, evaluation, found, sessions[-1], context.metrics, tmp_path / "own", log_lines)

    yield start_next
    for evaluation in evaluations:
        evaluation.wait()
    for session in sessions:
        session.close()


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("model.ckpt-*.index"))


def test_a_new_run_starts_with_initial_values(start: Callable[..., ChiefRun]) -> None:
    run = start()
    run.chief.prepare()
    assert run.session.run([run.replica.is_ready, run.replica.global_step]) == [True, 0]
    assert run.log_lines == []


def test_a_restarted_chief_restores_the_last_checkpoint(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    first = start()
    first.chief.prepare()
    first.step_and_save()
    first.step_and_save()
    first.step()  # lost
    second = start()
    second.chief.prepare()
    assert second.session.run(second.replica.global_step) == 2
    assert second.log_lines == [f"restored {tmp_path}/model.ckpt-2"]


def test_existing_values_are_not_overwritten(start: Callable[..., ChiefRun]) -> None:
    run = start()
    run.chief.prepare()
    run.step_and_save()
    run.step()
    run.chief.prepare()
    assert run.session.run(run.replica.global_step) == 2
    assert "continuing" in run.log_lines[-1]


@pytest.mark.parametrize("damage", ["truncated", "deleted", "changed"])
def test_the_previous_checkpoint_replaces_an_unreadable_one(
    start: Callable[..., ChiefRun], tmp_path: Path, damage: str
) -> None:
    first = start()
    first.chief.prepare()
    first.step_and_save()
    first.step_and_save()
    data = tmp_path / "model.ckpt-2.data-00000-of-00001"
    content = data.read_bytes()
    if damage == "deleted":
        data.unlink()
    else:
        data.write_bytes(content[: len(content) // 2] if damage == "truncated" else bytes(len(content)))
    second = start()
    second.chief.prepare()
    assert second.session.run([second.replica.is_ready, second.replica.global_step]) == [True, 1]
    assert f"{tmp_path}/model.ckpt-2 cannot be read" in second.log_lines[0]
    assert second.log_lines[1] == f"restored {tmp_path}/model.ckpt-1"


def test_a_run_without_a_readable_checkpoint_does_not_start_over(
    start: Callable[..., ChiefRun], tmp_path: Path
) -> None:
    first = start()
    first.chief.prepare()
    first.step_and_save()
    (tmp_path / "model.ckpt-1.index").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=f"none of the checkpoints in {tmp_path} can be read"):
        start().chief.prepare()


def test_a_checkpoint_of_other_names_is_one_sentence(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        other = tf1.get_variable("hid_w", initializer=np.ones((6, 5), np.float32))
        session.run(other.initializer)
        tf1.train.Saver([other]).save(session, str(tmp_path / "model.ckpt"), global_step=1)
    run = start()
    lacks = r"the model has hidden/biases, .*, which they lack; they have hid_w, which the model lacks"
    with pytest.raises(
        ConfigurationError, match=rf"none of the checkpoints in {tmp_path} can be read \({lacks}\): choose"
    ):
        run.chief.prepare()
    assert any("the checkpoint has no global_step" in line for line in run.log_lines)


def test_checkpoints_are_saved_by_step(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    run = start(save_steps=3, save_seconds=600)
    run.chief.prepare()
    for _ in range(10):
        run.end_execution()
    assert saved_steps(tmp_path) == [3, 6, 9]


def test_checkpoints_are_saved_by_time(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    rarely = start(save_seconds=600, eval_seconds=600)
    rarely.chief.prepare()
    rarely.end_execution()
    assert saved_steps(tmp_path) == []
    often = start(save_seconds=1e-9)
    often.chief.prepare()
    for _ in range(2):
        often.end_execution()
    assert saved_steps(tmp_path) == [1, 2]


def test_small_checkpoints_are_saved_often_and_slow_ones_rarely(
    start: Callable[..., ChiefRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.checkpoint.manager.MIN_SAVE_SECONDS", 0.01)
    run = start(save_share=0.5, eval_seconds=600)
    run.chief.prepare()
    time.sleep(0.02)
    run.end_execution()
    assert saved_steps(tmp_path) == [1]
    run.chief.checkpoints._saving_seconds = 100.0
    assert run.chief.checkpoints._interval == 60.0  # save_seconds is the longest time
    run.chief.checkpoints._saving_seconds = 10.0
    assert run.chief.checkpoints._interval == 20.0
    time.sleep(0.02)
    run.end_execution()
    assert saved_steps(tmp_path) == [1]


@pytest.mark.parametrize("settings", [{"save_share": 0}, {"save_steps": 1000}])
def test_the_share_can_be_turned_off(start: Callable[..., ChiefRun], settings: dict[str, Any]) -> None:
    assert start(**settings).chief.checkpoints._interval == 60.0


def test_training_goes_on_while_a_checkpoint_is_written(
    start: Callable[..., ChiefRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(save_seconds=1e-9, eval_seconds=600)
    run.chief.prepare()
    really_write, may_end = Snapshot.write, threading.Event()

    def write_slowly(self: Snapshot, stem: Path, may_merge: bool) -> str:
        may_end.wait(60)
        return really_write(self, stem, may_merge)

    monkeypatch.setattr(Snapshot, "write", write_slowly)
    for _ in range(10):
        run.chief.on_execution_end(outcome(run.step(), 1.0))
    assert run.writing.is_busy
    assert saved_steps(tmp_path) == []
    may_end.set()
    run.writing.wait()
    assert saved_steps(tmp_path) == [1]
    assert run.session.run(run.replica.global_step) == 10
    run.chief.on_train_end(is_complete=True)
    assert saved_steps(tmp_path) == [1, 10]


def test_a_checkpoint_that_cannot_be_written_is_reported_once_and_tried_again(
    start: Callable[..., ChiefRun], tmp_path: Path
) -> None:
    run = start(save_seconds=1e-9, eval_seconds=600)
    run.chief.prepare()
    (tmp_path / ".saving").write_text("a file, where a folder should be")
    for _ in range(3):
        run.end_execution()
    assert saved_steps(tmp_path) == []
    (line,) = (line for line in run.log_lines if "the checkpoint cannot be written" in line)
    assert "File exists" in line
    assert "training goes on" in line
    (tmp_path / ".saving").unlink()
    run.end_execution()
    assert saved_steps(tmp_path) == [4]
    assert run.log_lines[-1] == "the checkpoint is written again"


def test_a_failed_save_is_repeated_before_the_next_checkpoint_is_due(
    start: Callable[..., ChiefRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "MIN_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(manager, "RETRY_SHARE", 1e9)
    run = start(save_seconds=1000, save_share=0, eval_seconds=600)
    run.chief.prepare()
    run.end_execution()
    assert saved_steps(tmp_path) == []
    (tmp_path / ".saving").write_text("a file, where a folder should be")
    run.chief.checkpoints.save_and_wait()
    (tmp_path / ".saving").unlink()
    run.end_execution()
    run.end_execution()
    assert saved_steps(tmp_path) == [2], "and then after save_seconds"


def test_a_checkpoint_that_cannot_be_fetched_at_the_end_is_no_traceback(start: Callable[..., ChiefRun]) -> None:
    run = start()
    run.chief.prepare()
    run.session.close()
    run.chief.save_before_exit()
    assert run.log_lines == ["no checkpoint is saved at the end: Attempted to use a closed Session."]


def test_the_steps_that_are_taken_again_are_named(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    run = start()
    run.chief.prepare()
    run.step_and_save()
    again = start()
    again.metrics.global_step = 7
    again.chief.prepare()
    assert again.log_lines == [f"restored {tmp_path}/model.ckpt-1; the steps from 2 to 7 are taken again"]


def test_without_a_list_a_run_continues_with_the_checkpoints_found(
    start: Callable[..., ChiefRun], tmp_path: Path
) -> None:
    first = start()
    first.chief.prepare()
    first.step_and_save()
    first.step_and_save()
    (tmp_path / "checkpoint").write_bytes(b"\xffdamaged")
    second = start()
    second.chief.prepare()
    assert second.log_lines == [
        f"{tmp_path}/checkpoint is absent or damaged; continuing with the checkpoints found",
        f"restored {tmp_path}/model.ckpt-2",
    ]


def test_keep_checkpoints_applies_across_restarts(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    for _ in range(2):
        run = start(keep_checkpoints=2)
        run.chief.prepare()
        for _ in range(3):
            run.step_and_save()
    assert saved_steps(tmp_path) == [5, 6]


@pytest.mark.parametrize(("hours", "steps"), [(1e-9, [1, 2, 3]), (1.0, [1, 3])])
def test_the_first_checkpoint_of_each_period_is_kept_too(
    start: Callable[..., ChiefRun], tmp_path: Path, hours: float, steps: list[int]
) -> None:
    run = start(keep_checkpoints=1, keep_checkpoint_hours=hours)
    run.chief.prepare()
    for _ in range(3):
        run.step_and_save()
    assert saved_steps(tmp_path) == steps


def test_the_same_step_is_saved_once(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    run = start()
    run.chief.prepare()
    run.step_and_save()
    written = (tmp_path / "model.ckpt-1.index").stat().st_mtime_ns
    run.chief.checkpoints.save_and_wait()
    assert (tmp_path / "model.ckpt-1.index").stat().st_mtime_ns == written
    assert run.metrics.checkpoints == 1


def test_reports_are_written_as_summaries(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    run = start()
    with run.chief as chief:
        chief.on_report(Progress(10, 20, 0.5, {"accuracy": 0.75}, 100.0))
    (file,) = (tmp_path / "train").iterdir()
    events = list(tf1.train.summary_iterator(str(file)))
    points = {value.tag: value.simple_value for event in events for value in event.summary.value}
    assert points == {"loss": 0.5, "accuracy": 0.75, "steps_per_second": 100.0}
    assert events[-1].step == 10


def test_a_session_that_is_closed_after_the_last_save_is_no_reason_to_warn(start: Callable[..., ChiefRun]) -> None:
    """The close may take longer than the time after SIGTERM, as of a session with a parameter server that has ended."""
    run = start()
    run.chief.prepare()
    run.step()
    run.chief.on_train_end(is_complete=False)
    run.session.close()
    run.chief.save_before_exit()
    assert run.log_lines == []


def test_the_save_before_exit_waits_for_a_save_in_progress_and_does_not_repeat_it(
    start: Callable[..., ChiefRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    run.chief.prepare()
    run.step()
    really_write, saves, under_way = Snapshot.write, [], threading.Event()

    def write_slowly(self: Snapshot, stem: Path, may_merge: bool) -> str:
        saves.append(stem)
        under_way.set()
        time.sleep(0.3)
        return really_write(self, stem, may_merge)

    monkeypatch.setattr(Snapshot, "write", write_slowly)
    main = threading.Thread(target=run.chief.checkpoints.save_and_wait)
    main.start()
    under_way.wait()
    run.chief.save_before_exit()
    assert run.chief.checkpoints.latest, "it returned while the other save was in progress"
    main.join()
    assert len(saves) == 1


def evaluate(run: ChiefRun) -> None:
    run.chief.on_execution_end(outcome(int(run.session.run(run.replica.global_step)), 1.0))
    run.writing.wait()
    run.evaluation.wait()


def test_keep_checkpoints_does_not_delete_the_best_candidate(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    run = start(keep_checkpoints=1, learning_rate=0.1)
    run.chief.prepare()
    run.step_and_save()
    evaluate(run)
    for _ in range(20):
        run.step()
    evaluate(run)
    for _ in range(3):
        run.step_and_save()
    kept = best.read(tmp_path / "best")
    assert kept
    assert kept.score.global_step == 21
    assert kept.score.metrics["accuracy"] == 1.0
    assert tf1.train.latest_checkpoint(str(tmp_path / "best")) == f"{tmp_path}/best/model.ckpt-21" == kept.checkpoint
    assert saved_steps(tmp_path) == [24]
    assert saved_steps(tmp_path / "best") == [21]
    again = start()
    again.replica.saver.restore(again.session, kept.checkpoint)
    assert again.session.run(again.replica.global_step) == 21


def test_result_json_shows_the_progress(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    run = start()
    run.chief.prepare()
    run.step()
    evaluate(run)
    run.step_and_save()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["state"], result["global_step"], result["mode"]) == ("running", 2, "single")
    assert result["last"]["global_step"] == result["best"]["global_step"] == 1
    assert result["best"]["checkpoint"] == f"{tmp_path}/best/model.ckpt-1"


def test_the_best_checkpoint_is_restored_if_it_is_newer_than_the_saved_ones(
    start: Callable[..., ChiefRun], tmp_path: Path
) -> None:
    first = start()
    first.chief.prepare()
    first.step_and_save()
    first.step()
    evaluate(first)
    second = start()
    second.chief.prepare()
    assert second.log_lines == [f"restored {tmp_path}/best/model.ckpt-2"]
    assert second.chief.checkpoints.save_and_wait()
    assert tf1.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-2", "the list names it too"


def test_the_best_checkpoint_stays_when_it_is_offered_again(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    run = start()
    run.chief.prepare()
    run.step()
    evaluate(run)
    kept = best.read(tmp_path / "best")
    assert kept
    better = dataclasses.replace(kept.score, loss=kept.score.loss / 2)
    assert best.offer(tmp_path / "best", kept.checkpoint, better, BestMetric("accuracy", "max"))
    assert tf1.train.load_checkpoint(kept.checkpoint).get_tensor("global_step") == 1


def test_a_run_with_only_the_best_checkpoint_resumes_from_it(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    first = start()
    first.chief.prepare()
    for _ in range(3):
        first.step()
    evaluate(first)
    second = start()
    second.chief.prepare()
    assert second.log_lines == [f"restored {tmp_path}/best/model.ckpt-3"]
    assert second.session.run(second.replica.global_step) == 3


def test_a_roll_back_resumes_from_the_best_at_a_later_step_with_half_the_learning_rate(
    start: Callable[..., ChiefRun], tmp_path: Path
) -> None:
    run = start(on_divergence="restore")
    run.chief.prepare()
    run.step_and_save()
    evaluate(run)
    wanted = values_in(run.chief.checkpoints.latest)
    for _ in range(5):
        run.step()
    with pytest.raises(RollBackError) as found:
        run.chief.on_execution_end(outcome(6, float("nan")))
    run.chief.prepare(found.value)
    assert run.session.run(run.replica.global_step) == 7
    assert run.chief.checkpoints.latest == f"{tmp_path}/model.ckpt-7"
    values = values_in(run.chief.checkpoints.latest)
    assert all(np.array_equal(values[name], wanted[name]) for name in wanted if name != "global_step")
    assert run.session.run(run.replica.rate_scale) == 0.5
    again = start(on_divergence="restore")
    again.chief.prepare()
    assert again.session.run(again.replica.global_step) == 7
    assert again.session.run(again.replica.rate_scale) == 0.5


def test_a_roll_back_without_a_checkpoint_stops_the_run(start: Callable[..., ChiefRun]) -> None:
    run = start(on_divergence="restore")
    run.chief.prepare()
    with pytest.raises(DivergedError, match="there is no checkpoint to restore"):
        run.chief.prepare(RollBackError("the run diverges", 3))


def test_too_many_roll_backs_stop_the_run(start: Callable[..., ChiefRun]) -> None:
    run = start(on_divergence="restore")
    run.chief.prepare()
    run.step_and_save()
    for step in range(8):
        run.chief.prepare(RollBackError("the run diverges", step))
    with pytest.raises(DivergedError, match="it was rolled back 8 times"):
        run.chief.prepare(RollBackError("the run diverges", 9))


def make_not_finite(run: ChiefRun) -> None:
    """Set one parameter to a value that is not finite."""
    checkpoint = run.chief.checkpoints.latest
    values = values_in(checkpoint)
    run.folder.mkdir()
    values["softmax/biases"][0] = np.nan
    with tf.Graph().as_default(), tf1.Session() as session:
        spoilt = str(run.replica.saver.save(run.session, run.folder / "spoilt"))
        names = list(values)
        session.run(
            tf.raw_ops.SaveV2(
                prefix=spoilt,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[values[name] for name in names],
            )
        )
    run.replica.saver.restore(run.session, spoilt)
    run.step()


def test_parameters_that_are_not_finite_are_never_saved(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    run = start()
    run.chief.prepare()
    run.step_and_save()
    make_not_finite(run)
    run.chief.checkpoints.save_and_wait()
    evaluate(run)
    assert saved_steps(tmp_path) == [1]
    assert not (tmp_path / "best").exists()
    assert "the parameters are not finite at step 2: no checkpoint is saved" in run.log_lines[-1]
    with pytest.raises(DivergedError, match="lower learning_rate"):
        run.chief.on_train_end(is_complete=True)


def test_divergence_is_logged_once(start: Callable[..., ChiefRun]) -> None:
    run = start()
    run.chief.prepare()
    run.chief.on_execution_end(outcome(10, float("nan")))
    run.chief.on_execution_end(outcome(20, float("nan")))
    assert [line for line in run.log_lines if "diverges" in line] == [
        "warning: the run diverges: the loss is nan at step 10; no checkpoint has been evaluated yet; "
        "lower learning_rate (0.003), or set global_clipnorm."
    ]


def test_divergence_stops_the_run_with_on_divergence_stop(start: Callable[..., ChiefRun]) -> None:
    run = start(on_divergence="stop")
    run.chief.prepare()
    with pytest.raises(DivergedError, match="the loss is inf at step 10"):
        run.chief.on_execution_end(outcome(10, float("inf")))


def test_a_checkpoint_from_before_amsgrad_can_be_restored(start: Callable[..., ChiefRun], tmp_path: Path) -> None:
    first = start(amsgrad=False)
    first.chief.prepare()
    first.step_and_save()
    second = start()
    second.chief.prepare()
    second.step_and_save()
    reader = tf1.train.load_checkpoint(str(tmp_path / "model.ckpt-2"))
    second_moment, largest = (reader.get_tensor(f"softmax/weights/{slot}") for slot in ("Adam_1", "vhat"))
    assert second_moment.any()
    assert (largest >= second_moment).all()


@pytest.mark.parametrize("content", [b"", b"\xff", b"all_model: {", b'model_checkpoint_path: "/absent/a"'])
def test_without_a_readable_list_the_newest_checkpoint_is_restored(
    start: Callable[..., ChiefRun], tmp_path: Path, content: bytes
) -> None:
    first = start()
    first.chief.prepare()
    for _ in range(12):
        first.step()
        if first.step() in (9, 10, 11, 12):
            first.chief.checkpoints.save_and_wait()
    newest = saved_steps(tmp_path)[-1]
    (tmp_path / "checkpoint").write_bytes(content)
    second = start()
    second.chief.prepare()
    assert second.session.run(second.replica.global_step) == newest
