"""What `train_data` and `test_data` of a model file may return: lists, frames, texts, generators and datasets."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.test_keras_data import load, read_by, train
from trainer.data import generators
from trainer.data.examples import Examples
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError
from trainer.tensorflow.private import eager_mode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # in Keras
]

MODEL = """
    import keras
    import numpy as np
    import pandas as pd
    import tensorflow as tf
    from keras import layers

    def model():
        network = keras.Sequential([keras.Input((2,)), layers.Dense(3)])
        network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return network
    """
FRAME = "pd.DataFrame({'a': [1.0, 2.0] * 20, 'b': [1, 2] * 20, 'pet': ['dog', 'cat'] * 20})"
LOOKUP = """
    import keras
    import numpy as np
    from keras import layers

    WORDS = np.array(["red wine", "green tea", "tea"] * 20, object)

    def train_data(context):
        return {"text": WORDS, "age": np.arange(60.0)}, np.array(["wine", "tea", "tea"] * 20)

    def model(classes):
        text, age = keras.Input((), dtype="string", name="text"), keras.Input((1,), name="age")
        vectorize = layers.TextVectorization(output_mode="multi_hot")
        vectorize.adapt(WORDS)
        both = layers.Concatenate()([vectorize(text), age / 60])
        network = keras.Model({"text": text, "age": age}, layers.Dense(classes, activation="softmax")(both))
        network.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return network
    """
BY_FILES = """
    def train_files(context):
        return {}
