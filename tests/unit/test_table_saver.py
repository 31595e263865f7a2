"""Checkpoints of tables: a base that they share, and the rows that have changed since."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

from trainer.checkpoint import best, table_files
from trainer.checkpoint.files import files_of
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.score import BestMetric, Score
from trainer.checkpoint.table_files import Changes, StoredArrays, StoredRows, StoredTable, Table
from trainer.config import Settings
from trainer.graph.keras_optimizer import KerasOptimizer
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode
from trainer.tensorflow_types import Session
from trainer.training import evaluator

from .test_tables import make

pytestmark = pytest.mark.slow

ROWS, DIM = 40, 2
VALUES = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
SLOT = "momentum"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Trained:
    """A table on some servers, and a session that trains it."""

    session: Session
    saver: Saver
    servers: int
    shards: Sequence[Any]
    rows: Sequence[Any]
    """Placeholders: the rows that `update` updates on each server."""
    number: Any
    """Placeholder: what `update` subtracts from them."""
    update: Any

    def add(self, rows: Sequence[int], number: float = 1.0) -> None:
        """Add a number to rows."""
        feeds = {
            each: [row // self.servers for row in rows if row % self.servers == at] for at, each in enumerate(self.rows)
        }
        self.session.run(self.update, {**feeds, self.number: -number})

    def values(self) -> Array:
        """The table, and its slot."""
        found = np.empty((ROWS, 2 * DIM), np.float32)
        for at, shard in enumerate(self.shards):
            found[at :: self.servers] = np.hstack(self.session.run(shard.tables[0].variables))
        return found


@contextmanager
def train(servers: int, values: Array = VALUES, run: str = "run") -> Iterator[Trained]:
    with eager_mode():
        optimizer = KerasOptimizer(Settings(), True, keras=keras.optimizers.SGD(1.0, momentum=0.5))
    with tf.Graph().as_default(), tf1.Session() as session:
        layout, shards = make(values, servers, [SLOT], run)
        saver = Saver(layout, shards, [SLOT], [], run="run")
        number = tf1.placeholder(tf.float32, [])
        rows = [[tf1.placeholder(tf.int64, [None])] for _ in shards]
        changes = [
            tf.concat([tf.zeros([shard.size]), tf.fill([values.shape[1] * tf.size(own)], number)], axis=0)
            for shard, (own,) in zip(shards, rows, strict=True)
        ]
        update = optimizer.apply(shards, [tf.zeros([], tf.int64)] * servers, changes, rows)
        session.run([each.initializer for shard in shards for each in shard.variables])
        yield Trained(session, saver, servers, shards, [own for (own,) in rows], number, update)


def stored(path: str) -> Array:
    arrays = StoredArrays(path)
    return np.hstack([arrays.whole("table"), arrays.whole(f"table/{SLOT}")])


def listed(path: str) -> Mapping[str, Any]:
    (table,) = json.loads(Path(f"{path}.tables.json").read_text())
    return dict(table)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_checkpoint_fits_any_number_of_servers(before: int, after: int, tmp_path: Path) -> None:
    with train(before) as trained:
        trained.add([0, 5, 39])
        path = trained.saver.save(trained.session, tmp_path / "model")
        expected = trained.values()
    assert np.array_equal(stored(path), expected)
    with train(after, np.zeros_like(VALUES), "another run") as trained:
        trained.saver.restore(trained.session, path)
        assert np.array_equal(trained.values(), expected)
        trained.add([7])
        again = trained.saver.save(trained.session, tmp_path / "again")
        assert np.array_equal(stored(again), trained.values())


def test_a_checkpoint_has_only_the_rows_that_changed_since_the_base(tmp_path: Path) -> None:
    with train(2) as trained:
        first = trained.saver.save(trained.session, tmp_path / "first")
        trained.add([3, 4, 8])
        second = trained.saver.save(trained.session, tmp_path / "second")
        expected = trained.values()
        trained.add([4, 9])
        third = trained.saver.save(trained.session, tmp_path / "third")
        assert np.array_equal(stored(third), trained.values())
    assert np.array_equal(stored(second), expected)
    assert np.array_equal(np.load(f"{second}.table-0.rows.npy"), [3, 4, 8])
    assert np.array_equal(np.load(f"{third}.table-0.rows.npy"), [3, 4, 8, 9])
    assert listed(first) == listed(second) == listed(third)


def test_a_checkpoint_gets_a_new_base_once_many_rows_have_changed(tmp_path: Path) -> None:
    with train(2) as trained:
        first = trained.saver.save(trained.session, tmp_path / "first")
        trained.add(range(30))
        second = trained.saver.save(trained.session, tmp_path / "second")
        assert np.array_equal(stored(second), trained.values())
        trained.add([39])
        third = trained.saver.save(trained.session, tmp_path / "third")
        assert np.array_equal(stored(third), trained.values())
        bases = [listed(path)["base"] for path in (first, second, third)]
        assert bases[0] != bases[1] == bases[2]
        assert len(np.load(f"{second}.table-0.rows.npy")) == 0
        assert np.array_equal(np.load(f"{third}.table-0.rows.npy"), [39])
        for file in files_of(first):
            file.unlink()
        table_files.remove_unused(tmp_path, trained.saver.tables.bases)
        assert [file.name for file in tmp_path.glob("table-*")] == [bases[1]]


def test_updates_while_the_base_is_read_are_in_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is read in slices of few rows, while a thread updates all of them again and again."""
    monkeypatch.setattr(table_files, "SLICE_BYTES", 64)
    with train(2) as trained:
        is_over = threading.Event()

        def update() -> None:
            while not is_over.is_set():
                trained.add(range(1, ROWS, 3))

        thread = threading.Thread(target=update)
        thread.start()
        try:
            trained.saver.tables.read_bases(trained.session, tmp_path)
        finally:
            is_over.set()
            thread.join()
        expected = trained.values()
        path = trained.saver.save(trained.session, tmp_path / "model")
        assert np.array_equal(stored(path), expected)


