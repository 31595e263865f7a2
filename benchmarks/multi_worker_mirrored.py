"""`tf.distribute.MultiWorkerMirroredStrategy` on the work of the classic program, to be run beside the trainer.

Equal workers, each with a copy of the variables, average their gradients in every step; each runs this file, with
TF_CONFIG. Plain as tutorials have it: four variables, a batch of `tf.data` and one step a call. With `--flat
--steps_per_execution 50` in its best form: one variable, one thread an op, and so many steps in a `tf.function`.
"""

import json
import os
from typing import Any

import tensorflow as tf

from benchmarks.learning import Seen
from benchmarks.strategy_model import Network, Stopwatch, load, read_arguments, tell

BETWEEN_LOOKS = 10
"""Global steps between two looks at the parameters, which lie in this process."""


def main() -> None:
    """Train beside the other workers; worker 0 says how fast and how well it went."""
    arguments = read_arguments(__doc__)
    if arguments.steps_per_execution > 1:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    # Before anything else of TensorFlow's run time: it starts this worker's server, and waits for the others.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    train(arguments, strategy, index)
    os._exit(0)  # the run time's own end waits for the others'


def train(arguments: Any, strategy: Any, index: int) -> None:
    """Take every step with the other workers."""
    with strategy.scope():
        network = Network(arguments)
    images, labels = load(arguments.data / "digits.npz")

    def learn(images: Any, labels: Any) -> None:
        context = tf.distribute.get_replica_context()
        network.apply(context.all_reduce(tf.distribute.ReduceOp.MEAN, network.learn(images, labels)))

    def batches(_: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=index)
        return dataset.repeat().batch(arguments.batch_size).prefetch(2)

    def step(images: Any, labels: Any) -> None:
        strategy.run(learn, args=(images, labels))

    def steps(number: Any) -> None:
        all_images, all_labels = tf.constant(images), tf.constant(labels)
        for _ in tf.range(number):
            pick = tf.random.uniform([arguments.batch_size], maxval=len(images), dtype=tf.int32)
            strategy.run(learn, args=(tf.gather(all_images, pick), tf.gather(all_labels, pick)))

    one, many = tf.function(step), tf.function(steps)
    given = iter(strategy.distribute_datasets_from_function(batches)) if arguments.steps_per_execution == 1 else None
    seen, stopwatch, taken = Seen(), Stopwatch(arguments.train_steps), 0
    while taken < arguments.train_steps:
        number = (
            arguments.steps_per_execution if taken else 1
        )  # the first step is looked at by itself: time begins there
        if given:
            one(*next(given))
        else:
            many(tf.constant(number))
        taken += number
        stopwatch.tick(taken)
        if number > 1 or taken % BETWEEN_LOOKS == 1:
            network.look(seen)
    if index == 0:
        tell(network, stopwatch, seen, arguments.data)


if __name__ == "__main__":
    main()
