"""Keras models of several inputs and outputs, their losses and metrics, and data of a model file's own."""

import itertools
import re
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from trainer import config
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.data import pipeline
from trainer.data.examples import Examples
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError, ModelError
from trainer.graph import replica
from trainer.models import model_files
from trainer.models.keras_model import KerasModel
from trainer.problem import problem
from trainer.problem.problem import Problem
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode

SIZE, STEPS = 10, 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # in Keras
]

REGRESSION = """
    import keras
    import numpy as np

    def train_data(context):
        x = np.random.default_rng(1).normal(size=(200, 3))
        return x, x @ [1.0, 2.0, 3.0]

    def model(input_shape):
        network = keras.Sequential([keras.Input(input_shape), keras.layers.Dense(1)])
        network.compile("sgd", "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
        return network
    """
MULTI_LABEL = """
    import keras
    import numpy as np

    def train_data(context):
        x = np.random.default_rng(1).normal(size=(200, 3))
        return x, (x > 0.3).astype(int), np.linspace(0, 2, 200)

    def model():
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, activation="sigmoid")])
        network.compile("adam", "binary_crossentropy", metrics=["binary_accuracy", keras.metrics.AUC(name="auc")])
        return network
    """
SEVERAL = """
    import keras
    import numpy as np
    from keras import layers

    def train_data(context):
        random = np.random.default_rng(1)
        words, age = random.integers(0, 50, (200, 6)), random.random((200, 1))
        return {"words": words, "age": age}, {"kind": words[:, 0] % 4, "price": 3 * age}

    def model():
        words, age = keras.Input((6,), name="words", dtype="int32"), keras.Input((1,), name="age")
        mean = layers.GlobalAveragePooling1D()(layers.Embedding(50, 8)(words))
        both = layers.Concatenate()([mean, age])
        kind, price = layers.Dense(4, activation="softmax", name="kind"), layers.Dense(1, name="price")
        network = keras.Model({"words": words, "age": age}, {"kind": kind(both), "price": price(both)})
        network.compile(
            keras.optimizers.SGD(0.1),
            loss={"kind": "sparse_categorical_crossentropy", "price": "mse"},
            loss_weights={"kind": 2.0, "price": 0.5},
            metrics={"kind": ["accuracy"], "price": ["mae"]},
        )
        return network
    """
LISTS = """
    import keras
    import numpy as np

    def train_data(context):
        random = np.random.default_rng(1)
        first, second = random.random((200, 2)), random.random((200, 3))
        return (first, second), (first.sum(axis=1), second.sum(axis=1))

    def model():
        inputs = [keras.Input((2,)), keras.Input((3,))]
        both = keras.layers.Concatenate()(inputs)
        network = keras.Model(inputs, [keras.layers.Dense(1)(both), keras.layers.Dense(1)(both)])
        network.compile("sgd", loss=["mse", "mae"])
        return network
    """
DICTIONARY = """
    import keras
    import numpy as np

    @keras.saving.register_keras_serializable()
    class Ranges(keras.metrics.Metric):
        def __init__(self, **others):
            super().__init__(**others)
            self.sum, self.count, self.most = (self.add_variable((), "zeros", name=n) for n in ("sum", "count", "most"))

        def update_state(self, y, outputs, sample_weight=None):
            self.sum.assign_add(keras.ops.sum(outputs))
            self.count.assign_add(keras.ops.cast(keras.ops.size(outputs), "float32"))
            self.most.assign(keras.ops.maximum(self.most, keras.ops.max(outputs)))

        def result(self):
            return {"mean": self.sum / self.count, "extremes": {"largest": self.most, "smallest": 0 * self.most}}

    def train_data(context):
        x = np.random.default_rng(1).normal(size=(200, 3))
        return x, x[:, :1]

    def model():
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        network.compile("sgd", "mse", metrics=[Ranges(), "mae"])
        return network
    """
