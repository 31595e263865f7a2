"""`tf.distribute.ParameterServerStrategy`: a coordinator dispatches steps to workers, as TensorFlow's guide has it.

Keras 3 does not support this strategy, so the tables and the dense arrays of the network are variables of the strategy.
A lookup reads the rows of the batch alone, and an update of Adagrad writes these alone, as that of Keras 2 did.
"""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from benchmarks.recommenders import networks, records
from benchmarks.recommenders.progress import Progress
from benchmarks.recommenders.work import ADAGRAD_START, given

ROUND = 20
"""Steps that are scheduled before the coordinator looks at the clock."""


def main() -> None:
    """Run one task of TF_CONFIG."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        cluster = resolver.cluster_spec()
        tf.distribute.Server(cluster, resolver.task_type, resolver.task_id, protocol="grpc").join()
    train(resolver)
    os._exit(0)  # a normal exit waits for workers that never exit


class Network:
    """A network of Keras whose arrays are variables of the strategy.

    Create it before the strategy, which makes Keras's own arrays unusable, and its variables in the strategy's scope.
    """

    def __init__(self, network: Any) -> None:
        import keras

        self._names = networks.names_of(network)
        layers = [each for each in network.layers if isinstance(each, keras.layers.Embedding)]
        calls = [(layer, node) for layer in layers for node in layer._inbound_nodes]
        self._ids = keras.Model(network.inputs, [node.input_tensors[0] for _, node in calls])
        self._rest = keras.Model([*network.inputs, *(node.outputs[0] for _, node in calls)], network.outputs[0])
        self._table_of_call = [layers.index(layer) for layer, _ in calls]
        self.tables: list[Any] = [layer.embeddings.numpy() for layer in layers]
        self.dense: list[Any] = [each.numpy() for each in self._rest.trainable_variables]
        self.loss = network.loss if callable(network.loss) else keras.losses.get(network.loss)

    def create_variables(self) -> None:
        """Let the arrays be variables."""
        self.tables, self.dense = ([tf.Variable(each) for each in arrays] for arrays in (self.tables, self.dense))

    def __call__(self, inputs: Any, targets: Any) -> tuple[Any, list[Any], list[Any]]:
        """The loss of a batch, its gradients of the dense arrays, and those of each table."""
        given = [inputs[name] for name in self._names]
        ids = self._ids(dict(zip(self._names, given, strict=True)))
        with tf.GradientTape() as tape:
            dense = [tf.convert_to_tensor(each) for each in self.dense]
            tape.watch(dense)
            wanted = zip(self._table_of_call, tf.nest.flatten(ids), strict=True)
            rows = [tf.nn.embedding_lookup(self.tables[table], each) for table, each in wanted]
            outputs, _ = self._rest.stateless_call(dense, [], [*given, *rows], training=True)
            loss = tf.reduce_mean(self.loss(targets, outputs))
        of_dense, of_tables = tape.gradient(loss, (dense, self.tables))
        return loss, of_dense, of_tables


class Adagrad:
    """Adagrad for rows and for dense arrays; create it in the strategy's scope."""

    def __init__(self, network: Network, learning_rate: float) -> None:
        self._network, self._rate = network, learning_rate
        self._sums, self._table_sums = (
            [_sum_beside(each) for each in given] for given in (network.dense, network.tables)
        )

    def apply(self, of_dense: Any, of_tables: Any) -> None:
        """Apply the gradients on the devices of the variables."""
        op = tf.raw_ops
        for variable, sums, gradient in zip(self._network.dense, self._sums, of_dense, strict=True):
            with tf.device(variable.device):
                handles = {"var": variable.handle, "accum": sums.handle}
                op.ResourceApplyAdagradV2(**handles, lr=self._rate, epsilon=1e-7, grad=gradient)
        for variable, sums, gradient in zip(self._network.tables, self._table_sums, of_tables, strict=True):
            ids, places = tf.unique(gradient.indices)
            values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
            with tf.device(variable.device):
                handles = {"var": variable.handle, "accum": sums.handle}
                op.ResourceSparseApplyAdagradV2(**handles, lr=self._rate, epsilon=1e-7, grad=values, indices=ids)


def _sum_beside(variable: Any) -> Any:
    """Adagrad's sum of a variable, on the same parameter server."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
        return tf.Variable(tf.fill(variable.shape, ADAGRAD_START))


def train(resolver: Any) -> None:
    """Train as the coordinator, and print the line."""
    mine = given()
    work, form = mine.work, records.read_about(mine.examples).form
    compiled = networks.build(work, form)
    network = Network(compiled)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        network.create_variables()
        optimizer = Adagrad(network, work.learning_rate)
    names, file = networks.names_of(compiled), mine.examples / records.TRAIN

    def batches(context: Any = None) -> Any:
        return records.dataset(file, form, names, work.batch_size).shuffle(16).repeat()

    def step(iterator: Any) -> None:
        def on_batch(batch: Any) -> None:
            _, of_dense, of_tables = network(*batch)
            optimizer.apply(of_dense, of_tables)

        strategy.run(on_batch, args=(next(iterator),))

    traced = tf.function(step)
    iterator = iter(coordinator.create_per_worker_dataset(batches))
    progress, done = Progress(work), 0
    steps = work.workers
    while True:
        for _ in range(steps):
            coordinator.schedule(traced, args=(iterator,))
        coordinator.join()
        done += steps
        if not progress.tick(done * work.batch_size):
            break
        steps = min(ROUND, max(work.workers, work.steps // 10))
    progress.print()


if __name__ == "__main__":
    main()
