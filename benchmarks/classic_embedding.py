"""The classic program for an embedding, as TensorFlow 1 tutorials taught it. Do not use it as a model today.

The table is a variable on the parameter servers, and the gradient of a lookup has only the rows of the batch, which
alone cross the wire. It takes the flags of classic_mnist_replica.py, and prints the same line.
"""

import argparse
import json
import math
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

from benchmarks.classic_mnist_replica import layer, poll_chief_every_second
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, default=0)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--train_steps", type=int, default=3000)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    parser.add_argument("--sync", action="store_true")
    arguments = parser.parse_args()
    tf1.disable_eager_execution()
    cluster = {"ps": arguments.ps_hosts.split(","), "worker": arguments.worker_hosts.split(",")}
    server = tf.distribute.Server(cluster, job_name=arguments.job_name, task_index=arguments.task_index)
    if arguments.job_name == "ps":
        server.join()
    train(arguments, cluster, server.target)


def train(arguments: argparse.Namespace, cluster: dict[str, list[str]], target: str) -> None:
    """Train as a worker."""
    is_chief = arguments.task_index == 0
    here = f"/job:worker/task:{arguments.task_index}"
    with tf1.device(tf1.train.replica_device_setter(worker_device=here, cluster=cluster)):
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
        optimizer = OPTIMIZERS[arguments.optimizer](LEARNING_RATE)
        hooks = [tf1.train.StopAtStepHook(last_step=arguments.train_steps)]
        if arguments.sync:
            workers = len(cluster["worker"])
            optimizer = tf1.train.SyncReplicasOptimizer(optimizer, workers, workers)
            hooks.append(optimizer.make_session_run_hook(is_chief, num_tokens=0))
        train_op = optimizer.minimize(loss, global_step)
    all_ids, all_labels = make_data(arguments.rows)
    random = np.random.default_rng(arguments.task_index)
    config = tf1.ConfigProto(allow_soft_placement=True, device_filters=["/job:ps", here])
    if is_chief:
        creator = tf1.train.ChiefSessionCreator(tf1.train.Scaffold(), target, config)
    else:
        creator = tf1.train.WorkerSessionCreator(tf1.train.Scaffold(), target, config, max_wait_secs=600)
        poll_chief_every_second()
    since, step_then, warmup_steps = math.inf, 0, arguments.train_steps // 10
    with tf1.train.MonitoredSession(creator, hooks) as session:
        while not session.should_stop():
            pick = random.integers(0, len(all_ids), arguments.batch_size)
            _, step, value = session.run([train_op, global_step, loss], {ids: all_ids[pick], labels: all_labels[pick]})
            now = time.monotonic()
            if since == math.inf and step >= warmup_steps:
                since, step_then = now, step
        rate = float(step - step_then) / (now - since)
        line = {"worker": arguments.task_index, "global_steps": int(step), "rate": rate, "loss": float(value)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
