"""`tf.distribute.ParameterServerStrategy` on the model of embedding.py, as TensorFlow's guide has it.

Worker 0 is the coordinator, and the other workers compute. It takes the flags of classic_embedding.py, and prints the
same line: the rate in global steps/s, of as many steps as fit into MAX_SECONDS.
"""

import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from benchmarks.classic_mnist_replica import make_parser
from benchmarks.embedding import DIM, HIDDEN, LEARNING_RATE, LENGTH, make_data

MAX_SECONDS = 20.0
ROUND = 20
"""Steps that are scheduled before the coordinator looks at the clock."""


def main() -> None:
    """Run one task."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--optimizer", choices=("SGD", "Adagrad", "Adam"), required=True)
    arguments = parser.parse_args()
    chief, *workers = arguments.worker_hosts.split(",")
    cluster = {"ps": arguments.ps_hosts.split(","), "worker": workers, "chief": [chief]}
    job, index = arguments.job_name, arguments.task_index
    if job == "worker":
        job, index = ("worker", index - 1) if index else ("chief", 0)
    if job != "chief":
        tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc").join()
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
    print(json.dumps({"rate": train(arguments)}), flush=True)
    os._exit(0)  # a normal exit waits for workers that never exit


def train(arguments: Any) -> float:
    """Train as the coordinator, and return the rate."""
    import keras

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.random.uniform([arguments.rows, DIM], -0.05, 0.05))
        hidden = tf.Variable(tf.random.normal([LENGTH * DIM, HIDDEN], stddev=0.05)), tf.Variable(tf.zeros([HIDDEN]))
        logits = tf.Variable(tf.random.normal([HIDDEN, 2], stddev=0.1)), tf.Variable(tf.zeros([2]))
        variables = [table, *hidden, *logits]
        optimizer = getattr(keras.optimizers, arguments.optimizer)(LEARNING_RATE)
        optimizer.build(variables)

    def batches() -> Any:
        ids, labels = make_data(arguments.rows)
        dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).shuffle(len(ids)).repeat()
        return dataset.batch(arguments.batch_size).prefetch(2)

    def step_on_batch(batch: Any) -> None:
        ids, labels = batch
        with tf.GradientTape() as tape:
            looked_up = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, LENGTH * DIM])
            outputs = tf.nn.relu(looked_up @ hidden[0] + hidden[1]) @ logits[0] + logits[1]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def step(iterator: Any) -> None:
        strategy.run(step_on_batch, args=(next(iterator),))

    iterator = iter(coordinator.create_per_worker_dataset(batches))

    traced = tf.function(step)

    def take(steps: int) -> None:
        for _ in range(steps):
            coordinator.schedule(traced, args=(iterator,))
        coordinator.join()

    hosts = arguments.worker_hosts.split(",")
    take(len(hosts))
    begin, taken, steps = time.monotonic(), 0, 1
    while taken < arguments.train_steps and time.monotonic() - begin < MAX_SECONDS:
        before = time.monotonic()
        take(steps)
        taken += steps
        steps = ROUND if (time.monotonic() - before) / steps < MAX_SECONDS / ROUND**2 else len(hosts)
    return taken / (time.monotonic() - begin)


if __name__ == "__main__":
    main()