def test_a_snapshot_is_that_of_a_moment_between_two_updates(tmp_path: Path) -> None:
    """Each update adds 1 to all rows, so in each snapshot they are equal. Without a lock, some have half an update."""
    rows, are_equal = range(20_000), []
    with train(1, np.zeros((len(rows), 100), np.float32)) as trained:
        trained.saver.tables.read_bases(trained.session, tmp_path)
        trained.add(rows)
        is_over = threading.Event()

        def update() -> None:
            while not is_over.is_set():
                trained.add(rows)

        thread = threading.Thread(target=update)
        thread.start()
        try:
            for _ in range(60):
                (changes,) = trained.saver.snapshot(trained.session).fetch().tables.changes
                are_equal.append((changes.values == changes.values[0]).all())
        finally:
            is_over.set()
            thread.join()
    assert all(are_equal)


def test_parameters_that_are_not_finite_are_found(tmp_path: Path) -> None:
    with train(2) as trained:
        trained.saver.tables.read_bases(trained.session, tmp_path)
        assert trained.saver.snapshot(trained.session).is_finite
        trained.add([3], np.inf)
        assert not trained.saver.snapshot(trained.session).is_finite


@pytest.mark.parametrize("what", ["base", "rows", "values", "list"])
def test_a_file_that_was_cut_short_is_found(what: str, tmp_path: Path) -> None:
    with train(2) as trained:
        trained.saver.tables.read_bases(trained.session, tmp_path)
        trained.add([3, 4])
        path = trained.saver.save(trained.session, tmp_path / "model")
        files = {"base": tmp_path / listed(path)["base"], "list": Path(f"{path}.tables.json")}
        file = files.get(what, Path(f"{path}.table-0.{what}.npy"))
        file.write_bytes(file.read_bytes()[:-3])
        with pytest.raises(tf.errors.DataLossError, match=file.name):
            trained.saver.restore(trained.session, path)
        file.unlink()
        if what != "list":
            with pytest.raises(tf.errors.DataLossError, match=file.name):
                trained.saver.restore(trained.session, path)


def test_the_best_checkpoint_has_its_own_base(tmp_path: Path) -> None:
    folder = tmp_path / "best"
    with train(2) as trained:
        first = trained.saver.save(trained.session, tmp_path / "model.ckpt")
        assert best.offer(folder, first, Score(1, 0.5, {}), BestMetric())
        base = folder / listed(first)["base"]
        assert base.samefile(tmp_path / base.name)
        expected = trained.values()
        trained.add(range(ROWS))
        second = trained.saver.save(trained.session, tmp_path / "other.ckpt")
        table_files.remove_unused(tmp_path, trained.saver.tables.bases)
        for file in [*files_of(first), tmp_path / base.name]:
            file.unlink()
        assert np.array_equal(stored(str(folder / "model.ckpt-1")), expected)
        assert best.offer(folder, second, Score(2, 0.25, {}), BestMetric())
        assert np.array_equal(stored(str(folder / "model.ckpt-2")), trained.values())
        assert len([*folder.glob("table-*")]) == 1


@pytest.mark.parametrize("run", ["run", "another run"])
def test_a_server_that_was_not_lost_keeps_its_tables_if_they_are_of_this_run(run: str, tmp_path: Path) -> None:
    with train(2) as trained:
        trained.add([3, 4])
        path = trained.saver.save(trained.session, tmp_path / "model")
        saved = trained.values()
    with train(2, np.zeros_like(VALUES), run) as trained:
        trained.add([7])
        before = trained.values()
        lost = trained.shards[0].tables[0].slots[0]
        trained.session.run(tf.raw_ops.DestroyResourceOp(resource=lost.handle))
        kept = trained.saver.restore(trained.session, path)
        after = trained.values()
    assert np.array_equal(after[::2], saved[::2])
    assert np.array_equal(after[1::2], (before if run == "run" else saved)[1::2])
    assert kept == ([1] if run == "run" else [])


