"""`tf.distribute.ParameterServerStrategy` on the workload of the classic program, to compare with the trainer.

The chief schedules closures, workers run them, and a ps holds the variables. Each runs this file with TF_CONFIG. The
default is the plain form of the tutorials: a variable for each array, `tf.data` batches and one step per execution. The
best form is `--flat N --steps_per_execution 10`: a variable for each of N ps, and 10 steps on batches drawn inside the
`tf.function`.
"""

import os
import threading
from typing import Any

import tensorflow as tf

from benchmarks.learning import SAMPLE_INTERVAL, Samples
from benchmarks.strategy_model import Network, Stopwatch, classic, keras_model, load, print_result, read_arguments


def main() -> None:
    """Run the task that TF_CONFIG names."""
    arguments = read_arguments(__doc__)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id).join()
    train(arguments, resolver)
    os._exit(0)  # a normal exit waits for workers that never exit


def train(arguments: Any, resolver: Any) -> None:
    """Schedule all steps as the chief, and print rate and accuracy."""
    model = keras_model(arguments.seed) if arguments.keras else classic(arguments.hidden_units, arguments.seed)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        network = Network(arguments, model)
    images, labels = load(arguments.data / "digits.npz")

    def batches() -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        return dataset.shuffle(len(images)).repeat().batch(arguments.batch_size).prefetch(2)

    def step(batches: Any) -> None:
        network.apply(*network.gradients(*next(batches)))

    def steps() -> None:
        all_images, all_labels = tf.constant(images), tf.constant(labels)
        for _ in range(arguments.steps_per_execution):
            pick = tf.random.uniform([arguments.batch_size], maxval=len(images), dtype=tf.int32)
            network.apply(*network.gradients(tf.gather(all_images, pick), tf.gather(all_labels, pick)))

    if arguments.steps_per_execution == 1:
        function, inputs = tf.function(step), [iter(coordinator.create_per_worker_dataset(batches))]
    else:
        function, inputs = tf.function(steps), []
    stopped, samples, stopwatch = threading.Event(), Samples(), Stopwatch(arguments.train_steps)

    def sample() -> None:
        while not stopped.wait(SAMPLE_INTERVAL):
            if not arguments.no_curve:
                network.sample(samples)
            stopwatch.tick(int(network.updates.numpy()))

    sampler = threading.Thread(target=sample)
    sampler.start()
    for _ in range(-(-arguments.train_steps // arguments.steps_per_execution)):
        coordinator.schedule(function, args=tuple(inputs))
    coordinator.join()
    stopped.set()
    sampler.join()
    stopwatch.tick(int(network.updates.numpy()))
    print_result(network, stopwatch, samples, arguments)


if __name__ == "__main__":
    main()
