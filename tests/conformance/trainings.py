"""Whole trainings: several epochs with a short last batch, callbacks, and the logs of each epoch."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

HEAD = """\
import json
import pathlib

import keras
import numpy as np
import tensorflow as tf
from keras import callbacks, layers, losses, metrics, optimizers

LOGS = pathlib.Path(__file__).with_suffix(".logs")


def write(logs, **more):
    with LOGS.open("a") as file:
        file.write(json.dumps({**more, **{name: float(each) for name, each in logs.items()}}) + "\\n")


class Logs(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        write(logs, epoch=epoch)


def data(seed, examples):
    random = np.random.default_rng(seed)
    x = random.normal(size=(examples, 6)).astype("float32")
    return x, (x[:, 0] - x[:, 1] + 0.5 * random.normal(size=examples) > 0).astype("int32")[:, None]


def train_data(context):
    return data(0, 50)


def test_data(context):
    return data(1, 20)


def compiled(network, loss="binary_crossentropy", optimizer=None, **more):
    network.compile(optimizer or optimizers.SGD(0.05, momentum=0.9), loss, **more)
    return network


def model():
    network = keras.Sequential([layers.Input((6,)), layers.Dense(4, "tanh"), layers.Dense(1, "sigmoid")])
    return compiled(network, metrics=["accuracy", metrics.AUC(name="auc")])


EPOCHS, BATCH, CALLBACKS, MORE = 3, 8, [], {}


def fit_arguments():
    return {"epochs": EPOCHS, "batch_size": BATCH, "callbacks": [*CALLBACKS, Logs()], **MORE}
"""


@dataclass(frozen=True)
class Training:
    """A training, whose model file is HEAD and this text."""

    text: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    learners: int = 1
    """Workers, or devices of a worker, each with its part of the batch."""
    launched: tuple[str, ...] = ()
    """Options of `trainer launch`; without any, this process trains."""
    stops_at: int | None = None
    """The global step at which a first process ends, within an epoch."""
    quick: bool = False
    """Whether `make test` trains it."""


def of(text: str, **more: object) -> Training:
    """The training of a text."""
    return Training(textwrap.dedent(text), **more)  # type: ignore[arg-type]


BATCH_NORMALIZATION = """
    def model():
        network = keras.Sequential([
            layers.Input((6,)), layers.Dense(4, use_bias=False), layers.BatchNormalization(), layers.Dense(1, "sigmoid")
        ])
        return compiled(network, metrics=["accuracy"])
"""

PRUNE = """
    class Prune(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kernel = self.model.layers[0].kernel
            kernel.assign(keras.ops.where(keras.ops.abs(kernel) < 0.1, 0.0, kernel))

    CALLBACKS += [Prune()]
"""
WARM_UP = """
    class WarmUp(callbacks.Callback):
        seen = 0

        def on_train_batch_begin(self, batch, logs=None):
            WarmUp.seen += 1
            self.model.optimizer.learning_rate = 0.005 * min(WarmUp.seen, 10)

    CALLBACKS += [WarmUp()]
"""
TABLE = """
    def data(seed, examples):
        random = np.random.default_rng(seed)
        ids = random.integers(0, 20, size=(examples, 3)).astype("int32")
        return ids, (ids[:, :1] % 2).astype("int32")

    def model():
        network = keras.Sequential([
            layers.Input((3,), dtype="int32"),
            layers.Embedding(20, 4, "glorot_uniform"),  # each server would draw other values of the default
            layers.Flatten(),
            layers.Dense(1, "sigmoid"),
        ])
        return compiled(network, optimizer=optimizers.SGD(0.5), metrics=["accuracy", metrics.AUC(name="auc")])
"""
BAGS = """
    from trainer.layers import EmbeddingBag

    def data(seed, examples):
        random = np.random.default_rng(seed)
        ids = random.integers(-3, 20, size=(examples, 4)).astype("int32")
        return {"ids": ids, "weights": random.random((examples, 4))}, (ids[:, :1] % 2).astype("int32")

    def model():
        ids, weights = keras.Input((4,), dtype="int32", name="ids"), keras.Input((4,), name="weights")
        bag = EmbeddingBag(20, 4, "sqrtn", embeddings_initializer="glorot_uniform")(ids, weights)
        network = keras.Model({"ids": ids, "weights": weights}, layers.Dense(1, "sigmoid")(bag))
        return compiled(network, optimizer=optimizers.SGD(0.5), metrics=["accuracy", metrics.AUC(name="auc")])

    MORE = {"shuffle": False}
"""

OF_ONE_PROCESS: dict[str, Training] = {
    "metrics_of_each_epoch": of("", quick=True),
    "executions_of_three_steps": of("", settings={"steps_per_execution": 3}),
    "batches_as_large_as_the_data": of("BATCH = 100"),
    "batch_normalization": of(BATCH_NORMALIZATION),
    "weights_of_classes": of('MORE = {"class_weight": {1: 3.0}}'),
    "weights_of_examples": of(
        """
        def train_data(context):
            return *data(0, 50), np.linspace(0.5, 2, 50)

        def test_data(context):
            return *data(1, 20), np.linspace(0.5, 2, 20)
        """
    ),
    "examples_in_their_own_order": of('MORE = {"shuffle": False}', quick=True),
    "early_stopping_by_the_training_loss": of(
        """
        EPOCHS = 8
        CALLBACKS = [callbacks.EarlyStopping(monitor="loss", min_delta=0.01, patience=1)]
        """
    ),
    "a_plateau_and_a_schedule_of_epochs": of(
        """
        EPOCHS = 6
        CALLBACKS = [
            callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.05),
        ]
        """
    ),
    "a_warm_up_by_batches": of(WARM_UP, quick=True),
    "logs_of_batches": of(
        """
        class Batches(callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                write(logs, batch=batch)

        CALLBACKS = [Batches()]
        """
    ),
    "weights_that_a_callback_sets": of(PRUNE),
    "an_end_within_an_epoch_and_weights_that_are_set_there": of(
        """
        class Stop(callbacks.Callback):
            steps = 0

            def on_train_batch_end(self, batch, logs=None):
                self.steps += 1
                self.model.stop_training = self.steps == 10

            def on_train_end(self, logs=None):
                self.model.layers[0].kernel.assign(0.5 * self.model.layers[0].kernel)

        CALLBACKS += [Stop()]
        """,
        quick=True,
    ),
    "a_variable_of_the_file_that_a_callback_raises": of(
        """
        beta, limit = keras.Variable(0.0, trainable=False), tf.Variable(2, dtype=tf.int64)

        def loss(y, p):
            error = (keras.ops.cast(y, "float32") - p) ** 2
            return beta * keras.ops.mean(error) + keras.ops.mean(p) / keras.ops.cast(limit, "float32")

        class Anneal(callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                beta.assign(epoch / 2)

            def on_train_batch_begin(self, batch, logs=None):
                limit.assign(2 + batch)

        CALLBACKS = [Anneal()]

        def model():
            network = keras.Sequential([layers.Input((6,)), layers.Dense(4, "tanh"), layers.Dense(1, "sigmoid")])
            return compiled(network, loss)
        """,
        quick=True,
    ),
    "a_weight_of_a_layer_that_a_callback_sets": of(
        """
        class Noisy(layers.Layer):
            def __init__(self):
                super().__init__(name="noisy")
                self.share = self.add_weight(shape=(), initializer="zeros", trainable=False, name="share")
                self.scale = tf.Variable(1.0)

            def call(self, x):
                self.add_loss(self.share * keras.ops.mean(x**2))
                return x * self.scale

        class Anneal(callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                layer = self.model.get_layer("noisy")
                layer.share.assign(0.1 * epoch)
                layer.scale.assign(1 + 0.5 * epoch)

        CALLBACKS = [Anneal()]

        def model():
            network = keras.Sequential([layers.Input((6,)), layers.Dense(4), Noisy(), layers.Dense(1, "sigmoid")])
            return compiled(network)
        """
    ),
    "an_own_train_step": of(
        """
        weight = tf.Variable(0.0, trainable=False)  # of a part of the loss, as that of the divergence in a VAE

        class Anneal(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                weight.assign(0.1 * epoch)

        CALLBACKS = [Anneal()]

        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(1)
                self.tracker = metrics.Mean(name="loss")
                self.error = metrics.MeanAbsoluteError(name="error")

            def call(self, x):
                return self.dense(x)

            def train_step(self, given):
                x, y = given
                with tf.GradientTape() as tape:
                    outputs = self(x, training=True)
                    loss = keras.ops.mean((outputs - y) ** 2) + weight * keras.ops.mean(outputs**2)
                variables = self.trainable_variables
                self.optimizer.apply(tape.gradient(loss, variables), variables)
                self.tracker.update_state(loss)
                self.error.update_state(y, outputs)
                return {"loss": self.tracker.result(), "error": self.error.result()}

            def test_step(self, given):
                x, y = given
                outputs = self(x)
                self.tracker.update_state(keras.ops.mean((outputs - y) ** 2))
                self.error.update_state(y, outputs)
                return {"loss": self.tracker.result(), "error": self.error.result()}

            @property
            def metrics(self):
                return [self.tracker, self.error]

        def train_data(context):
            x, y = data(0, 50)
            return x, y.astype("float32")

        def test_data(context):
            x, y = data(1, 8)  # its step weighs all batches alike
            return x, y.astype("float32")

        def model():
            network = Own()
            network.compile(optimizers.SGD(0.05))
            return network
        """
    ),
    "a_dataset_in_its_own_order": of(
        """
        MORE = {"steps_per_epoch": 7}

        def train_data(context):
            return tf.data.Dataset.from_tensor_slices(data(0, 50))
        """
    ),
    "a_second_process_goes_on_within_an_epoch": of("", stops_at=10, quick=True),
    "a_table": of(TABLE, settings={"table_rows": 10}),
}
WITH_TWO_WORKERS = (
    "metrics_of_each_epoch",
    "weights_of_classes",
    "weights_of_examples",
    "examples_in_their_own_order",
    "early_stopping_by_the_training_loss",
    "a_plateau_and_a_schedule_of_epochs",
    "a_warm_up_by_batches",
    "logs_of_batches",
    "weights_that_a_callback_sets",
    "a_variable_of_the_file_that_a_callback_raises",
    "an_end_within_an_epoch_and_weights_that_are_set_there",
    "a_dataset_in_its_own_order",
)
"""Those that are trained by two synchronous replicas too, each with a half of each batch."""
TRAININGS: dict[str, Training] = {
    **OF_ONE_PROCESS,
    **{
        f"two_workers_and_{name}": replace(
            OF_ONE_PROCESS[name],
            learners=2,
            launched=("--ps=1", "--workers=2"),
            quick=name == "weights_that_a_callback_sets",
        )
        for name in WITH_TWO_WORKERS
    },
    "two_workers_and_a_table": of(
        TABLE, settings={"table_rows": 10}, learners=2, launched=("--ps=2", "--workers=2"), quick=True
    ),
    "two_workers_and_embedding_bags": of(
        BAGS, settings={"table_rows": 10}, learners=2, launched=("--ps=2", "--workers=2")
    ),
    "two_workers_that_reduce_all": of(
        PRUNE + WARM_UP, settings={"strategy": "allreduce"}, learners=2, launched=("--ps=0", "--workers=2")
    ),
    "two_devices": of(
        """
        import sys

        if "trainer" in sys.modules:
            (cpu,) = tf.config.list_physical_devices("CPU")
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        """,
        learners=2,
        launched=("--ps=0", "--workers=1"),
    ),
}
