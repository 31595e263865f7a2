"""Which chief writes a training directory: a newer one takes over, and an older one does not take it back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.checkpoint import best
from trainer.checkpoint.score import BestMetric, Score
from trainer.config import Settings
from trainer.errors import SupersededError
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.run_directory.writer import VARIABLE, Writer, make_writer
from trainer.training.context import TaskContext
from trainer.training.run_record import RunRecord

RUN = {"model": "mlp"}


@pytest.fixture(autouse=True)
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pod of this process, whose identity the test forgets afterwards."""
    monkeypatch.setenv(VARIABLE, "")
    (tmp_path / "pod").mkdir()
    monkeypatch.setenv("TASK_DIR", str(tmp_path / "pod"))
    return tmp_path / "pod"


def claim(folder: Path, writer: Writer) -> TrainingDirectory:
    directory = TrainingDirectory(folder, writer=writer)
    directory.create()
    directory.claim(RUN)
    return directory


def test_an_old_chief_does_not_replace_the_best_checkpoint_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_context: Callable[..., TaskContext]
) -> None:
    for name in ("model.ckpt-5.index", "model.ckpt-5.data-00000-of-00001"):
        (tmp_path / name).write_bytes(b"weights")
    context = task_context(Settings())
    directory = claim(tmp_path / "run", make_writer("run"))
    old = RunRecord(directory, {}, BestMetric(), context.clock, {}, context.metrics, context.account)
    checkpoint, score = str(tmp_path / "model.ckpt-5"), Score(5, 0.1, {"accuracy": 0.9})
    old.add_evaluation(checkpoint, score, is_candidate=True)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv("TASK_DIR")
    new = claim(tmp_path / "run", make_writer("run"))
    before = best.read(new.best)
    assert before
    assert before.score == score
    with pytest.raises(SupersededError):
        old.add_evaluation(checkpoint, Score(6, 0.01, {"accuracy": 1.0}), is_candidate=True)
    assert best.read(new.best) == before


def test_a_new_pod_takes_over_and_the_old_one_stops(tmp_path: Path, pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = claim(tmp_path / "run", make_writer("run"))
    old.check_writer()
    old.write_result({"state": "running"})
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv("TASK_DIR")
    new = claim(tmp_path / "run", make_writer("run"))
    new.check_writer()
    with pytest.raises(SupersededError, match=r"^train_dir: run belongs to another chief since .*choose another"):
        old.write_result({"state": "done"})
    assert old.read_result() == {"state": "running"}
    monkeypatch.setenv("TASK_DIR", str(pod))
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(SupersededError):  # the old pod's container restarts
        claim(tmp_path / "run", make_writer("run"))
    new.check_writer()


@pytest.mark.parametrize("same", ["pod", "process"])
def test_a_restart_continues_the_claim_of_its_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: str
) -> None:
    claim(tmp_path / "run", make_writer("run"))
    if same == "pod":
        monkeypatch.setenv(VARIABLE, "")
    else:
        monkeypatch.delenv("TASK_DIR")
    again = make_writer("run")
    assert again.is_restart
    claim(tmp_path / "run", again).check_writer()
    assert not make_writer("another run").is_restart


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b"\xff"])
def test_a_claim_that_cannot_be_read_stops_nobody(tmp_path: Path, content: bytes | None) -> None:
    directory = claim(tmp_path / "run", make_writer("run"))
    (tmp_path / "run" / "writer.json").unlink()
    if content is not None:
        (tmp_path / "run" / "writer.json").write_bytes(content)
    directory.check_writer()
    directory.write_result({"state": "running"})
