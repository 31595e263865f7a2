"""Tables: rows dealt over parameter servers, and updated alone."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.errors import ModelError
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.graph import replica as graph_replica
from trainer.graph.keras_optimizer import KerasOptimizer
from trainer.models import Parameter, model_files
from trainer.models.keras_model import KerasModel
from trainer.shards import parameters, tables
from trainer.shards.parameters import Shard
from trainer.shards.tables import TablePart
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode
from trainer.training.session_errors import model_errors

from .conftest import Servers, Values, assert_close
from .test_checkpoints import check_that_a_snapshot_stays
from .test_replica import ancestors

pytestmark = pytest.mark.slow

ROWS, DIM = 7, 2
MODEL = """
    import keras

    def model():
        network = keras.Sequential([keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(2)])
        network.compile(keras.optimizers.Adam(0.01), "mse")
        return network
"""


def make(
    values: Any, servers: int, slots: Sequence[str] = (), run: str = "run"
) -> tuple[parameters.Layout, list[Shard]]:
    """A dense parameter, and a table with these values, in the default graph."""
    dense = {"dense": Parameter((3,), value=np.arange(3, dtype=np.float32))}
    layout = parameters.plan(dense, servers, least=0)
    shards = parameters.create(dense, layout, [""] * servers, 0, slots)
    table = {"table": Parameter(values.shape, value=values, is_table=True)}
    parts = tables.create(table, [""] * servers, dict.fromkeys(slots, 0.0), run)
    return layout, [replace(shard, tables=own) for shard, own in zip(shards, parts, strict=True)]


@pytest.mark.usefixtures("row_ops")
def test_replicas_that_update_the_same_rows_lose_no_update() -> None:
    """Each of two threads adds 1 to all rows 50 times. Without a lock, hundreds of the numbers lose some."""
    shape, times = (5000, 100), 50
    with eager_mode():
        optimizer = KerasOptimizer(Settings(staleness_aware=False), True, keras=keras.optimizers.SGD(1.0))
    with tf.Graph().as_default(), tf1.Session() as session:
        _, (shard,) = make(np.zeros(shape, np.float32), 1)
        rows = [tf.range(shape[0], dtype=tf.int64)]
        change = tf.concat([tf.zeros([shard.size]), -tf.ones([math.prod(shape)])], axis=0)
        updates = [optimizer.apply([shard], [tf.zeros([], tf.int64)], [change], [rows]) for _ in range(2)]
        session.run([each.initializer for each in shard.variables])

        def run(update: Any) -> None:
            for _ in range(times):
                session.run(update)

        threads = [threading.Thread(target=run, args=(each,)) for each in updates]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert isinstance(part := shard.tables[0], TablePart)
        assert np.array_equal(session.run(part.values), np.full(shape, 2 * times))


def test_servers_draw_their_own_rows(tmp_path: Path) -> None:
    """One server draws what Keras does; the rows of two differ."""
    (tmp_path / "mine.py").write_text(MODEL.replace("\n    ", "\n"))
    settings = Settings(model=str(tmp_path / "mine.py"), table_rows=10)
    examples = Examples(np.zeros((4, 3), np.int32), np.zeros((4, 2), np.float32))
    model = model_files.model_of(model_files.load(settings.model), settings)
    arrays = model.parameters(examples.signature)
    given = {name: each for name, each in arrays.items() if each.is_table}
    ((_, parameter),) = given.items()
    assert parameter.value is None
    with eager_mode():
        wanted = parameter.draw.initializer((50, 4), "float32").numpy()
    found = {}
    for servers in (1, 2):
        with tf.Graph().as_default(), tf1.Session() as session:
            parts = tables.create(given, [""] * servers, {}, "run")
            values = [part.values for (part,) in parts if isinstance(part, TablePart)]
            session.run([each.initializer for each in values])
            found[servers] = session.run(values)
    assert np.array_equal(found[1][0], wanted)
    assert isinstance(model, KerasModel)
    with eager_mode():
        assert np.array_equal(model.network.layers[0].get_weights()[0], wanted), "a callback may read it"
    assert len(np.unique(np.concatenate(found[2]), axis=0)) == 50


def test_an_id_that_a_table_lacks_is_a_sentence() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        _, (shard,) = make(np.zeros((ROWS, DIM), np.float32), 1)
        session.run([each.initializer for each in shard.variables])
        read, _ = shard.read([tf.constant([ROWS], tf.int64)])
        with pytest.raises(ModelError) as error, model_errors():
            session.run(read)
    assert str(error.value) == (
        "the data has an id that its table lacks: indices[0] = 7 is not in [0, 7) (of several parameter servers, each "
        "has the rows of its own part); give the embedding more rows, or hash the ids."
    )


def test_a_task_does_not_hold_a_table(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL.replace("\n    ", "\n").replace("50, 4", "5_000_000, 64"))
    settings = Settings(model=str(tmp_path / "mine.py"))
    model = model_files.model_of(model_files.load(settings.model), settings)
    before = psutil.Process().memory_info().rss
    arrays = model.parameters(Examples(np.zeros((4, 3), np.int32), np.zeros((4, 2), np.float32)).signature)
    assert sum(each.is_table for each in arrays.values()) == 1
    assert psutil.Process().memory_info().rss - before < 200 << 20, "the table has 1.2 GiB"


def test_a_snapshot_of_a_table_stays_while_replicas_train(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL.replace("\n    ", "\n"))
    settings = Settings(model=str(tmp_path / "mine.py"), batch_size=5, steps_per_execution=1, table_rows=10)
    settings = replace(settings, sync_replicas=False)
    random = np.random.default_rng(0)
    examples = Examples(random.integers(0, 50, (20, 3)).astype(np.int32), random.normal(size=(20, 2)).astype("f4"))
    model = model_files.model_of(model_files.load(settings.model), settings)
    arrays = model.parameters(examples.signature)
    found = graph_replica.build(settings, servers.member(0), model, arrays, examples, 0, "run")
    assert "(50 x 4)" in found.notes[0]
    with servers.session(found.graph) as session:
        check_that_a_snapshot_stays(found, session, tmp_path)


LARGE_DENSE_PART = """
import keras