def test_tables_of_which_a_part_was_restored_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the chief were killed between two slices."""
    monkeypatch.setattr(table_files, "SLICE_BYTES", 64)
    with train(2) as trained:
        trained.add([3, 4, 38])
        path = trained.saver.save(trained.session, tmp_path / "model")
        saved = trained.values()
    read = StoredRows.between

    def interrupt(rows: StoredRows, start: int, end: int) -> Array:
        if start >= ROWS // 2:
            raise KeyboardInterrupt
        return read(rows, start, end)

    with train(2, np.zeros_like(VALUES)) as trained:
        lost = trained.shards[0].tables[0].slots[0]
        trained.session.run(tf.raw_ops.DestroyResourceOp(resource=lost.handle))
        with monkeypatch.context() as interrupted:
            interrupted.setattr(StoredRows, "between", interrupt)
            with pytest.raises(KeyboardInterrupt):
                trained.saver.restore(trained.session, path)
        assert trained.saver.restore(trained.session, path) == [1]
        assert np.array_equal(trained.values()[::2], saved[::2])


def test_what_no_checkpoint_has_is_removed(tmp_path: Path) -> None:
    with train(2) as trained:
        path = trained.saver.save(trained.session, tmp_path / "model")
        base = listed(path)["base"]
        (tmp_path / "table-0-00000000.npy").touch()
        (tmp_path / ".table-0-00000001.npy").touch()
        list_of_another = tmp_path / "best" / "model-3.tables.json"
        list_of_another.parent.mkdir()
        list_of_another.write_text("[")
        list_of_another.with_name("model-3.index").touch()
        table_files.remove_unused(tmp_path)
        assert (tmp_path / "table-0-00000000.npy").exists(), "the other checkpoint may have it"
        list_of_another.with_name("model-3.index").unlink()
        table_files.remove_unused(tmp_path)
        table_files.remove_partial(tmp_path)
        assert [file.name for file in tmp_path.glob("*table-*-*.npy") if "model" not in file.name] == [base]


def test_a_dense_parameter_continues_as_a_table_and_the_reverse(tmp_path: Path) -> None:
    with train(2) as trained:
        trained.add([3])
        path = trained.saver.save(trained.session, tmp_path / "table")
        expected = trained.values()
    arrays = StoredArrays(path)
    whole = {name: arrays.whole(name) for name in sorted(arrays.names)}
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = [tf1.get_variable(name, initializer=value) for name, value in whole.items()]
        session.run(tf1.global_variables_initializer())
        dense = tf1.train.Saver(variables).save(session, str(tmp_path / "dense"))
    with train(3, np.zeros_like(VALUES), "another run") as trained:
        trained.saver.restore(trained.session, dense)
        assert np.array_equal(trained.values(), expected)


def test_rows_are_those_of_the_whole() -> None:
    random = np.random.default_rng(0)
    base, rows = random.normal(size=(100, 4)).astype(np.float32), np.sort(random.choice(100, 30, replace=False))
    values = random.normal(size=(30, 4)).astype(np.float32)
    whole = base.copy()
    whole[rows] = values
    described = Table("", 100, 2, ("/a",))
    table = StoredTable(described, base, Changes(rows, values))
    ids = random.integers(0, 100, (5, 7))
    assert np.array_equal(table.take(ids, slice(0, 4)), whole[ids])
    assert np.array_equal(table.take(ids, slice(2, 4)), whole[ids][..., 2:])
    for start, end in described.slices():
        assert np.array_equal(table.between(start, end), whole[start:end])
    assert np.array_equal(table.between(17, 61), whole[17:61])


def test_a_save_that_may_not_merge_has_the_old_base(tmp_path: Path) -> None:
    with train(2) as trained:
        first = listed(trained.saver.save(trained.session, tmp_path / "model"))["base"]
        trained.add(range(ROWS))
        expected = trained.values()
        bases = []
        for number, may_merge in enumerate((False, True)):
            path = trained.saver.snapshot(trained.session).write(tmp_path / f"last-{number}", may_merge)
            assert np.array_equal(stored(path), expected)
            bases.append(listed(path)["base"])
    assert bases[0] == first != bases[1]


def test_a_checkpoint_that_an_evaluator_reads_stays(tmp_path: Path) -> None:
    """Also if files of an earlier one are still there, as on NFS those that are in use are."""
    folder = tmp_path / ".evaluating"
    folder.mkdir()
    (folder / ".nfs0001").touch()
    with train(2) as trained:
        path = trained.saver.save(trained.session, tmp_path / "model")
        trained.add([3])
        expected = stored(path)
    with evaluator._kept(path, folder) as kept:
        assert kept is not None
        assert kept != path
        for file in files_of(path):
            file.unlink()
        table_files.remove_unused(tmp_path)
        assert np.array_equal(stored(kept), expected)
    assert not folder.exists()
