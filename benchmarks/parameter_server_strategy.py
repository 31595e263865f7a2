"""`tf.distribute.ParameterServerStrategy` on the work of the classic program, to be run beside the trainer.

A chief gives out calls, workers take them, a ps keeps the variables; each runs this file, with TF_CONFIG. Plain as
tutorials have it: four variables, a batch of `tf.data` and one step a call. With `--flat --steps_per_execution 10` in
its best form: one variable, and so many steps on batches that are drawn where the examples are.
"""

import os
import threading
from typing import Any

import tensorflow as tf

from benchmarks.learning import BETWEEN_LOOKS, Seen
from benchmarks.strategy_model import Network, Stopwatch, load, read_arguments, tell


def main() -> None:
    """Play the role that TF_CONFIG gives this process."""
    arguments = read_arguments(__doc__)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id).join()
    train(arguments, resolver)
    os._exit(0)  # the coordinator's own end waits for workers that never end


def train(arguments: Any, resolver: Any) -> None:
    """Give out the steps, and say how fast they were taken."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        network = Network(arguments)
    images, labels = load(arguments.data / "digits.npz")

    def batches() -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        return dataset.shuffle(len(images)).repeat().batch(arguments.batch_size).prefetch(2)

    def step(batches: Any) -> None:
        network.apply(network.learn(*next(batches)))

    def steps() -> None:
        all_images, all_labels = tf.constant(images), tf.constant(labels)
        for _ in range(arguments.steps_per_execution):
            pick = tf.random.uniform([arguments.batch_size], maxval=len(images), dtype=tf.int32)
            network.apply(network.learn(tf.gather(all_images, pick), tf.gather(all_labels, pick)))

    if arguments.steps_per_execution == 1:
        call, given = tf.function(step), [iter(coordinator.create_per_worker_dataset(batches))]
    else:
        call, given = tf.function(steps), []
    over, seen, stopwatch = threading.Event(), Seen(), Stopwatch(arguments.train_steps)

    def look() -> None:
        while not over.wait(BETWEEN_LOOKS):
            network.look(seen)
            stopwatch.tick(seen.looks[-1][1])

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(-(-arguments.train_steps // arguments.steps_per_execution)):
        coordinator.schedule(call, args=tuple(given))
    coordinator.join()
    over.set()
    looking.join()
    stopwatch.tick(int(network.updates.numpy()))
    tell(network, stopwatch, seen, arguments.data)


if __name__ == "__main__":
    main()
