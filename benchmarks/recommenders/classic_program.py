"""DLRM as a program of TensorFlow 1, between-graph: the tables are variables on the parameter servers.

It takes the flags of classic_mnist_replica.py. Variables have the names that Keras gives the same arrays.
"""

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from benchmarks.classic_mnist_replica import device_of, make_parser, poll_chief_every_second, run_task, synchronized
from benchmarks.recommenders import records
from benchmarks.recommenders.progress import Progress
from benchmarks.recommenders.work import ADAGRAD_START, DEEPREC, Given, given

tf1 = tf.compat.v1
DIM = 16


def main() -> None:
    """Run one task."""
    run_task(make_parser(__doc__).parse_args(), train)


def dense(inputs: Any, units: int, name: str, activation: Any = tf.nn.relu) -> Any:
    """A dense layer with Keras's initial values and names."""
    size = inputs.shape[-1]
    kernel = tf1.get_variable(f"{name}/kernel", [size, units], initializer=tf1.glorot_uniform_initializer())
    bias = tf1.get_variable(f"{name}/bias", [units], initializer=tf1.zeros_initializer())
    outputs = tf1.nn.xw_plus_b(inputs, kernel, bias)
    return activation(outputs) if activation else outputs


def logits_of(mine: Given, form: records.Form, inputs: dict[str, Any], servers: int) -> Any:
    """The logits of a batch, by the network of examples/models/dlrm.py."""
    layers = DEEPREC if "DeepRec" in mine.work.model else {"bottom": [32], "top": [32]}
    names = (f"dense_{number}" if number else "dense" for number in range(9))
    of_numbers = inputs["numbers"]
    for units in (*layers["bottom"], DIM):
        of_numbers = dense(of_numbers, units, next(names))
    rows = []
    for name, size in form.sizes.items():
        table = tf1.get_variable(
            f"of_{name}/embeddings",
            [size, DIM],
            initializer=tf1.random_uniform_initializer(-0.05, 0.05),
            partitioner=tf1.fixed_size_partitioner(servers) if servers > 1 else None,
            use_resource=True,
        )
        rows.append(tf1.nn.embedding_lookup(table, inputs[name], partition_strategy="div"))
    vectors = tf.stack([of_numbers, *rows], axis=1)
    products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, (1 + len(rows)) ** 2])
    x = tf.concat([of_numbers, products], axis=1)
    for units in layers["top"]:
        x = dense(x, units, next(names))
    return dense(x, 1, next(names), activation=None)


def train(arguments: argparse.Namespace, cluster: dict[str, list[str]], target: str) -> None:
    """Train as a worker."""
    mine = given()
    form, work, index = records.read_about(mine.examples).form, mine.work, arguments.task_index
    with tf1.device(tf1.train.replica_device_setter(worker_device=device_of(arguments), cluster=cluster)):
        global_step = tf1.train.get_or_create_global_step()
        inputs = {name: tf1.placeholder(tf.int32, [None]) for name in form.sizes}
        inputs["numbers"] = tf1.placeholder(tf.float32, [None, form.numbers])
        targets = tf1.placeholder(tf.float32, [None, 1])
        logits = logits_of(mine, form, inputs, len(cluster["ps"]))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets, logits))
        adagrad = tf1.train.AdagradOptimizer(work.learning_rate, ADAGRAD_START)
        optimizer, hooks = synchronized(adagrad, arguments, cluster)
        weights = _whole(tf1.trainable_variables())
        train_op = optimizer.minimize(loss, global_step)
    config = tf1.ConfigProto(allow_soft_placement=True, device_filters=["/job:ps", device_of(arguments)])
    if index == 0:
        creator = tf1.train.ChiefSessionCreator(tf1.train.Scaffold(), target, config)
    else:
        creator = tf1.train.WorkerSessionCreator(tf1.train.Scaffold(), target, config, max_wait_secs=600)
        poll_chief_every_second()
    rows = records.read(mine.examples / records.TRAIN, form)
    with tf1.train.MonitoredSession(creator, hooks) as session:
        progress = Progress(work, mine.snapshots, lambda: session._tf_sess().run(weights))
        for batch in records.batches(rows, work.batch_size, index, len(cluster["worker"])):
            found = form.inputs(batch)
            feeds = {inputs[name]: found[name] for name in inputs}
            _, step = session.run([train_op, global_step], {**feeds, targets: form.targets(batch)})
            if index == 0 and not progress.tick(int(step) * work.examples_per_step):
                break
            if session.should_stop():
                break
        if index == 0:
            progress.print()  # before the session closes, which may take a minute in synchronous training


def _whole(variables: list[Any]) -> dict[str, Any]:
    """The arrays by their names; the parts of a table are one."""
    parts: dict[str, list[Any]] = {}
    for each in variables:
        parts.setdefault(each.op.name.split("/part_")[0], []).append(each.read_value())
    return {name: tf.concat(each, axis=0) if len(each) > 1 else each[0] for name, each in parts.items()}


if __name__ == "__main__":
    main()
