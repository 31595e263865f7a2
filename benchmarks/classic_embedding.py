"""The classic program for an embedding, as TensorFlow 1 tutorials taught it. Do not use it as a model today.

The table is a variable on the parameter servers, and the gradient of a lookup has only the rows of the batch, which
alone cross the wire. It takes the flags of classic_mnist_replica.py, and prints the same line.
"""

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from benchmarks.classic_mnist_replica import device_of, layer, make_parser, run_task, synchronized, take_steps
from benchmarks.embedding import DIM, HIDDEN, LEARNING_RATE, LENGTH, make_data

tf1 = tf.compat.v1


class LazyAdam(tf1.train.AdamOptimizer):  # type: ignore[misc, name-defined]
    """Adam that updates the moments of the rows of a batch alone, as TensorFlow Addons had it."""

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        first_power, second_power = self._get_beta_accumulators()
        rate = self._lr_t * tf.sqrt(1 - second_power) / (1 - first_power)
        first, second = self.get_slot(var, "m"), self.get_slot(var, "v")
        new_first = self._beta1_t * tf.gather(first, indices) + (1 - self._beta1_t) * grad
        new_second = self._beta2_t * tf.gather(second, indices) + (1 - self._beta2_t) * tf.square(grad)
        change = rate * new_first / (tf.sqrt(new_second) + self._epsilon_t)
        return tf.group(
            first.scatter_update(tf.IndexedSlices(new_first, indices)),
            second.scatter_update(tf.IndexedSlices(new_second, indices)),
            var.scatter_sub(tf.IndexedSlices(change, indices)),
        )


OPTIMIZERS = {"SGD": tf1.train.GradientDescentOptimizer, "Adagrad": tf1.train.AdagradOptimizer, "Adam": LazyAdam}


def main() -> None:
    """Run one task."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    run_task(parser.parse_args(), train)


def train(arguments: argparse.Namespace, cluster: dict[str, list[str]], target: str) -> None:
    """Train as a worker."""
    with tf1.device(tf1.train.replica_device_setter(worker_device=device_of(arguments), cluster=cluster)):
        global_step = tf1.train.get_or_create_global_step()
        ids, labels = tf1.placeholder(tf.int32, [None, LENGTH]), tf1.placeholder(tf.int32, [None])
        servers = len(cluster["ps"])
        table = tf1.get_variable(
            "table",
            [arguments.rows, DIM],
            initializer=tf1.random_uniform_initializer(-0.05, 0.05),
            partitioner=tf1.fixed_size_partitioner(servers) if servers > 1 else None,
            use_resource=True,
        )
        looked_up = tf1.nn.embedding_lookup(table, ids, partition_strategy="div")
        hidden = tf.nn.relu(layer(tf.reshape(looked_up, [-1, LENGTH * DIM]), LENGTH * DIM, HIDDEN, "hidden"))
        logits = layer(hidden, HIDDEN, 2, "logits")
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        optimizer, hooks = synchronized(OPTIMIZERS[arguments.optimizer](LEARNING_RATE), arguments, cluster)
        train_op = optimizer.minimize(loss, global_step)
    all_ids, all_labels = make_data(arguments.rows)
    fetches, feeds = [train_op, global_step, loss], {ids: all_ids, labels: all_labels}
    take_steps(arguments, target, hooks, fetches, feeds, wait_seconds=600)  # a large table takes its time


if __name__ == "__main__":
    main()
