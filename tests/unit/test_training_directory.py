"""The owner and the content of a training directory."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.data.datasets import Dataset
from trainer.data.examples import Examples
from trainer.errors import ConfigurationError
from trainer.models import Parameter
from trainer.problem.problem import describe
from trainer.run_directory.training_directory import TrainingDirectory, new_path

RUN: dict[str, Any] = {
    "model": "mlp",
    "parameters": {"hidden/weights": [784, 100]},
    "dataset": "digits",
    "dataset_digest": "0" * 64,
}


@pytest.fixture
def directory(tmp_path: Path) -> TrainingDirectory:
    return TrainingDirectory(tmp_path)


def test_a_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    directory = TrainingDirectory(tmp_path / "a" / "b")
    directory.create()
    directory.create()
    assert list(directory.path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=f"train_dir: {tmp_path}/file/run cannot be written"):
        TrainingDirectory(tmp_path / "file" / "run").create()


def test_the_same_run_may_continue(directory: TrainingDirectory) -> None:
    directory.claim(RUN)
    directory.claim(dict(RUN))
    directory.check(RUN)


def test_a_run_whose_data_has_moved_may_continue(directory: TrainingDirectory) -> None:
    directory.claim({**RUN, "dataset_uri": "/old/digits.lance"})
    directory.claim({**RUN, "dataset_uri": "s3://bucket/digits.lance"})
    assert directory.read_claim()["dataset_uri"] == "s3://bucket/digits.lance"


@pytest.mark.parametrize(("before", "now"), [("mine 0123456789ab", "mine ba9876543210"), ("mine 0123", "other 0123")])
def test_a_run_whose_model_has_another_source_may_continue(directory: TrainingDirectory, before: str, now: str) -> None:
    """Its parameters and its data are the same. Earlier versions have written these facts too."""
    directory.claim({**RUN, "model": before})
    directory.check({**RUN, "model": now})
    directory.claim({**RUN, "model": now})


def test_only_parameters_that_differ_are_named(directory: TrainingDirectory) -> None:
    directory.claim({**RUN, "parameters": {"same": [4], "a": [2]}})
    with pytest.raises(ConfigurationError) as error:
        directory.check({**RUN, "parameters": {"same": [4], "a": [3], "b": []}})
    assert 'different parameters ({"a": [2]}, this run\'s is {"a": [3], "b": []})' in str(error.value)


def test_an_unclaimed_directory_is_accepted(directory: TrainingDirectory) -> None:
    directory.check(RUN)
    assert list(directory.path.iterdir()) == []  # a check claims nothing


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "cnn"}, r'different model \("mlp", this run\'s is "cnn"\)'),
        ({"parameters": {"hidden/weights": [784, 200]}}, "different parameters"),
        ({"dataset": "mnist"}, "different dataset"),
        ({"dataset_digest": "1" * 64}, "different dataset digest"),
    ],
)
def test_the_directory_of_another_run_is_refused_and_unchanged(
    directory: TrainingDirectory, change: dict[str, Any], named: str
) -> None:
    directory.claim(RUN)
    before = (directory.path / "run.json").read_bytes()
    with pytest.raises(ConfigurationError, match=named) as caught:
        directory.claim({**RUN, **change})
    assert str(directory.path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert (directory.path / "run.json").read_bytes() == before


def test_a_run_is_described_by_its_model_its_shapes_and_its_data(directory: TrainingDirectory) -> None:
    examples = Examples(np.zeros((2, 4), np.float32), np.array([0, 1], np.int32))
    dataset = Dataset("npz", examples, examples)
    run = describe("mlp", {"weights": Parameter((4, 2)), "bias": Parameter(())}, dataset)
    directory.claim(run)
    directory.check(run)
    assert run["parameters"] == {"weights": [4, 2], "bias": []}
    with pytest.raises(ConfigurationError, match="different parameters"):
        directory.check(describe("mlp", {"weights": Parameter((4, 3)), "bias": Parameter(())}, dataset))


def test_the_result_is_read_as_it_was_written(directory: TrainingDirectory) -> None:
    assert directory.read_result() == {}
    directory.write_result({"global_step": 200})
    directory.write_result({"global_step": 400})
    assert directory.read_result() == {"global_step": 400}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["result.json", "run.json"])
def test_a_file_that_cannot_be_read_is_named(directory: TrainingDirectory, name: str, content: bytes) -> None:
    (directory.path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"{directory.path}/{name}") as caught:
        directory.read_result() if name == "result.json" else directory.check(RUN)
    assert len(str(caught.value).splitlines()) == 1


def test_a_new_path_is_created_and_never_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [new_path() for _ in range(20)]
    assert len(set(paths)) == 20
    assert all(path.is_dir() and path.parent == Path("runs") for path in paths)
    assert not paths[0].is_absolute()


def test_an_evaluator_is_present_while_it_touches_its_file(tmp_path: Path) -> None:
    directory = TrainingDirectory(tmp_path)
    assert not directory.has_evaluator
    directory.test_summaries.mkdir()
    directory.evaluator.touch()
    assert directory.has_evaluator
    long_ago = time.time() - 120
    os.utime(directory.evaluator, (long_ago, long_ago))
    assert not directory.has_evaluator


@pytest.mark.parametrize(
    ("listed", "step"),
    [
        (None, None),
        ("", None),
        ('model_checkpoint_path: "model.ckpt-458"\nall_model_checkpoint_paths: "model.ckpt-300"\n', 458),
        ('model_checkpoint_path: "/runs/of-2026/model.ckpt-0"\n', 0),
    ],
)
def test_the_newest_step_is_read_from_the_list_of_checkpoints(tmp_path: Path, listed: str | None, step: int) -> None:
    if listed is not None:
        (tmp_path / "checkpoint").write_text(listed)
    assert TrainingDirectory(tmp_path).newest_step() == step


@pytest.mark.parametrize(
    "content", [b"\xff", b"[" * 100_000, b"[]", b"1" * 5000, b'{"seconds": "x"}', b'{"global_step": null}']
)
def test_a_damaged_result_is_refused_in_a_sentence(directory: TrainingDirectory, content: bytes) -> None:
    (directory.path / "result.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"result\.json"):
        directory.read_result()


def test_a_result_with_a_number_that_no_float_holds_is_refused(directory: TrainingDirectory) -> None:
    (directory.path / "result.json").write_text(f'{{"seconds": 1{"0" * 400}}}')
    with pytest.raises(ConfigurationError, match=r"seconds=10+\.\.\., but a number was expected"):
        directory.read_result()


def test_a_checkpoint_file_that_is_no_text_names_no_step(directory: TrainingDirectory) -> None:
    (directory.path / "checkpoint").write_bytes(b"\xff\0")
    assert directory.newest_step() is None