STREAM = """
    import keras
    import tensorflow as tf

    def data(numbers):
        return numbers.map(lambda n: (tf.fill([4], tf.cast(n, tf.float64) / 100), n % 2))

    def train_data(context):
        return data(tf.data.Dataset.range(100).shuffle(100, seed=context.seed))

    def test_data(context):
        return data(tf.data.Dataset.range(25))

    def model(input_shape):
        network = keras.Sequential([keras.Input(input_shape), keras.layers.Dense(2)])
        network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return network
    """


def load(folder: Path, text: str, **settings: Any) -> tuple[Problem, Settings]:
    path = folder / "mine.py"
    path.write_text(textwrap.dedent(text))
    chosen = Settings(model=str(path), batch_size=SIZE, steps_per_execution=5, **settings)
    return problem.load(chosen, None), chosen


def train(found: Problem, settings: Settings, folder: Path, steps: int = STEPS) -> tuple[str, list[dict[str, float]]]:
    """The checkpoint after these steps of a single process, and the metrics of each execution."""
    source = found.dataset.train
    built = replica.build(settings, None, found.model, found.parameters, source, 0, "this run")
    measured = []
    with tf1.Session(graph=built.graph) as session:
        session.run([built.initialize, built.mark_ready])
        built.batches.begin(session)
        execution = built.replication.executions[5]
        for step in range(0, steps, 5):
            feeds = dict(zip(built.batches.feeds(5), built.batches.take(5, step), strict=True))
            measured.append(session.run([execution.step, execution.metrics], feeds)[1])
        return str(built.saver.save(session, folder / "checkpoint")), measured


def examples(found: Problem) -> Examples:
    assert isinstance(found.dataset.test, Examples)
    return found.dataset.test


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (REGRESSION, {"mae", "root_mean_squared_error"}),
        (MULTI_LABEL, {"binary_accuracy", "auc"}),
        (SEVERAL, {"kind_accuracy", "price_mae", "kind_loss", "price_loss"}),
        (LISTS, {"dense_loss", "dense_1_loss"}),
        (DICTIONARY, {"mean", "largest", "smallest", "mae"}),
    ],
    ids=["regression", "multi_label", "several", "lists", "dictionary"],
)
def test_loss_and_metrics_are_those_of_keras(tmp_path: Path, text: str, names: set[str]) -> None:
    found, settings = load(tmp_path, text, eval_batch_size=7)
    checkpoint, measured = train(found, settings, tmp_path)
    assert set(measured[-1]) == names
    with found.evaluator() as evaluator:
        score = evaluator.score(checkpoint)
        evaluator.export(tmp_path / "export", {})
    test = examples(found)
    with eager_mode():
        network = keras.saving.load_model(tmp_path / "export" / "model.keras")
        given = {"sample_weight": test.weights} if test.weights is not None else {}
        expected = network.evaluate(test.inputs, test.targets, verbose=0, return_dict=True, batch_size=7, **given)
    assert set(score.metrics) == names
    assert {"loss": score.loss, **score.metrics} == pytest.approx(
        {name: value for name, value in expected.items() if name in {"loss", *names}}, rel=1e-4
    )


FUNCTION = """
    import keras
    import numpy as np
    import tensorflow as tf

    def largest(y, outputs):
        return SHAPED(tf.py_function(lambda y, outputs: np.float32(np.max(outputs)), (y, outputs), tf.float32))

    def train_data(context):
        x = np.random.default_rng(1).normal(size=(200, 3))
        return x, x[:, :1]

    def model():
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        network.compile("sgd", "mse", metrics=[largest])
        return network
    """


def test_a_metric_of_python_needs_a_shape(tmp_path: Path) -> None:
    found, settings = load(tmp_path, FUNCTION.replace("SHAPED", "(lambda found: tf.ensure_shape(found, []))"))
    assert set(train(found, settings, tmp_path)[1][-1]) == {"largest"}
    found, settings = load(tmp_path, FUNCTION.replace("SHAPED", ""))
    sentence = (
        "Cannot take the length of shape with unknown rank; give what tf.py_function or tf.numpy_function returns"
    )
    with pytest.raises(ConfigurationError, match=rf"{sentence} a shape, by tf.ensure_shape\(result, \[\]\)\.$"):
        train(found, settings, tmp_path)


