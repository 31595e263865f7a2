"""Digits with `tf.distribute.MultiWorkerMirroredStrategy`: equal workers, each with a copy of all variables, in step.

Each process runs this file and finds the workers in TF_CONFIG; there is no ps. All end together.

The network is plain variables, because `Model.fit` of Keras 3.15 fails with this strategy on more than one worker.
"""

import json
import os
from typing import Any

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

STEPS = 500
BATCH_SIZE = 100  # of all workers together
LEARNING_RATE = 0.2
HIDDEN_UNITS = 100


def main() -> None:
    """Train beside the others; worker 0 says how well it went."""
    # Before anything else of TensorFlow: it starts this worker's server, and waits until all workers are there.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    accuracy = train(strategy)
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        print(f"test accuracy: {accuracy:.3f}", flush=True)


def train(strategy: Any) -> float:
    """Take every step with the other workers, and examine this worker's copy of the variables."""
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        (images / 16).astype("float32"), labels.astype("int32"), test_size=360, random_state=0
    )

    def variable(initial: Any) -> Any:
        # What replicas assign is averaged over all of them, and every copy becomes that.
        return tf.Variable(initial, aggregation=tf.VariableAggregation.MEAN)

    with strategy.scope():  # all copies begin with worker 0's values
        hidden_weights = variable(tf.random.normal([64, HIDDEN_UNITS], stddev=64**-0.5))
        hidden_biases = variable(tf.zeros([HIDDEN_UNITS]))
        weights = variable(tf.random.normal([HIDDEN_UNITS, 10], stddev=HIDDEN_UNITS**-0.5))
        biases = variable(tf.zeros([10]))
    variables = [hidden_weights, hidden_biases, weights, biases]

    def logits(images: Any) -> Any:
        return tf.nn.relu(images @ hidden_weights + hidden_biases) @ weights + biases

    def replica_step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(images))
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)

    compiled = tf.function(lambda images, labels: strategy.run(replica_step, args=(images, labels)))
    dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels)).shuffle(len(train_images))
    batches = iter(strategy.experimental_distribute_dataset(dataset.repeat().batch(BATCH_SIZE)))
    for _ in range(STEPS):
        compiled(*next(batches))

    predictions = tf.argmax(logits(test_images), axis=1).numpy()
    return float((predictions == test_labels).mean())


if __name__ == "__main__":
    main()
