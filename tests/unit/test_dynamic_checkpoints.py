"""Checkpoints of tables that grow: their rows by ids, on any number of servers."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

from trainer.checkpoint import table_files
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.table_files import DynamicRows, StoredArrays
from trainer.config import Settings
from trainer.dynamic.ids import NO_ID
from trainer.graph.keras_optimizer import KerasOptimizer
from trainer.kernels import library
from trainer.models import Growth, Parameter
from trainer.shards import parameters, tables
from trainer.shards.dynamic_part import BEGIN_OF_TIME
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode
from trainer.tensorflow_types import Session

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(library.load() is None, reason="there is no compiler of C++"),
]

Array = npt.NDArray[Any]

DIM, SLOT, EXPIRES = 2, "momentum", 1000


@dataclass(frozen=True)
class Trained:
    """A table that grows on some servers, and a session that trains it."""

    session: Session
    saver: Saver
    shards: Sequence[Any]
    given: Sequence[Any]
    """Placeholders: the ids of each server."""
    step: Any
    """Placeholder: the number of earlier steps."""
    read: Any
    update: Any

    def _feeds(self, ids: Any, step: int) -> Mapping[Any, Any]:
        keys, count = np.asarray(ids, np.int64), len(self.given)
        return {self.step: step, **{each: keys[keys % count == at] for at, each in enumerate(self.given)}}

    def train(self, ids: Any, step: int = 0) -> None:
        """Add 1 to the rows of ids, which are new or not."""
        self.session.run(self.read, self._feeds(ids, step))
        self.session.run(self.update, self._feeds(ids, step))

    def rows(self) -> dict[int, list[float]]:
        """All rows with their slots by id."""
        found: dict[int, list[float]] = {}
        for shard in self.shards:
            table = shard.tables[0].table
            ids, _, values = self.session.run(table.between(tf.constant(0, tf.int64), tf.constant(10**6, tf.int64)))
            found.update(zip(ids.tolist(), values.tolist(), strict=True))
        found.pop(NO_ID, None)
        return found


@contextmanager
def start(servers: int, run: str = "run", capacity: int = 10_000, in_seconds: bool = False) -> Iterator[Trained]:
    with eager_mode():
        optimizer = KerasOptimizer(Settings(), True, keras=keras.optimizers.SGD(1.0, momentum=0.5))
    growth = Growth(1, EXPIRES, in_seconds, ("uniform", -1.0, 1.0), 3)
    graph = tf.Graph()
    with graph.as_default(), tf1.Session() as session:
        layout = parameters.plan(dense := {"dense": Parameter((3,))}, servers, least=0)
        devices = [""] * servers
        shards = parameters.create(dense, layout, devices, 0, [SLOT])
        table = {"table": Parameter((capacity, DIM), is_table=True, growth=growth)}
        parts: list[Any] = tables.create(table, devices, {SLOT: 0.0}, run)
        shards = [replace(shard, tables=own) for shard, own in zip(shards, parts, strict=True)]
        saver = Saver(layout, shards, [SLOT], [], run="run")
        step, given = tf1.placeholder(tf.int64, []), [tf1.placeholder(tf.int64, [None]) for _ in shards]
        read = [part.table.read(own, step) for (part,), own in zip(parts, given, strict=True)]
        changes = [
            tf.concat([tf.zeros([shard.size]), -tf.ones([DIM * tf.size(own)])], axis=0)
            for shard, own in zip(shards, given, strict=True)
        ]
        update = optimizer.apply(shards, [tf.zeros([], tf.int64)] * servers, changes, [[own] for own in given])
        session.run([each.initializer for shard in shards for each in shard.variables])
        session.run([each for shard in shards for each in shard.tables[0].initialize()])
        yield Trained(session, saver, shards, given, step, read, update)


def stored(path: str) -> dict[int, list[float]]:
    """The rows of a checkpoint with their slots by id."""
    arrays = StoredArrays(path)
    values, slots = arrays.rows("table"), arrays.rows(f"table/{SLOT}")
    assert isinstance(values, DynamicRows)
    joined = np.hstack([values.between(0, len(values.ids)), slots.between(0, len(values.ids))])
    assert np.array_equal(values.take(values.ids), joined[:, :DIM])
    return dict(zip(values.ids.tolist(), joined.tolist(), strict=True))


IDS = np.random.default_rng(0).integers(-(2**62), 2**62, 3000)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_a_checkpoint_fits_any_number_of_servers(before: int, after: int, tmp_path: Path) -> None:
    with start(before) as trained:
        trained.train(IDS)
        trained.saver.tables.read_bases(trained.session, tmp_path)
        trained.train(IDS[:50], 3)
        trained.train(IDS[:20] + 1, 4)
        path = trained.saver.save(trained.session, tmp_path / "model")
        expected = trained.rows()
    assert len(expected) == 3020
    assert len(np.load(f"{path}.table-0.rows.npy")) == 70
    assert stored(path) == expected
    with start(after, "another run") as trained:
        trained.train([1, 2, 3])
        trained.saver.restore(trained.session, path)
        assert trained.rows() == expected
        again = trained.saver.save(trained.session, tmp_path / "again")
        trained.train(IDS[:5], 5)
        assert stored(again) == expected
    assert stored(path) == expected


def test_rows_that_have_left_are_gone_from_the_next_checkpoint(tmp_path: Path) -> None:
    """When rows expire, others take their places, under the same base."""
    with start(2) as trained:
        trained.train(IDS)
        first = trained.saver.save(trained.session, tmp_path / "first")
        for step in range(EXPIRES + 10, 3 * EXPIRES, 50):
            trained.train(IDS[:100], step)
        second = trained.saver.save(trained.session, tmp_path / "second")
        assert stored(second).keys() == {*IDS[:100].tolist()}
        assert stored(second) == trained.rows()
        trained.train(IDS[:1000] + 1, 3 * EXPIRES)
        third = trained.saver.save(trained.session, tmp_path / "third")
        assert stored(third) == trained.rows()
        assert len(stored(third)) == 1100
    assert len(stored(first)) == 3000


def test_a_base_has_rows_beyond_the_earlier_one(tmp_path: Path) -> None:
    with start(2) as trained:
        first = trained.saver.save(trained.session, tmp_path / "first")
        assert stored(first) == {}
        for number in range(5):
            trained.train(IDS[600 * number : 600 * (number + 1)], number)
            path = trained.saver.save(trained.session, tmp_path / f"model-{number}")
            assert stored(path) == trained.rows()
        assert len([*tmp_path.glob("table-*")]) > 2


def test_a_table_that_was_lost_comes_back_and_the_other_server_keeps_its_own(tmp_path: Path) -> None:
    with start(2) as trained:
        trained.train(IDS)
        path = trained.saver.save(trained.session, tmp_path / "model")
        saved = trained.rows()
        trained.train(IDS + 2, 1)
        before = trained.rows()
        trained.session.run(trained.shards[0].tables[0].initialize())
        trained.session.run(trained.shards[0].tables[0].run_id.assign("", read_value=False))
        kept = trained.saver.restore(trained.session, path)
        assert kept == [1]
        after = trained.rows()
    assert {key: row for key, row in after.items() if key % 2 == 0} == {
        key: row for key, row in saved.items() if key % 2 == 0
    }
    assert {key: row for key, row in after.items() if key % 2} == {key: row for key, row in before.items() if key % 2}


def test_a_smaller_capacity_keeps_the_rows_that_fit(tmp_path: Path) -> None:
    with start(1) as trained:
        for step in range(30):
            trained.train(IDS[100 * step : 100 * (step + 1)], step)
        path = trained.saver.save(trained.session, tmp_path / "model")
        expected = trained.rows()
    with start(1, capacity=1000) as trained:
        trained.session.run(trained.shards[0].tables[0].run_id.assign("", read_value=False))
        trained.saver.restore(trained.session, path)
        found = trained.rows()
    assert len(found) == 1000
    assert all(expected[key] == row for key, row in found.items())


@pytest.mark.parametrize("in_seconds", [False, True])
def test_rows_stay_though_the_time_is_counted_in_another_unit(in_seconds: bool, tmp_path: Path) -> None:
    """As if they had been used now: with their old times, all would leave, or none ever."""
    now = int(time.time()) - BEGIN_OF_TIME if in_seconds else 50
    with start(2, in_seconds=not in_seconds) as trained:
        trained.train(IDS[:1000], 50 if in_seconds else now + 10**7)
        path = trained.saver.save(trained.session, tmp_path / "model")
    with start(1, "another run", in_seconds=in_seconds) as trained:
        trained.saver.restore(trained.session, path)
        for step in range(1, 10):
            trained.train(IDS[1000:1100], now + step)
        assert {*IDS[:1000].tolist()} <= trained.rows().keys()
        for step in range(10, 3 * EXPIRES, 50):
            trained.train(IDS[1000:1100], now + step)
        assert trained.rows().keys() == {*IDS[1000:1100].tolist()}


def test_a_fixed_table_does_not_continue_as_one_that_grows(tmp_path: Path) -> None:
    with start(1) as trained:
        path = trained.saver.save(trained.session, tmp_path / "model")
    listed = Path(f"{path}.tables.json")
    listed.write_text(listed.read_text().replace('"grows": true', '"grows": false'))
    with start(1, "another run") as trained, pytest.raises(tf.errors.DataLossError, match="has"):
        trained.saver.restore(trained.session, path)


def test_a_file_of_rows_is_read_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "SLICE_BYTES", 640)
    with start(2) as trained:
        trained.train(IDS)
        trained.saver.tables.read_bases(trained.session, tmp_path)
        trained.train(IDS[::7], 3)
        path = trained.saver.save(trained.session, tmp_path / "model")
        expected = trained.rows()
        assert stored(path) == expected
    with start(3, "another run") as trained:
        trained.saver.restore(trained.session, path)
        assert trained.rows() == expected
