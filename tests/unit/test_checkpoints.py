"""Checkpoints: snapshots do not change while training goes on, damage is found, and old ones are deleted by rule."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.checkpoint.files import COURSE, CheckpointList, move
from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.models import mlp
from trainer.tensorflow import tf1
from trainer.tensorflow.errors import UNREADABLE

from .conftest import EXAMPLES, MLP, PARAMETERS, SIZE, Servers, Values, values_in

FEW = Examples(np.ones((4, 6), np.float32), np.zeros(4, np.int32))


def take_step(found: Replica, session: Any) -> None:
    feeds = dict(zip(found.batches.feeds(1), found.batches.take(1, 0), strict=True))
    session.run(found.replication.executions[1].step, feeds)


def check_that_a_snapshot_stays(found: Replica, session: Any, folder: Path) -> None:
    session.run(found.initialize)
    found.batches.begin(session)
    session.run(found.replication.join)
    take_step(found, session)
    expected: Values = values_in(found.saver.save(session, folder / "before"))
    snapshot = found.saver.snapshot(session)
    for _ in range(3):
        take_step(found, session)
    snapshot.fetch()
    take_step(found, session)
    written = values_in(snapshot.write(folder / "snapshot"))
    assert written.keys() == expected.keys()
    assert all(np.array_equal(written[name], expected[name]) for name in expected)
    later = values_in(found.saver.save(session, folder / "later"))
    assert [name for name in expected if np.array_equal(later[name], expected[name])] == [COURSE]


def test_a_snapshot_of_one_process_stays_while_it_trains(tmp_path: Path) -> None:
    found = replica.build(Settings(batch_size=SIZE, steps_per_execution=1), None, MLP, PARAMETERS, EXAMPLES, 0, "run")
    with tf1.Session(graph=found.graph) as session:
        check_that_a_snapshot_stays(found, session, tmp_path)


def test_a_snapshot_on_parameter_servers_stays_while_replicas_train(servers: Servers, tmp_path: Path) -> None:
    settings = Settings(batch_size=SIZE, steps_per_execution=1)
    found = replica.build(settings, servers.member(0), MLP, PARAMETERS, EXAMPLES, 0, "run")
    with servers.session(found.graph) as session:
        check_that_a_snapshot_stays(found, session, tmp_path)


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[tuple[Replica, Any, Path]]:
    """A small replica, its session, and the path of its checkpoint."""
    settings = Settings(batch_size=4, steps_per_execution=1)
    found = replica.build(settings, None, MLP, mlp.parameters((6,), 3, 5), FEW, 0, "run")
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        found.batches.begin(session)
        take_step(found, session)
        yield found, session, Path(found.saver.save(session, tmp_path / "model.ckpt"))


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
def test_a_changed_byte_is_found_or_changes_nothing(saved: tuple[Replica, Any, Path], part: str) -> None:
    found, session, path = saved
    expected = values_in(str(path))
    file = path.with_name(f"{path.name}.{part}")
    content, unnoticed = file.read_bytes(), 0
    for position in range(0, len(content), 7):
        file.write_bytes(content[:position] + bytes([content[position] ^ 1 << position % 8]) + content[position + 1 :])
        try:
            found.saver.restore(session, str(path))
        except UNREADABLE:
            continue
        file.write_bytes(content)
        restored = values_in(found.saver.save(session, path.with_name("restored")))
        assert all(np.array_equal(restored[name], expected[name]) for name in expected), f"byte {position} of {part}"
        unnoticed += 1
    assert unnoticed == 0 or part == "index", "each byte of the data belongs to an array"
    assert unnoticed < len(content) / 7 / 2


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
def test_a_file_that_was_cut_short_is_found(saved: tuple[Replica, Any, Path], part: str) -> None:
    found, session, path = saved
    file = path.with_name(f"{path.name}.{part}")
    content = file.read_bytes()
    for length in [*range(0, len(content), 13), len(content) - 1]:
        file.write_bytes(content[:length])
        with pytest.raises(UNREADABLE):
            found.saver.restore(session, str(path))


Make = Callable[[CheckpointList, int], None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Adds the files of a checkpoint of this step to the list, as many minutes after the epoch of this test."""

    def make(listed: CheckpointList, step: int) -> None:
        for suffix in ("index", "data-00000-of-00001"):
            (tmp_path / f"model.ckpt-{step}.{suffix}").write_text(str(step))
        monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0 + 60 * step)
        listed.add(str(tmp_path / f"model.ckpt-{step}"))

    return make


def steps(paths: list[str]) -> list[int]:
    return [int(path.rpartition("-")[2]) for path in paths]


def files(folder: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("model.ckpt-*.index"))


def test_one_checkpoint_is_kept_for_each_time_in_addition_to_the_last_ones(add: Make, tmp_path: Path) -> None:
    listed = CheckpointList(tmp_path, keep=2, keep_hours=1)
    for step in range(0, 200, 10):
        add(listed, step)
        if step % 30 == 0:  # the chief restarts
            listed = CheckpointList(tmp_path, keep=2, keep_hours=1)
    assert steps(listed.paths) == files(tmp_path) == [0, 60, 120, 180, 190]
    assert tf1.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-190"
    listed = CheckpointList(tmp_path, keep=2)  # without the setting, those that were kept stay
    for step in (200, 210, 220):
        add(listed, step)
    assert steps(listed.paths) == files(tmp_path) == [0, 60, 120, 210, 220]


def test_a_clock_that_is_set_back_keeps_no_more_checkpoints(add: Make, tmp_path: Path) -> None:
    listed = CheckpointList(tmp_path, keep=1, keep_hours=1)
    for step in [600, *range(0, 130, 10)]:
        add(listed, step)
    assert steps(listed.paths) == [600, 0, 60, 120]


def test_by_default_only_the_last_ones_are_kept(add: Make, tmp_path: Path) -> None:
    listed = CheckpointList(tmp_path, keep=2)
    for step in range(0, 1000, 100):
        add(listed, step)
    assert steps(listed.paths) == files(tmp_path) == [800, 900]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"model_checkpoint_path: broken"])
def test_without_a_readable_list_the_checkpoints_found_take_its_place(
    add: Make, tmp_path: Path, content: bytes | None
) -> None:
    listed = CheckpointList(tmp_path, keep=3)
    for step in (9, 10, 100):
        add(listed, step)
    (tmp_path / "checkpoint").unlink()
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    found = CheckpointList(tmp_path, keep=3)
    assert not found.is_listed
    assert steps(found.paths) == [9, 10, 100]
    add(found, 110)
    assert files(tmp_path) == [10, 100, 110]


def test_a_checkpoint_is_moved_with_all_of_its_files(saved: tuple[Replica, Any, Path], tmp_path: Path) -> None:
    _, _, path = saved
    expected = values_in(str(path))
    (tmp_path / "other").mkdir()
    moved = move(str(path), tmp_path / "other")
    assert sorted(os.listdir(tmp_path / "other")) == ["model.ckpt-1.data-00000-of-00001", "model.ckpt-1.index"]
    assert not list(tmp_path.glob("model.ckpt-1*"))
    assert all(np.array_equal(values_in(moved)[name], expected[name]) for name in expected)