GIVEN_BATCHES = """
    import keras
    import numpy as np
    import tensorflow as tf

    X = np.random.default_rng(1).normal(size=(100, 6)).astype("float32")

    def train_data(context):
        spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))
        batches = [(X[n : n + 30], 5 + X[n : n + 30, :1]) for n in range(0, 100, 30)]
        return tf.data.Dataset.from_generator(lambda: batches, output_signature=spec)

    test_data = train_data

    def model():
        network = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        network.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        return network
    """
TAGS = """
    import keras
    import numpy as np
    import tensorflow as tf

    def train_data(context):
        words = [np.arange(n, n + 1 + n % 9) % 40 for n in range(100)]
        spec = tf.TensorSpec([None], tf.int32)
        pairs = [(each, each % 3) for each in words]
        made = tf.data.Dataset.from_generator(lambda: pairs, output_signature=(spec, spec))
        return made.padded_batch(30, padding_values=(0, -1))

    test_data = train_data

    def model():
        network = keras.Sequential([keras.layers.Embedding(40, 8), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
        network.compile(keras.optimizers.SGD(0.5), loss)
        return network
    """


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize("text", [GIVEN_BATCHES, TAGS], ids=["generated", "padded"])
def test_batches_of_a_dataset_train_as_by_fit(tmp_path: Path, text: str) -> None:
    found, _ = load(tmp_path, text)
    assert found.settings.batch_size == 30
    checkpoint, _ = train(found, found.settings, tmp_path)
    reader = tf1.train.load_checkpoint(checkpoint)
    again, _ = load(tmp_path, text)
    assert isinstance(again.model, KerasModel)
    with eager_mode(), found.evaluator() as evaluator:
        network = again.model._model
        dataset = model_files.load(again.settings.model).train_data(None)
        network.fit(dataset.repeat(), steps_per_epoch=STEPS, shuffle=False, verbose=0)
        assert int(network.optimizer.iterations) == STEPS
        for name, variable in again.model.arrays.variables.items():
            np.testing.assert_allclose(reader.get_tensor(name), variable.numpy(), rtol=1e-4, atol=1e-5)
        expected = network.evaluate(dataset, verbose=0, return_dict=True)
        assert evaluator.score(checkpoint).loss == pytest.approx(expected["loss"], rel=1e-4)


LEFT_SET = """
    import keras
    import numpy as np
    import tensorflow as tf

    SET

    def train_data(context):
        x = np.random.default_rng(1).normal(size=(200, 3))
        return x, x[:, :1]

    def model():
        with SCOPE:
            network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            network.compile("adam", "mse")
        return network
    """
UNWRITTEN = REGRESSION.replace("keras.Sequential([", "Unwritten([").replace(
    "    def model(input_shape):",
    """    class Unwritten(keras.Sequential):
        def save(self, *arguments, **others):
            raise TypeError("no save")

        save_weights = save

    def model(input_shape):""",
)


@pytest.mark.parametrize(
    ("statement", "scope"),
    [
        ("tf.debugging.enable_check_numerics()", "tf.device('CPU:0')"),
        ("strategy = tf.distribute.MirroredStrategy()", "strategy.scope()"),
        ("strategy = tf.distribute.MirroredStrategy(['CPU:0'])", "strategy.scope()"),
        ("strategy = tf.distribute.OneDeviceStrategy('CPU:0')", "strategy.scope()"),
    ],
)
def test_what_a_file_leaves_set_does_not_spoil_the_export(tmp_path: Path, statement: str, scope: str) -> None:
    try:
        found, settings = load(tmp_path, LEFT_SET.replace("SET", statement).replace("SCOPE", scope))
        checkpoint, _ = train(found, settings, tmp_path)
        with found.evaluator() as evaluator:
            evaluator.restore(checkpoint)
            evaluator.export(tmp_path / "export", {})
    finally:
        tf.debugging.disable_check_numerics()
    reader = tf1.train.load_checkpoint(checkpoint)
    x = np.ones((2, 3), np.float32)
    with eager_mode():
        wanted = x @ reader.get_tensor("sequential/dense/kernel") + reader.get_tensor("sequential/dense/bias")
        network = keras.saving.load_model(tmp_path / "export" / "model.keras")
        served = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
        np.testing.assert_allclose(network(x), wanted, rtol=1e-5)
        np.testing.assert_allclose(served(inputs=tf.constant(x))["outputs"], wanted, rtol=1e-5)


