"""Digits with `tf.distribute.ParameterServerStrategy`: a chief gives out steps, workers take them, ps keep variables.

Each process runs this file and finds its role in TF_CONFIG. The chief ends when the model is trained; a worker or ps
never does, as `Server.join` does not return: whoever started them has to end them.

The network is plain variables, because Keras 3 does not support this strategy.
"""

from typing import Any

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

STEPS = 600
BATCH_SIZE = 100
LEARNING_RATE = 0.4
HIDDEN_UNITS = 100


def main() -> None:
    """Play the role that TF_CONFIG gives this process."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type in ("worker", "ps"):
        tf.distribute.Server(cluster.cluster_spec(), cluster.task_type, cluster.task_id).join()
    else:
        print(f"test accuracy: {train(cluster):.3f}", flush=True)


def train(cluster: Any) -> float:
    """Give out the steps, and examine what the workers have made of the variables."""
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        (images / 16).astype("float32"), labels.astype("int32"), test_size=360, random_state=0
    )
    strategy = tf.distribute.ParameterServerStrategy(cluster)  # waits until all workers and ps are there
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():  # puts each variable on the next ps
        hidden_weights = tf.Variable(tf.random.normal([64, HIDDEN_UNITS], stddev=64**-0.5))
        hidden_biases = tf.Variable(tf.zeros([HIDDEN_UNITS]))
        weights = tf.Variable(tf.random.normal([HIDDEN_UNITS, 10], stddev=HIDDEN_UNITS**-0.5))
        biases = tf.Variable(tf.zeros([10]))
    variables = [hidden_weights, hidden_biases, weights, biases]

    def logits(images: Any) -> Any:
        return tf.nn.relu(images @ hidden_weights + hidden_biases) @ weights + biases

    def batches() -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
        return dataset.shuffle(len(train_images)).repeat().batch(BATCH_SIZE)

    def step(batches: Any) -> None:
        images, labels = next(batches)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(images))
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)

    compiled = tf.function(step)
    per_worker = iter(coordinator.create_per_worker_dataset(batches))
    for _ in range(STEPS):
        coordinator.schedule(compiled, args=(per_worker,))  # the next idle worker takes it
    coordinator.join()

    predictions = tf.argmax(logits(test_images), axis=1).numpy()
    return float((predictions == test_labels).mean())


if __name__ == "__main__":
    main()
