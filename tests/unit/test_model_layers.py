"""The layers and the loss that a model's file may import, compared with TensorFlow's functions and with NumPy."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.unit.test_keras_data import load
from trainer.data.stream import Stream
from trainer.layers import COMBINERS, EmbeddingBag, ExampleKey
from trainer.losses import InBatchSoftmax
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras

TABLE = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
LISTS, WEIGHTS = [[3, 5], [7, 7, 0], [], [19]], [[0.5, 2.0], [1.0, 1.0, 3.0], [], [0.1]]


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    with eager_mode():
        yield


def bag(combiner: str = "mean", **options: Any) -> Any:
    made = EmbeddingBag(len(TABLE), TABLE.shape[1], combiner, **options)
    made.build((None, None))
    made.set_weights([TABLE])
    return made


def looked_up(combiner: str, is_weighted: bool) -> Any:
    """By TensorFlow's function for sparse tensors."""
    ids = tf.ragged.constant(LISTS, tf.int64).to_sparse()
    weights = tf.ragged.constant(WEIGHTS).to_sparse() if is_weighted else None
    return tf.nn.safe_embedding_lookup_sparse(TABLE, ids, weights, combiner=combiner)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_padded_and_ragged_lists_have_the_embedding_of_tensorflow(combiner: str, is_weighted: bool) -> None:
    ids, weights = tf.ragged.constant(LISTS, tf.int32), tf.ragged.constant(WEIGHTS)
    forms = [
        (ids, weights),
        (ids.to_tensor(-1), weights.to_tensor(5.0)),
        (ids.to_tensor(-7).numpy(), weights.to_tensor()),
    ]
    for given in forms:
        found = bag(combiner)(*(given if is_weighted else given[:1]))
        assert np.allclose(found, looked_up(combiner, is_weighted), atol=1e-6)


def test_ids_of_0_and_masked_ids_do_not_count() -> None:
    ids = np.array([[0, 3, 4], [0, 0, 0]])
    assert np.allclose(bag(mask_zero=True)(ids), [TABLE[3:5].mean(axis=0), np.zeros(4)])
    assert np.allclose(bag()(ids, mask=np.array([[False, False, True], [False] * 3])), [TABLE[4], np.zeros(4)])


def test_gradients_are_those_of_tensorflow_and_padding_reads_a_row_that_the_batch_reads() -> None:
    """An optimizer of tables updates the rows that a step reads, and so must not find others."""
    made = bag("sqrtn")
    ids, weights = (tf.ragged.constant(each).to_tensor(-1) for each in (LISTS, WEIGHTS))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(made(ids, weights) ** 2)
    found = tape.gradient(loss, made.trainable_variables[0].value)
    with tf.GradientTape() as tape:
        table = tf.Variable(TABLE)
        sparse = tf.ragged.constant(LISTS, tf.int64).to_sparse(), tf.ragged.constant(WEIGHTS).to_sparse()
        loss = tf.reduce_sum(tf.nn.safe_embedding_lookup_sparse(table, *sparse, combiner="sqrtn") ** 2)
    assert np.allclose(tf.convert_to_tensor(found), tf.convert_to_tensor(tape.gradient(loss, table)), atol=1e-5)
    assert set(found.indices.numpy().ravel()) == {0, 3, 5, 7, 19}


def test_a_bag_is_saved_and_loaded_and_computes_in_the_type_of_its_policy(tmp_path: Path) -> None:
    ids, weights = keras.Input((None,), dtype="int64", ragged=True), keras.Input((None,), ragged=True)
    made = bag("sum", dtype="mixed_bfloat16", embeddings_regularizer="l2")
    network = keras.Model([ids, weights], made(ids, weights))
    assert network.output.shape == (None, 4)
    assert network.output.dtype == "bfloat16"
    network.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    given = [tf.ragged.constant(LISTS, tf.int64), tf.ragged.constant(WEIGHTS)]
    assert np.array_equal(loaded(given), network(given))
    assert np.allclose(tf.cast(loaded(given), tf.float32), looked_up("sum", True), atol=0.1)


def test_an_unknown_combiner_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="combiner='max', but one of sum, mean, sqrtn was expected"):
        EmbeddingBag(3, 2, "max")


