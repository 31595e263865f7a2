"""`tf.distribute.MultiWorkerMirroredStrategy` on the workload of the classic program, to compare with the trainer.

Each worker runs this file with TF_CONFIG, has a copy of the variables, and averages gradients with the others in every
step. The default is the plain form of the tutorials: four variables, `tf.data` batches and one step per execution. The
best form is `--flat 1 --steps_per_execution 50`: one variable, one thread per op, and 50 steps in a `tf.function`.
"""

import json
import os
from typing import Any

import tensorflow as tf

from benchmarks.learning import Samples
from benchmarks.strategy_model import Network, Stopwatch, classic, load, print_result, read_arguments

SAMPLE_INTERVAL = 10
"""Global steps between two samples of the parameters, which are local to this process."""


def main() -> None:
    """Train with the other workers; worker 0 prints rate and accuracy."""
    arguments = read_arguments(__doc__)
    if arguments.steps_per_execution > 1:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    # First use of TensorFlow's runtime: this starts the worker's server and waits for the other workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    train(arguments, strategy, index)
    os._exit(0)  # a normal exit waits for the other workers' exit


def train(arguments: Any, strategy: Any, index: int) -> None:
    """Take all steps."""
    with strategy.scope():
        network = Network(arguments, classic(arguments.hidden_units, arguments.seed))
    images, labels = load(arguments.data / "digits.npz")

    def replica_step(images: Any, labels: Any) -> None:
        context = tf.distribute.get_replica_context()
        gradients, _ = network.gradients(images, labels)
        network.apply(context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients))

    def batches(_: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=index)
        return dataset.repeat().batch(arguments.batch_size).prefetch(2)

    def step(images: Any, labels: Any) -> None:
        strategy.run(replica_step, args=(images, labels))

    def steps(number: Any) -> None:
        all_images, all_labels = tf.constant(images), tf.constant(labels)
        for _ in tf.range(number):
            pick = tf.random.uniform([arguments.batch_size], maxval=len(images), dtype=tf.int32)
            strategy.run(replica_step, args=(tf.gather(all_images, pick), tf.gather(all_labels, pick)))

    one, many = tf.function(step), tf.function(steps)
    dataset = iter(strategy.distribute_datasets_from_function(batches)) if arguments.steps_per_execution == 1 else None
    samples, stopwatch, taken = Samples(), Stopwatch(arguments.train_steps), 0
    while taken < arguments.train_steps:
        number = arguments.steps_per_execution if taken else 1  # sample the first step alone: the clock starts there
        if dataset:
            one(*next(dataset))
        else:
            many(tf.constant(number))
        taken += number
        stopwatch.tick(taken)
        if not arguments.no_curve and (number > 1 or taken % SAMPLE_INTERVAL == 1):
            network.sample(samples)
    if index == 0:
        print_result(network, stopwatch, samples, arguments)


if __name__ == "__main__":
    main()