def test_what_cannot_be_written_leaves_the_trained_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found, settings = load(tmp_path, UNWRITTEN)
    checkpoint, _ = train(found, settings, tmp_path)
    with found.evaluator() as evaluator:
        evaluator.restore(checkpoint)
        evaluator.export(tmp_path / "export", {})
    reader = tf1.train.load_checkpoint(checkpoint)
    with np.load(tmp_path / "export" / "weights.npz") as kept:
        assert {*kept.files} == {*found.parameters}
        assert all(np.array_equal(kept[name], reader.get_tensor(name)) for name in kept.files)
    assert (tmp_path / "export" / "saved_model.pb").is_file()
    assert "the export has no model.keras: TypeError: no save" in caplog.text


PHASES = """
    import keras
    import numpy as np

    def train_data(context):
        x = np.random.default_rng(1).normal(size=(200, 3))
        return x, x[:, :1]

    def model():
        base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])
        base.trainable = UNFROZEN
        inputs = keras.Input((3,))
        network = keras.Model(inputs, keras.layers.Dense(1, name="head")(base(inputs)))
        network.compile("adam", "mse")
        return network
    """


def test_a_second_phase_names_the_variables_that_begin_to_train(tmp_path: Path) -> None:
    found, settings = load(tmp_path, PHASES.replace("UNFROZEN", "False"))
    checkpoint, _ = train(found, settings, tmp_path)
    found, settings = load(tmp_path, PHASES.replace("UNFROZEN", "True"))
    built = replica.build(settings, None, found.model, found.parameters, found.dataset.train, 0, "this run")
    assert built.saver.differences(checkpoint) == [
        "sequential/batch_normalization/beta, sequential/batch_normalization/gamma, sequential/dense/bias, "
        "sequential/dense/kernel can be trained now, but could not"
    ]


def test_the_exported_model_has_the_names_of_its_inputs_and_outputs(tmp_path: Path) -> None:
    found, settings = load(tmp_path, SEVERAL)
    checkpoint, _ = train(found, settings, tmp_path, steps=5)
    with found.evaluator() as evaluator:
        evaluator.score(checkpoint)
        evaluator.export(tmp_path / "export", {})
    with tf1.Session(graph=tf.Graph()) as session:
        loaded = tf1.saved_model.load(session, ["serve"], str(tmp_path / "export"))
    signature = loaded.signature_def["serving_default"]
    assert set(signature.inputs) == {"words", "age"}
    assert set(signature.outputs) == {"kind", "price"}


def test_a_dataset_streams(tmp_path: Path) -> None:
    found, settings = load(tmp_path, STREAM)
    built = replica.build(settings, None, found.model, found.parameters, found.dataset.train, 0, "this run")
    fed = [each for step in range(0, 20, 5) for each in built.batches.take(5, step) if np.ndim(each) == 2]
    taken = [value for inputs in fed for value in inputs[:, 0]]
    numbers = [round(100 * float(value)) for value in taken]
    assert sorted(numbers[:100]) == list(range(100)) == sorted(numbers[100:])
    assert numbers[:100] != numbers[100:]
    checkpoint, measured = train(found, settings, tmp_path)
    assert set(measured[-1]) == {"accuracy"}
    with found.evaluator() as evaluator:
        score = evaluator.score(checkpoint)
    assert set(score.metrics) == {"accuracy"}
    assert found.identity["dataset_digest"] is None