RAGGED = """
    import keras
    import tensorflow as tf
    from trainer.layers import EmbeddingBag

    def train_data(context):
        words = [[0] * (1 + i % 7) for i in range(40)]
        rows = tf.ragged.constant(words, tf.int64), tf.ragged.constant(words, tf.float32)
        return tf.data.Dataset.from_tensor_slices((rows, [i % 2 for i in range(40)])){batch}

    test_data = train_data

    def model():
        ids, sizes = keras.Input((None,), dtype="int64", ragged=True), keras.Input((None,), ragged=True)
        counted = keras.layers.Lambda(lambda each: tf.reduce_sum(tf.ones_like(each), axis=1)[:, None], (1,))
        rows = EmbeddingBag(5, 1, "sum", embeddings_initializer="ones")(ids)
        network = keras.Model([ids, sizes], keras.layers.Concatenate(name="{name}")([rows, counted(sizes)]))
        network.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
        return network
"""


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["", ".batch(4)"], ids=["examples", "batches"])
def test_a_ragged_input_gets_lists_of_their_own_lengths(tmp_path: Path, batch: str) -> None:
    """Ids of 0 count as others, and values of 0 too."""
    found, _ = load(tmp_path, RAGGED.replace("{batch}", batch).replace("{name}", "lengths"))
    assert isinstance(found.dataset.test, Stream)
    (ids, sizes, _), *_ = found.dataset.test.once(4)
    assert ids.tolist() == [[0, -1, -1, -1], [0, 0, -1, -1], [0, 0, 0, -1], [0, 0, 0, 0]]
    with found.evaluator() as evaluator:
        given = dict(zip(evaluator._batch, (ids, sizes, np.zeros(4)), strict=True))
        model: Any = found.model
        arrays = dict(zip(evaluator._given.values(), model.network.get_weights(), strict=True))
        evaluator._session.run(evaluator._assign, arrays)
        (outputs,) = evaluator._session.run(list(evaluator._outputs.values()), given)
    assert outputs.tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]


def negatives(log_probabilities: Any, vectors: Any, temperature: float, ids: Any) -> Any:
    """The loss of each query, by its definition."""
    found = []
    for number, query in enumerate(vectors[:, 0]):
        others = [each for each in range(len(vectors)) if each == number or ids[each] != ids[number]]
        logits = vectors[others, 1] @ query / temperature - log_probabilities[others]
        found.append(np.log(np.exp(logits).sum()) - logits[others.index(number)])
    return np.array(found)


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ids", [None, 2**60 + np.arange(6) // 2, np.array(["a", "b", "a", "c", "d", "a"])])
def test_the_negatives_are_the_other_candidates_of_the_batch(size: int, dtype: str, ids: Any) -> None:
    random = np.random.default_rng(0)
    vectors = tf.cast(random.normal(size=(size, 2, 3)), dtype)
    targets, weights = np.log(random.random((size, 1))), random.random(size)
    output = vectors if ids is None else ExampleKey()([vectors, tf.constant(ids[:size])])
    exact = tf.cast(vectors, tf.float64).numpy()
    wanted = negatives(targets[:, 0], exact, 0.3, np.arange(size) if ids is None else ids[:size])
    assert np.allclose(InBatchSoftmax(0.3, reduction="none")(targets, output), wanted, atol=1e-4)
    assert float(InBatchSoftmax(0.3)(targets, output, weights)) == pytest.approx((wanted * weights).mean(), abs=1e-4)


def test_a_loss_with_other_outputs_or_temperatures_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"takes the vectors of query and candidate, \[n, 2, dim\], but"):
        InBatchSoftmax()(np.zeros(3), np.zeros((3, 4)))
    with pytest.raises(ValueError, match="temperature=0, but a number above 0 was expected"):
        InBatchSoftmax(0)


def test_a_loss_is_made_of_its_configuration() -> None:
    loss = keras.losses.deserialize(keras.losses.serialize(InBatchSoftmax(0.2, reduction="sum")))
    assert (loss.temperature, loss.reduction) == (0.2, "sum")


SCRIPT = """
import sys
from trainer.layers import EmbeddingBag
from trainer.losses import InBatchSoftmax
from trainer.metrics import AUC
import numpy as np
import tensorflow as tf
assert tf.executing_eagerly()
layers = [tf.keras.Input((3,), dtype="int32"), EmbeddingBag(9, 4), tf.keras.layers.Dense(1, "sigmoid")]
network = tf.keras.Sequential(layers)
network.compile("sgd", "binary_crossentropy", metrics=[AUC()])
logs = network.fit(np.ones((8, 3)), np.arange(8) % 2, verbose=0).history
assert logs["auc"] == [0.5], logs
assert "trainer.tensorflow" not in sys.modules
"""


@pytest.mark.slow
def test_a_script_without_the_trainer_uses_them_with_tf_keras() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_trainer_itself_stays_cheap_to_import() -> None:
    text = "import sys, trainer; assert not {'keras', 'tensorflow', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], timeout=300).returncode == 0


@pytest.mark.slow
def test_a_task_starts_without_keras() -> None:
    """Its import takes a third of the start. A model of Keras imports it."""
    text = "import sys, trainer.training.train; assert 'keras' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", text], timeout=300).returncode == 0