"""
PADDED = """
    import keras
    import tensorflow as tf
    from keras import layers

    def model():
        words = keras.Input((None,), dtype="int32")
        network = keras.Model(words, layers.Dense(2)(layers.LSTM(4)(layers.Embedding(50, 4, mask_zero=True)(words))))
        network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return network

    def rows():
        for n in range(60):
            yield list(range(1, 2 + n % 7)), n % 2

    """
VARIABLE = """
    def train_data(context):
        signature = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)
        return tf.data.Dataset.from_generator(rows, output_signature=signature)

    test_data = train_data
    """
RAGGED = """
    def train_data(context):
        words, labels = zip(*rows())
        return tf.data.Dataset.from_tensor_slices((tf.ragged.constant(words), list(labels)))

    test_data = train_data
    """
GENERATED = """
    def train_data(context):
        yield from rows()

    test_data = train_data
    """


def returning(expression: str, test: str = "") -> str:
    functions = f"\n    def train_data(context):\n        return {expression}\n"
    return MODEL + functions + (f"\n    def test_data(context):\n        return {test}\n" if test else "")


def in_memory(folder: Path, text: str) -> tuple[Examples, Examples, Any]:
    found = load(folder, text)[0].dataset
    assert isinstance(found.train, Examples)
    assert isinstance(found.test, Examples)
    return found.train, found.test, found.classes


def test_lists_are_arrays(tmp_path: Path) -> None:
    examples, _, _ = in_memory(tmp_path, returning("[[1.0, 2.0], [3.0, 4.0]] * 20, [0, 1] * 20"))
    assert sorted({*map(tuple, examples.inputs)}) == [(1, 2), (3, 4)]
    assert examples.signature.classes == 2


def test_texts_are_class_labels(tmp_path: Path) -> None:
    text = returning(f"{FRAME}[['a', 'b']], {FRAME}['pet']", f"{FRAME}[['a', 'b']], ['cat', 'eel'] * 20")
    examples, test, classes = in_memory(tmp_path, text)
    assert classes == ["cat", "dog", "eel"]
    assert examples.targets.tolist() == [1, 0] * 20
    assert test.targets.tolist() == [0, 2] * 20
    assert load(tmp_path, text)[0].dataset.signature.classes == 3


@pytest.mark.parametrize("kind", ["pd.Series(['b', 'a'] * 20, dtype='category')", "np.array([['b'], ['a']] * 20, 'S')"])
def test_labels_of_pandas_and_of_bytes(tmp_path: Path, kind: str) -> None:
    whole = "pd.DataFrame({'a': pd.array([1, 2] * 20, dtype='Int64'), 'b': [True, False] * 20})"
    examples, _, classes = in_memory(tmp_path, returning(f"{whole}, {kind}"))
    assert classes == ["a", "b"]
    assert examples.targets.tolist() == [int(each == 1) for each in examples.inputs[:, 0]]


def test_texts_as_inputs_stay_texts(tmp_path: Path) -> None:
    found, settings = load(tmp_path, LOOKUP)
    assert {name: str(spec) for name, spec in found.dataset.signature.inputs.items()} == {
        "age": "float32 []",
        "text": "string []",
    }
    assert found.dataset.classes == ["tea", "wine"]
    digest = found.dataset.digest
    assert load(tmp_path, LOOKUP)[0].dataset.digest == digest
    assert load(tmp_path, LOOKUP.replace("red wine", "red win"))[0].dataset.digest != digest
    checkpoint, measured = train(found, settings, tmp_path, steps=100)
    assert measured[-1]["accuracy"] == 1
    with found.evaluator() as evaluator:
        assert evaluator.score(checkpoint).metrics["accuracy"] == 1
        evaluator.export(tmp_path / "export", {})


@pytest.mark.parametrize(
    ("data", "dtype"),
    [(VARIABLE, "int32"), (RAGGED, "int32"), (GENERATED, "int64")],
    ids=["variable", "ragged", "lists"],
)
def test_examples_of_different_lengths_are_padded(
    tmp_path: Path, data: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found, settings = load(tmp_path, PADDED + data)
    assert [str(spec) for spec in found.dataset.signature.specs] == [f"{dtype} [None]", "int32 []"]
    assert isinstance(found.dataset.test, Stream)
    words = [batch[0] for batch in found.dataset.test.once(4)]
    assert words[0].tolist() == [[1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0], [1, 2, 3, 4]]
    assert words[1].shape == (4, 7)
    assert "examples of different sizes are padded with zeros, or empty texts, to the largest" in caplog.text
    checkpoint, _ = train(found, settings, tmp_path)
    with found.evaluator() as evaluator:
        assert evaluator.score(checkpoint).loss == pytest.approx(np.log(2), abs=0.1)


def test_sparse_tensors_have_zeros(tmp_path: Path) -> None:
    text = PADDED + RAGGED.replace("tf.ragged.constant(words)", "tf.ragged.constant(words).to_sparse()")
    test = load(tmp_path, text)[0].dataset.test
    assert isinstance(test, Stream)
    assert next(test.once(2))[0].tolist() == [[1, 0, 0, 0, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0]]


BATCHES = """
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return np.full((4, 2), index, "float32"), np.full(4, index % 3)

    def train_data(context):
        return Batches()

    test_data = train_data
    """
YIELDED = """
    def train_data(context):
        for index in range(6):
            yield np.full((4, 2), index, "float32"), np.full(4, index % 3)

    test_data = train_data
    """
RETURNED = """
    def numbers():
        for index in range(24):
            yield [index // 4] * 2, index // 4 % 3

    def train_data(context):
        return numbers

    test_data = train_data
    """


@pytest.mark.parametrize("data", [BATCHES, YIELDED, RETURNED], ids=["PyDataset", "batches", "examples"])
def test_generators_are_read_again_and_again(tmp_path: Path, data: str) -> None:
    found = load(tmp_path, MODEL + data)[0].dataset
    assert isinstance(found.train, Stream)
    assert isinstance(found.test, Stream)
    assert found.train.endless
    batches = found.train.endless(24, False)
    assert [next(batches)[0][:, 0].tolist() for _ in range(2)] == [[n for n in range(6) for _ in range(4)]] * 2
    assert [len(labels) for _, labels in found.test.once(10)] == [10, 10, 4]


def test_each_new_length_of_a_generator_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lengths = iter([5, 5, 5, 3, 3])
    found = generators.dataset(lambda: (([n], n) for n in range(next(lengths))), "train_data()", "mine.py")
    with eager_mode():
        assert [len(list(found)) for _ in range(4)] == [5, 5, 3, 3]
    said = "train_data() has come to an end after {} elements: it is read from its begin"
    assert [each.message for each in caplog.records] == [said.format(5), said.format(3)]


def test_replicas_share_what_a_generator_gives(tmp_path: Path) -> None:
    first, second = read_by(tmp_path, MODEL + RETURNED.replace("24", "240"), 2)
    assert {*first} == {*second} == set(range(60))


OWN_PART = """
    def train_data(context):
        for index in range(120):
            if index % context.replicas == context.replica:
                yield np.full((2, 2), index, "float32"), np.full(2, index % 3)

    def test_data(context):
        return np.ones((6, 2)), [0, 1, 2] * 2
    """
OWN_BATCHES = """
    class Batches(keras.utils.PyDataset):
        def __init__(self, replica, replicas):
            super().__init__()
            self.replica, self.replicas = replica, replicas

        def __len__(self):
            return 120 // self.replicas

        def __getitem__(self, index):
            index = index * self.replicas + self.replica
            return np.full((2, 2), index, "float32"), np.full(2, index % 3)

    def train_data(context):
        return Batches(context.replica, context.replicas)

    def test_data(context):
        return np.ones((6, 2)), [0, 1, 2] * 2
    """


@pytest.mark.parametrize("data", [OWN_PART, OWN_BATCHES], ids=["generator", "PyDataset"])
@pytest.mark.parametrize("spare_workers", [0, 2])
def test_a_generator_that_chooses_by_the_replica_is_not_shared_again(
    tmp_path: Path, data: str, spare_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first, second = read_by(tmp_path, MODEL + data, 2, spare_workers=spare_workers)
    assert first[:120] == [index for index in range(0, 120, 2) for _ in range(2)]
    assert second[:120] == [index for index in range(1, 120, 2) for _ in range(2)]
    assert "train_data(): this replica reads all that it gives, because it asks for context.replica" in caplog.text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            returning("[[1.0, 2.0], [3.0]] * 20, [0, 1] * 20"),
            "train_data(): lists of one length were expected; pad them, such as by keras.utils.pad_sequences, or give "
            "a tf.data.Dataset of arrays, whose batches are padded.",
        ),
        (
            returning(f"{FRAME}[['a', 'pet']], [0, 1] * 20"),
            "train_data(): numbers or texts were expected, not 'dog' and '1.0' in one array; give a dictionary with "
            "an array for each column.",
        ),
        (
            returning("np.ones((40, 2)), {'pet': ['dog', 'cat'] * 20}"),
            "train_data(): numbers were expected, not 'dog'; number labels by "
            "numpy.unique(labels, return_inverse=True)[1].",
        ),
        (
            returning("np.array([1.0, None] * 20), [0, 1] * 20"),
            "train_data(): numbers or texts were expected, not object [40].",
        ),
        (
            returning(
                "tf.data.Dataset.from_tensor_slices({'image': np.ones((9, 2)), 'label': [1] * 9})",
                "train_data(context)",
            ),
            "train_data(): elements (inputs, targets) were expected, not dictionaries of image, label; in a "
            "tf.data.Dataset, add .map(lambda each: (each['image'], each['label'])).",
        ),
        (
            returning("{'a': [1.0] * 9, 'b': [2.0] * 9, 'y': [1] * 9}"),
            "train_data(): elements (inputs, targets) were expected, not dictionaries of a, b, y; in a "
            "tf.data.Dataset, add .map(lambda each: ({'a': each['a'], 'b': each['b']}, each['y'])).",
        ),
        (
            returning("tf.data.Dataset.from_tensor_slices((np.ones((9, 2)), ['cat'] * 9))"),
            "train_data(): numbers were expected as targets, not texts; number them in a map(), such as by "
            "tf.argmax(tf.equal(label, names)).",
        ),
        (
            returning("(np.ones((2, 2)) for _ in range(9))", "(np.ones((2, 2)) for _ in range(9))"),
            "train_data(): elements (inputs, targets) were expected, not inputs alone.",
        ),
        (returning("(each for each in [])"), "train_data() gives no examples."),
        (
            MODEL + RETURNED.replace("yield [", "yield [missing, "),
            "train_data() failed: NameError: name 'missing' is not defined (line 15).",
        ),
        (
            MODEL + RETURNED.replace("test_data =", "other ="),
            "it has no function test_data(context), but train_data() gives a tf.data.Dataset or a generator; let "
            "test_data() give the examples to evaluate on.",
        ),
        (
            returning("np.ones((9, 2)), [1] * 9") + BY_FILES.format("[]"),
            "train_files() returned '[]'; return a list of the names of one or more files.",
        ),
        (
            returning("np.ones((9, 2)), [1] * 9") + BY_FILES.format("['a', 'b', 'a']"),
            "train_files() returned a twice; return each name once.",
        ),
        (
            returning("1") + BY_FILES.format("['a', 'b']") + "    def train_data(context, files):\n        return 1\n",
            "train_data(context, files) returned '1'; with train_files(), return a tf.data.Dataset of the examples in "
            "these files.",
        ),
        (
            returning("1") + BY_FILES.format("['a', 'b']"),
            "train_data() failed: TypeError: train_data() takes 1 positional argument but 2 were given.",
        ),
    ],
)
def test_other_data_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^model=\S*mine\.py: {re.escape(sentence)}$"):
        load(tmp_path, text)


def test_a_list_of_files_is_known_by_their_names_below_their_folder(tmp_path: Path) -> None:
    rows = "tf.data.Dataset.from_tensor_slices((np.ones((9, 2)), [1] * 9))"
    text = returning(rows, rows).replace("train_data(context)", "train_data(context, files)")

    def digest(*files: str) -> str | None:
        return load(tmp_path, text + BY_FILES.format(files))[0].dataset.digest

    found = digest("/old/part-1", "/old/part-2")
    assert digest("/new/part-1", "/new/part-2") == found != digest("/new/part-1", "/new/part-3")


WIDE = """
    import numpy as np
    import tensorflow as tf

    def model():
        import keras
        return keras.Sequential([keras.layers.Hashing(9), keras.layers.Embedding(9, 2), keras.layers.Flatten(),
                                 keras.layers.Dense(2)])

    def train_data(context):
        return TRAIN

    def test_data(context):
        return np.array([[1], [2]]), np.array([0, 1])
"""


@pytest.mark.parametrize(
    "data",
    [
        "np.array([[2**40], [2]]), np.array([0, 1])",
        "tf.data.Dataset.from_tensor_slices((np.array([[2**40], [2]]), np.array([0, 1])))",
    ],
    ids=["arrays", "dataset"],
)
def test_ids_of_64_bits_stay_whole_in_both_splits(tmp_path: Path, data: str) -> None:
    found, _ = load(tmp_path, WIDE.replace("TRAIN", data))
    for split in (found.dataset.train, found.dataset.test):
        assert [str(spec) for spec in split.signature.specs] == ["int64 [1]", "int32 []"]
    train = found.dataset.train
    ids = train.inputs if isinstance(train, Examples) else next(train.once(2))[0]
    assert ids.tolist() == [[2**40], [2]]


OWN_STEP = """
    import keras
    import numpy as np
    import tensorflow as tf

    X = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")

    class Auto(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, x):
            return self.dense(x["x"] if isinstance(x, dict) else x)

        def train_step(self, data):
            GIVEN
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((x - self(data if isinstance(data, dict) else x)) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    def model():
        network = Auto()
        network.compile("sgd")
        return network

    def train_data(context):
        return DATA

    test_data = train_data
    """
ADDED_LOSS = """
    import keras
    import numpy as np

    class Added(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x ** 2))
            return x

    def model():
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Added()])
        network.compile("sgd")
        return network

    def train_data(context):
        return np.random.default_rng(0).normal(size=(80, 4))
    """


@pytest.mark.parametrize(
    "text",
    [
        OWN_STEP.replace("GIVEN", "x = data").replace("DATA", "X"),
        OWN_STEP.replace("GIVEN", "x = data").replace("DATA", "tf.data.Dataset.from_tensor_slices(X)"),
        OWN_STEP.replace("GIVEN", "x = data").replace("DATA", "(X[n : n + 10] for n in range(0, 80, 10))"),
        OWN_STEP.replace("GIVEN", "(x,) = data").replace("DATA", "tf.data.Dataset.from_tensor_slices((X,)).batch(8)"),
        OWN_STEP.replace("GIVEN", "x = data['x']").replace(
            "DATA", "tf.data.Dataset.from_tensor_slices({'x': X, 'y': X}).batch(8)"
        ),
        OWN_STEP.replace("GIVEN", "x = data['x']").replace("DATA", "{'x': X, 'y': X}"),
        ADDED_LOSS,
    ],
    ids=["array", "examples", "generator", "tuples", "dictionaries", "dictionary of arrays", "add_loss"],
)
def test_data_without_targets_trains_a_model_that_needs_none(tmp_path: Path, text: str) -> None:
    found, _ = load(tmp_path, text)
    assert not found.dataset.signature.has_targets
    checkpoint, _ = train(found, found.settings, tmp_path)
    with found.evaluator() as evaluator:
        first = evaluator.score(checkpoint).loss
        assert first < 2.5
        evaluator.export(tmp_path / "export", {})


@pytest.mark.parametrize(
    "data",
    [
        "scipy.sparse.csr_matrix(X), Y",
        "scipy.sparse.coo_array(X), Y",
        "tf.sparse.from_dense(X), Y",
        "tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(X), Y)).batch(10)",
    ],
)
def test_sparse_matrices_are_arrays(tmp_path: Path, data: str) -> None:
    text = f"""
    import keras
    import numpy as np
    import scipy.sparse
    import tensorflow as tf

    X = np.eye(40, 6, dtype="float64")
    Y = np.arange(40) % 3

    def model():
        network = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        network.compile("sgd", "sparse_categorical_crossentropy")
        return network

    def train_data(context):
        return {data}

    test_data = train_data
    """
    found, _ = load(tmp_path, text)
    assert str(found.dataset.signature.specs[0]) == "float32 [6]"
    test = found.dataset.test
    x = test.inputs if isinstance(test, Examples) else np.concatenate([batch[0] for batch in test.once(10)])
    assert np.array_equal(x, np.eye(40, 6))


def test_a_sparse_matrix_that_would_not_fit_is_refused(tmp_path: Path) -> None:
    text = returning("scipy.sparse.csr_matrix((2_000_000, 3000)), np.zeros(2_000_000)").replace(
        "import numpy", "import scipy.sparse\n    import numpy", 1
    )
    with pytest.raises(ConfigurationError, match=r"sparse matrix \[2000000, 3000\] would have 22.4 GiB as an array; "):
        load(tmp_path, text)


def test_values_that_are_not_finite_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = returning("np.array([[1.0, np.nan]] * 40), np.arange(40) % 3")
    examples, _, _ = in_memory(tmp_path, text)
    assert np.isnan(examples.inputs[:, 1]).all()
    assert (
        "train_data(): some values are not finite in float32; unless the model or its loss masks them, the loss is not "
        "finite either"
    ) in caplog.text


LOOKUPS = """
    import keras
    import numpy as np
    import tensorflow as tf

    def model():
        words = keras.Input((), dtype="string")
        one_hot = keras.layers.StringLookup(vocabulary=["a", "b"], num_oov_indices=0, output_mode="one_hot")(words)
        network = keras.Model(words, keras.layers.Dense(1)(one_hot))
        network.compile("sgd", "mse")
        return network

    def train_data(context):
        return DATA

    test_data = train_data
    """


@pytest.mark.parametrize("data", ["WORDS", "tf.data.Dataset.from_tensor_slices(WORDS)"])
def test_a_model_is_tried_with_the_examples(tmp_path: Path, data: str) -> None:
    words = "(np.array(['a', 'b'] * 20, object), np.arange(40.0))"
    found, settings = load(tmp_path, LOOKUPS.replace("DATA", data.replace("WORDS", words)))
    train(found, settings, tmp_path)
