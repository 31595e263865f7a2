"""Digits as programs of TensorFlow 1 do it: hosts as arguments, a graph per worker, variables on the ps.

    python classic_flags.py --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 --job_name=worker --task_index=0

A worker ends when all workers together have taken the steps; a ps never does, as `Server.join` does not return.
"""

import argparse
import time
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

tf1 = tf.compat.v1

STEPS = 1500  # of all workers together
BATCH_SIZE = 100
LEARNING_RATE = 0.2
HIDDEN_UNITS = 100


def main() -> None:
    """Play the role that the arguments give this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ps_hosts", required=True, help="HOST:PORT,...")
    parser.add_argument("--worker_hosts", required=True, help="HOST:PORT,...")
    parser.add_argument("--job_name", required=True, choices=["ps", "worker"])
    parser.add_argument("--task_index", required=True, type=int)
    flags = parser.parse_args()

    tf1.disable_v2_behavior()
    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")})
    # A worker talks to the ps only, so that it waits for no other worker to begin or to end.
    config = tf1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{flags.task_index}"])
    server = tf.distribute.Server(cluster, flags.job_name, flags.task_index, config=config)
    if flags.job_name == "ps":
        server.join()
    else:
        train(cluster, server, config, flags.task_index)


def train(cluster: Any, server: Any, config: Any, task_index: int) -> None:
    """Take steps until there are enough; worker 0 also makes the variables, and says how well it went."""
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images / 16, labels, test_size=360, random_state=0
    )
    worker = f"/job:worker/task:{task_index}"
    with tf1.device(tf1.train.replica_device_setter(worker_device=worker, cluster=cluster)):  # variables go to the ps
        step = tf1.train.get_or_create_global_step()
        x = tf1.placeholder(tf.float32, [None, 64])
        y = tf1.placeholder(tf.int32, [None])
        hidden_weights = tf1.get_variable("hidden_weights", [64, HIDDEN_UNITS])
        hidden_biases = tf1.get_variable("hidden_biases", [HIDDEN_UNITS], initializer=tf1.zeros_initializer())
        weights = tf1.get_variable("weights", [HIDDEN_UNITS, 10])
        biases = tf1.get_variable("biases", [10], initializer=tf1.zeros_initializer())
        logits = tf.nn.relu(x @ hidden_weights + hidden_biases) @ weights + biases
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        update = tf1.train.GradientDescentOptimizer(LEARNING_RATE).minimize(loss, global_step=step)
        correct = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), y)
        accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
        uninitialised = tf1.report_uninitialized_variables()

    # The session below would do this too, but looks every 30 seconds only: by then, worker 0 may have taken all steps.
    if task_index > 0:
        with tf1.Session(server.target, config=config) as session:
            while session.run(uninitialised).size:
                time.sleep(0.5)
    # It makes the variables, as worker 0. It also begins again where TensorFlow aborts a step, as it rarely does for no
    # fault of the program: "The same RunGraph (Worker) request was received twice".
    with tf1.train.MonitoredTrainingSession(server.target, is_chief=task_index == 0, config=config) as session:
        print(f"worker {task_index} begins at step {session.run(step)}", flush=True)
        random = np.random.default_rng(task_index)
        taken = 0
        while taken < STEPS:
            batch = random.integers(len(train_images), size=BATCH_SIZE)
            _, taken = session.run([update, step], {x: train_images[batch], y: train_labels[batch]})
        if task_index == 0:
            print(f"test accuracy: {session.run(accuracy, {x: test_images, y: test_labels}):.3f}", flush=True)


if __name__ == "__main__":
    main()