def test_an_error_in_a_stream_is_the_models_own(tmp_path: Path) -> None:
    text = STREAM.replace("(tf.fill", "(tf.debugging.check_numerics(tf.fill").replace(
        "/ 100)", "/ tf.cast(50 - n, tf.float64)), 'no such number')"
    )
    found, settings = load(tmp_path, text)
    with pytest.raises(ModelError, match=r"^model=.*mine\.py: train_data\(\) failed: .*no such number"):
        train(found, settings, tmp_path, steps=100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STREAM.replace("def test_data", "def other"), "it has no function test_data"),
        (STREAM.replace("range(25)", "range(0)"), r"test_data\(\) gives no examples"),
        (STREAM.replace("def model(input_shape)", "def model(classes)"), "argument classes, which the data does not"),
        (
            STREAM.replace(".range(25))", ".range(25)).map(lambda x, y: (x[:2], y))"),
            r"example of train_data\(\) is float32 \[4\], int32 \[\]",
        ),
        (
            STREAM.replace("(tf.fill", "tf.stack(tf.fill").replace(", n % 2)", ")"),
            "were expected, not inputs alone",
        ),
        (REGRESSION.replace("x @", "x[:5] @"), r"the same number of examples were expected, not \[200, 3\], \[5\]"),
        (REGRESSION.replace("return x, x @ [1.0, 2.0, 3.0]", "return x"), "were expected, not inputs alone"),
        (REGRESSION.replace("return x, x", "return x, missing"), r"train_data\(\) failed: NameError"),
        (SEVERAL.replace("% 4", "+ 2**40"), "integers of 32 bits were expected"),
        (MULTI_LABEL.replace("Input((3,))", "Input((4,))"), "the model does not accept batches of the data"),
    ],
)
def test_data_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path, text)


def test_a_named_data_set_takes_the_place_of_the_files_own(tmp_path: Path) -> None:
    text = (
        REGRESSION.replace("def model(input_shape)", "def model(input_shape, classes)")
        .replace('"mse", metrics=["mae", keras.metrics.RootMeanSquaredError()]', '"sparse_categorical_crossentropy"')
        .replace("keras.layers.Dense(1)", "keras.layers.Flatten(), keras.layers.Dense(10, activation='softmax')")
    )
    assert load(tmp_path, text, dataset="digits")[0].dataset.name == "digits"


def test_a_folder_of_images_is_read_by_keras(tmp_path: Path) -> None:
    """As docs/your-model.md shows it."""
    for split, count in (("train", 12), ("test", 4)):
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                keras.utils.save_img(folder / f"{number}.png", np.full((8, 8, 3), 20 * number + (label == "dog")))
    found, settings = load(tmp_path, shown("image_dataset_from_directory"), data_dir=str(tmp_path / "images"))
    assert found.dataset.signature.input_shape == (64, 64, 3)
    assert found.dataset.classes == ["cat", "dog"]
    assert found.dataset.signature.classes == 2
    assert set(train(found, settings, tmp_path)[1][-1]) == {"accuracy"}


def test_a_folder_of_tfrecords_is_read_by_tensorflow(tmp_path: Path) -> None:
    """As docs/your-model.md shows it."""
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        for part in range(2):
            with tf.io.TFRecordWriter(str(tmp_path / split / f"{part}.tfrecord")) as writer:
                for number in range(20):
                    image = tf.train.BytesList(value=[bytes([number] * 28 * 28)])
                    label = tf.train.Int64List(value=[number % 10])
                    features = {
                        "image": tf.train.Feature(bytes_list=image),
                        "label": tf.train.Feature(int64_list=label),
                    }
                    example = tf.train.Example(features=tf.train.Features(feature=features))
                    writer.write(example.SerializeToString())
    found, settings = load(tmp_path, shown("TFRecordDataset"), data_dir=str(tmp_path))
    assert found.dataset.signature.input_shape == (28, 28, 1)
    assert set(train(found, settings, tmp_path)[1][-1]) == {"accuracy"}