def model():
    ids = keras.Input((3,), dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(50, 64)(ids))
    network = keras.Model(ids, keras.layers.Dense(2)(keras.layers.Dense(256, "tanh")(x)))
    network.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.1), "mse")
    return network
"""


def large_dense_part(path: Path) -> tuple[KerasModel, dict[str, Parameter], Examples]:
    """A model with a table and 50,000 other parameters, its arrays, and as many examples as a batch has."""
    path.write_text(LARGE_DENSE_PART)
    settings = Settings(model=str(path), table_rows=10)
    random = np.random.default_rng(0)
    examples = Examples(random.integers(0, 50, (5, 3)).astype(np.int32), random.normal(size=(5, 2)).astype("f4"))
    model = model_files.model_of(model_files.load(settings.model), settings)
    assert isinstance(model, KerasModel)
    return model, model.parameters(examples.signature), examples


def build_large(path: Path, cluster: Cluster | None, sync: bool = False) -> graph_replica.Replica:
    model, arrays, examples = large_dense_part(path)
    settings = Settings(batch_size=5, steps_per_execution=1, table_rows=10, sync_replicas=sync, staleness_aware=False)
    return graph_replica.build(settings, cluster, model, arrays, examples, 0, "run")


@pytest.mark.usefixtures("row_ops")
@pytest.mark.parametrize("sync", [False, True], ids=["asynchronous", "synchronous"])
def test_a_model_with_tables_has_several_shards_on_each_server_and_trains_alike(
    sync: bool, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Callable[..., Values]
) -> None:
    """Clipped by the global norm, too."""
    monkeypatch.setattr(parameters, "CHUNK_SIZE", parameters.MIN_SHARD_SIZE // 2)
    one, several = build_large(tmp_path / "one.py", None), build_large(tmp_path / "two.py", servers.member(0, 1), sync)
    handles = [op for op in several.graph.get_operations() if op.type == "VarHandleOp" and op.name.endswith("/values")]
    homes = {op.name.partition("/")[0]: op.device[:14] for op in handles}
    assert homes == {
        **{f"part_{index}_of_6": f"/job:ps/task:{index % 2}" for index in range(6)},
        **{f"table_{index}_of_2": f"/job:ps/task:{index}" for index in range(2)},
    }
    found = []
    for built, target in ((one, None), (several, servers)):
        with tf1.Session(graph=built.graph) if target is None else servers.session(built.graph) as session:
            if target is None:
                session.run(built.initialize)
                started = str(built.saver.save(session, tmp_path / "start"))
            else:
                assert built.leases
                session.run([each.initializer for each in (built.course.variable, *built.leases.variables)])
                built.saver.restore(session, started)
            built.batches.begin(session)
            session.run([built.replication.lead, built.mark_ready])
            session.run(built.replication.join)
            for step in range(4):
                feeds = dict(zip(built.batches.feeds(1), built.batches.take(1, step), strict=True))
                wanted = [built.replication.executions[1].step, *built.replication.updates.values()]
                session.run(wanted, feeds)
            found.append(values(built, session))
    # The order of the examples in the batch, which holds all of them, changes nothing.
    assert_close(found[1], found[0])


@pytest.mark.parametrize("layers", ["layers.BatchNormalization()", "layers.Embedding(50, 64), layers.Flatten()"])
def test_synchronous_clipping_sends_only_norms_between_servers(layers: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import keras\nfrom keras import layers\ndef model():\n"
        f"    network = keras.Sequential([keras.Input((3,)), {layers}, layers.Dense(20_000), layers.Dense(2)])\n"
        "    network.compile(keras.optimizers.SGD(0.1, global_clipnorm=1.0), 'mse')\n    return network\n"
    )
    given = Settings(
        model=str(tmp_path / "mine.py"), batch_size=5, steps_per_execution=1, table_rows=10, sync_replicas=True
    )
    examples = Examples(np.ones((5, 3), np.int32), np.zeros((5, 2), np.float32))
    model = model_files.model_of(model_files.load(given.model), given)
    arrays = model.parameters(examples.signature)
    cluster = Cluster(Task("worker", 0), (), ("w:1", "w:2"), ("p:1", "p:2"))
    update = graph_replica.build(given, cluster, model, arrays, examples, 0, "run").replication.updates[1]
    crossing = [
        tensor
        for op in ancestors(update)
        for tensor in op.inputs
        if tensor.dtype != tf.resource and tensor.op.device[:15] != op.device[:15]
    ]
    assert crossing
    assert all(each.shape.num_elements() in (1, 2) for each in crossing), crossing
    assert not any("/job:worker" in each.op.device for each in crossing)


def test_a_held_out_id_that_a_table_lacks_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL.replace("\n    ", "\n"))
    settings = Settings(model=str(tmp_path / "mine.py"), batch_size=2, steps_per_execution=1, table_rows=10)
    examples = Examples(np.full((4, 3), 7, np.int32), np.zeros((4, 2), np.float32))
    model = model_files.model_of(model_files.load(settings.model), settings)
    arrays = model.parameters(examples.signature)
    found = graph_replica.build(settings, None, model, arrays, examples, 0, "run")
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        path = found.saver.save(session, tmp_path / "model.ckpt")
    held_out = Examples(np.full((4, 3), 50, np.int32), np.zeros((4, 2), np.float32))
    with CheckpointEvaluator(model, arrays, held_out) as evaluator, pytest.raises(ModelError) as error:
        evaluator.score(path)
    (name,) = (name for name, each in arrays.items() if each.is_table)
    assert str(error.value) == (
        f"the held-out data has an id that the table {name} lacks: 50 is not in [0, 50); give the embedding more rows, "
        "or hash the ids."
    )
