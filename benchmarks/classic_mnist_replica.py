"""The classic program: MNIST replica as TensorFlow 1 tutorials taught it. Do not use it as a model today.

Each step feeds placeholders and calls `session.run`. Each variable is separate. Sessions are built from the parts of
`MonitoredTrainingSession`; synchronous training uses `SyncReplicasOptimizer`. `python -m benchmarks` compares it with
the trainer.

    python -m benchmarks.classic_mnist_replica --job_name=worker --task_index=0 --ps_hosts=… --worker_hosts=… --data=…

A worker prints one line of JSON after the last step: worker, global_steps, rate (global steps/s after the warm-up) and
loss.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
PIXELS, CLASSES = 784, 10


def main() -> None:
    """Run one task."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help=".npz with x [n, 784] in [0, 1] and y [n]")
    parser.add_argument("--hidden_units", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    run_task(parser.parse_args(), train)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags of every classic program."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, default=0)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--train_steps", type=int, default=3000)
    parser.add_argument("--warmup_steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--sync", action="store_true")
    return parser


def run_task(
    arguments: argparse.Namespace, train: Callable[[argparse.Namespace, dict[str, list[str]], str], None]
) -> None:
    """Serve as a parameter server, or train as a worker."""
    tf1.disable_eager_execution()
    cluster = {"ps": arguments.ps_hosts.split(","), "worker": arguments.worker_hosts.split(",")}
    server = tf.distribute.Server(cluster, job_name=arguments.job_name, task_index=arguments.task_index)
    if arguments.job_name == "ps":
        server.join()
    train(arguments, cluster, server.target)


def train(arguments: argparse.Namespace, cluster: dict[str, list[str]], target: str) -> None:
    """Train as a worker."""
    with tf1.device(tf1.train.replica_device_setter(worker_device=device_of(arguments), cluster=cluster)):
        global_step = tf1.train.get_or_create_global_step()
        images = tf1.placeholder(tf.float32, [None, PIXELS])
        onehot = tf1.placeholder(tf.float32, [None, CLASSES])
        hidden = tf.nn.relu(layer(images, PIXELS, arguments.hidden_units, "hidden"))
        probabilities = tf.nn.softmax(layer(hidden, arguments.hidden_units, CLASSES, "softmax"))
        loss = -tf.reduce_sum(onehot * tf.math.log(tf.clip_by_value(probabilities, 1e-10, 1.0)))
        optimizer, hooks = synchronized(tf1.train.AdamOptimizer(arguments.learning_rate), arguments, cluster)
        train_op = optimizer.minimize(loss, global_step)

    with np.load(arguments.data) as data:
        all_images, all_onehot = data["x"].astype(np.float32), np.eye(CLASSES, dtype=np.float32)[data["y"]]
    feeds = {images: all_images, onehot: all_onehot}
    take_steps(arguments, target, hooks, [train_op, global_step, loss], feeds)


def device_of(arguments: argparse.Namespace) -> str:
    """The devices of this worker."""
    return f"/job:worker/task:{arguments.task_index}"


def synchronized(optimizer: Any, arguments: argparse.Namespace, cluster: dict[str, list[str]]) -> tuple[Any, list[Any]]:
    """The optimizer, which averages the gradients of the workers if the flags say so, and the hooks of the session."""
    hooks = [tf1.train.StopAtStepHook(last_step=arguments.train_steps)]
    if arguments.sync:
        workers = len(cluster["worker"])
        optimizer = tf1.train.SyncReplicasOptimizer(optimizer, workers, workers)
        hooks.append(optimizer.make_session_run_hook(arguments.task_index == 0, num_tokens=0))
    return optimizer, hooks


def take_steps(
    arguments: argparse.Namespace,
    target: str,
    hooks: list[Any],
    fetches: list[Any],
    feeds: dict[Any, Any],
    wait_seconds: int = 60,
) -> None:
    """Take the steps, and print the line.

    Args:
        arguments: The flags.
        target: The address of this task's server.
        hooks: Those of the session.
        fetches: The op of a step, the global step and the loss.
        feeds: The examples of each placeholder.
        wait_seconds: How long a worker waits for the chief's variables.
    """
    random = np.random.default_rng(arguments.task_index)
    config = tf1.ConfigProto(allow_soft_placement=True, device_filters=["/job:ps", device_of(arguments)])
    scaffold = tf1.train.Scaffold()
    if arguments.task_index == 0:
        creator = tf1.train.ChiefSessionCreator(scaffold, target, config)
    else:
        creator = tf1.train.WorkerSessionCreator(scaffold, target, config, max_wait_secs=wait_seconds)
        poll_chief_every_second()
    since, step_then = math.inf, 0
    with tf1.train.MonitoredSession(creator, hooks) as session:
        while not session.should_stop():
            pick = random.integers(0, len(next(iter(feeds.values()))), arguments.batch_size)
            _, step, value = session.run(fetches, {each: examples[pick] for each, examples in feeds.items()})
            now = time.monotonic()
            if since == math.inf and step >= arguments.warmup_steps:
                since, step_then = now, step
        # Print before the session closes: in synchronous mode closing may take a minute after other workers have left.
        rate = float(step - step_then) / (now - since)
        line = {"worker": arguments.task_index, "global_steps": int(step), "rate": rate, "loss": float(value)}
        print(json.dumps(line), flush=True)


def layer(inputs: object, size: int, units: int, name: str) -> object:
    """A dense layer without activation."""
    weights = tf1.get_variable(f"{name}/w", initializer=tf1.truncated_normal([size, units], stddev=1 / math.sqrt(size)))
    biases = tf1.get_variable(f"{name}/b", initializer=tf.zeros([units]))
    return tf1.nn.xw_plus_b(inputs, weights, biases)


def poll_chief_every_second() -> None:
    """Make this worker poll for the chief every second instead of every 30 s, the default."""
    prepare = tf1.train.SessionManager.__init__

    def patched(self: object, *positional: object, **named: object) -> None:
        prepare(self, *positional, **{**named, "recovery_wait_secs": 1})

    tf1.train.SessionManager.__init__ = patched


if __name__ == "__main__":
    main()