def shown(name: str) -> str:
    """The code in docs/your-model.md that uses this function, with a model."""
    text = (Path(__file__).parents[2] / "docs" / "your-model.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.split(r"\n(?=\S)", text) if name in block and "def train_data" in block]
    code = textwrap.dedent("\n".join(line for line in block.splitlines() if line.startswith("    ") or not line))
    return f"""
import keras
import tensorflow as tf
{code}

def model(input_shape):
    layers = [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(10)]
    network = keras.Sequential(layers)
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network
"""


DATA = """
    import keras
    import numpy as np
    import tensorflow as tf

    def train_data(context):
        return {train}

    {test}

    def model():
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense({width})])
        network.compile("sgd", "{loss}")
        return network
    """
INPUTS = "np.ones((40, 3), np.float32)"


def of_data(train: str, test: str = "", loss: str = "mse", width: int = 1) -> str:
    rest = f"def test_data(context): return {test}" if test else ""
    return textwrap.dedent(DATA).format(train=train, test=rest, loss=loss, width=width)


@pytest.mark.parametrize(
    ("targets", "classes"),
    [
        ("-np.arange(40)", None),
        ("np.arange(40, dtype='uint8').reshape(40, 1) % 4", 4),
        ("np.arange(40, dtype='uint8') % 4", 4),
        ("np.arange(40) / 7", None),
    ],
)
def test_whole_numbers_from_zero_are_labels(tmp_path: Path, targets: str, classes: int | None) -> None:
    found, _ = load(tmp_path, of_data(f"({INPUTS}, {targets})"))
    assert found.dataset.signature.classes == classes
    assert found.model.untrained_loss == (np.log(4) if classes else None)


def test_one_example_is_trained_on_and_evaluated(tmp_path: Path) -> None:
    found, _ = load(tmp_path, of_data("(np.ones((1, 3), np.float32), np.ones((1, 1), np.float32))"))
    assert isinstance(found.dataset.train, Examples)
    assert isinstance(found.dataset.test, Examples)
    assert (len(found.dataset.train), len(found.dataset.test)) == (1, 1)


STREAMED = f"tf.data.Dataset.from_tensor_slices(({INPUTS}, np.ones((40, 1), np.float32)))"


def test_full_batches_that_are_mapped_may_be_examples() -> None:
    """As where sequences are cut from a text."""
    with eager_mode():
        cut = tf.data.Dataset.range(1000).batch(11, drop_remainder=True).map(lambda x: (x[:-1], x[1:]))
        with pytest.raises(ConfigurationError) as refused:
            pipeline.stream(cut, None, "train_data()")
        assert str(refused.value) == (
            "train_data(): an element may be one example or a batch; end the dataset with batch(SIZE) if it is an "
            "example, and with unbatch() and batch(SIZE) if it is a batch, or begin the model with keras.Input."
        )
        shapes = [pipeline.stream(each, None, "").signature.specs[0].shape for each in (cut.batch(1), cut.unbatch())]
    assert shapes == [(10,), ()]


@pytest.mark.parametrize("rest", ["", ".batch(8)", ".shuffle(9).batch(8).map(lambda x, y: (x, y)).prefetch(1)"])
def test_a_dataset_of_batches_is_taken_apart(tmp_path: Path, rest: str) -> None:
    found, _ = load(tmp_path, of_data(STREAMED + rest, STREAMED + rest))
    assert [spec.shape for spec in found.dataset.signature.specs] == [(3,), (1,)]
    assert isinstance(found.dataset.test, Stream)
    assert [len(batch[0]) for batch in found.dataset.test.once(25)] == [25, 15]


def test_a_window_is_an_example(tmp_path: Path) -> None:
    windows = f"{STREAMED}.window(5).flat_map(lambda x, y: tf.data.Dataset.zip((x.batch(5), y.batch(5))))"
    text = of_data(windows, windows).replace("keras.Input((3,))", "keras.Input((None, 3))")
    found, _ = load(tmp_path, text)
    assert [spec.shape for spec in found.dataset.signature.specs] == [(None, 3), (None, 1)]


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        (f"{STREAMED}.repeat()", f"{STREAMED}.repeat()", "test_data() repeats without end, so an evaluation would"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(tmp_path: Path, train: str, test: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        load(tmp_path, of_data(train, test))


def test_a_data_dir_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "medals.xlsx").touch()
    with pytest.raises(ConfigurationError, match=r"data_dir=.*, but nothing reads it: no file has a name that ends in"):
        problem.load(config.load_values({"data_dir": str(tmp_path)}), None)
    with pytest.raises(ConfigurationError, match="data_dir=medals: there is no such file or folder"):
        problem.load(config.load_values({"data_dir": "medals"}), None)


NUMBERS = "tf.data.Dataset.range(240).map(lambda n: (tf.fill([3], tf.cast(n, tf.float32)), [0.0]))"


def read_by(folder: Path, text: str, replicas: int, **settings: Any) -> list[list[int]]:
    """The numbers that each of the replicas that take part reads in its first 24 batches of 10."""
    path = folder / "mine.py"
    path.write_text(textwrap.dedent(text))
    hosts = tuple(f"h{n}:1" for n in range(replicas + settings.get("spare_workers", 0)))
    found = []
    for index in range(replicas):
        cluster = Cluster(Task("worker", index), worker=hosts, ps=("p:1",))
        data = problem.load(Settings(model=str(path), batch_size=SIZE, **settings), cluster).dataset.train
        assert isinstance(data, Stream)
        assert data.endless
        taken = itertools.islice(data.endless(SIZE, False), 24)
        found.append([round(float(value)) for inputs, _ in taken for value in inputs[:, 0]])
    return found


def test_replicas_share_a_dataset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first, second = read_by(tmp_path, of_data(NUMBERS, NUMBERS), 2)
    assert sorted(first) == sorted([*range(0, 240, 2)] * 2)
    assert sorted(second) == sorted([*range(1, 240, 2)] * 2)
    assert "train_data(): this replica reads part 2 of 2, which auto_shard_policy AUTO determines" in caplog.text


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_elastic_workers_read_all_examples_whatever_their_number(
    tmp_path: Path, replicas: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = read_by(tmp_path, of_data(NUMBERS, NUMBERS), replicas, spare_workers=8 - replicas)
    assert all(sorted(each) == list(range(240)) for each in found)
    assert [each[0] for each in found] == [30 * index for index in range(replicas)]
    assert (
        "train_data(): this replica reads all examples, starting at a different one than other replicas, because "
        "workers may join and leave"
    ) in caplog.text


def test_fewer_files_than_replicas_are_shared_by_examples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for number in range(240):
            writer.write(str(number).encode())
    parse = "lambda n: (tf.fill([3], tf.strings.to_number(n)), [0.0])"
    records = f"tf.data.TFRecordDataset([{str(tmp_path / 'a.tfrecord')!r}]).map({parse})"
    first, second = read_by(tmp_path, of_data(records, records), 2)
    assert sorted({*first}) == list(range(0, 240, 2))
    assert sorted({*second}) == list(range(1, 240, 2))
    assert "reads 1 of every 2 examples, because there are fewer files than replicas" in caplog.text
    found = read_by(tmp_path, of_data(records, records), 1, spare_workers=3)
    assert sorted(found[0]) == list(range(240))


def test_each_replica_caches_into_a_file_of_its_own(tmp_path: Path) -> None:
    cached = NUMBERS + f".cache('{tmp_path}/cached')"
    with pytest.raises(ConfigurationError) as refused:
        read_by(tmp_path, of_data(cached, NUMBERS), 2)
    assert str(refused.value).endswith(
        f"train_data(): cache('{tmp_path}/cached') is that of replica 0 of 2, but this is replica 1 of 2; let each "
        "have its own file, as by cache(f'PATH-{context.replica}-of-{context.replicas}')."
    )
    own = NUMBERS + f".cache(f'{tmp_path}/own-{{context.replica}}')"
    first, second = read_by(tmp_path, of_data(own, NUMBERS), 2)
    assert {*first} == {*range(0, 240, 2)}
    assert {*second} == {*range(1, 240, 2)}


def test_a_policy_that_needs_more_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    options = "options = tf.data.Options()\noptions.experimental_distribute.auto_shard_policy = 2\n"
    lines = f"tf.data.TextLineDataset([{str(tmp_path / 'a.txt')!r}]).map(lambda n: (tf.zeros([3]), [0.0]))"
    policy = "tf.data.experimental.AutoShardPolicy.FILE"
    text = of_data(f"{lines}.with_options(options)", lines) + options.replace("= 2", f"= {policy}")
    with pytest.raises(ConfigurationError, match=r"train_data\(\) failed: .*Could not apply FILE based sharding"):
        read_by(tmp_path, text, 2)
