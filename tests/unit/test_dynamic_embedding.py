"""The layer whose table grows: by plain Keras, and by the trainer, whose export is the same model."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from trainer.checkpoint.table_files import DynamicRows, StoredArrays
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.export import saved_model
from trainer.kernels import library
from trainer.layers import DynamicEmbedding
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode

from .conftest import train_alone

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras

needs_compiler = pytest.mark.skipif(library.load() is None, reason="there is no compiler of C++")


@pytest.fixture
def eager() -> Iterator[None]:
    with eager_mode():
        yield


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "texts"])
def test_ids_get_rows_in_training_alone(text: bool) -> None:
    layer = DynamicEmbedding(4, 3)
    ids = np.array([["a", "b", "a"]], object) if text else np.array([[2**62, -5, 2**62]])
    assert (layer(ids).numpy() == 0).all()
    found = layer(ids, training=True).numpy()
    assert np.array_equal(found, layer(ids).numpy())
    assert np.array_equal(found[0, 0], found[0, 2])
    assert (np.abs(found) > 0).all()
    keys, values = layer.rows()
    assert len(keys) == 2
    assert {tuple(each) for each in values} == {tuple(found[0, 0]), tuple(found[0, 1])}


@pytest.mark.usefixtures("eager")
def test_the_least_recently_used_row_leaves_and_begins_anew() -> None:
    layer = DynamicEmbedding(2, 3)
    first = layer(np.array([1, 2]), training=True).numpy()
    layer.embeddings.assign_add(np.ones((2, 3)))
    assert np.allclose(layer(np.array([2]), training=True), first[1:] + 1)
    layer(np.array([3]), training=True)
    assert layer.rows()[0].tolist() == [2, 3]
    assert np.array_equal(layer(np.array([1]), training=True), first[:1])
    assert layer.rows()[0].tolist() == [1, 3]


@pytest.mark.usefixtures("eager")
def test_rows_are_admitted_and_expire() -> None:
    layer = DynamicEmbedding(10, 3, admit_after=2, expire_steps=2)
    assert (layer(np.array([1, 2]), training=True).numpy() == 0).all()
    assert (layer(np.array([1]), training=True).numpy() != 0).all()
    for _ in range(4):
        layer(np.array([3]), training=True)
    assert layer.rows()[0].tolist() == [3]


@pytest.mark.usefixtures("eager")
def test_padding_gives_zeros_and_is_masked() -> None:
    layer = DynamicEmbedding(10, 3, mask_zero=True)
    found = layer(np.array([[4, 0]]), training=True)
    assert (found.numpy()[0, 1] == 0).all()
    assert found._keras_mask.numpy().tolist() == [[True, False]]
    assert layer.rows()[0].tolist() == [4]
    ragged = layer(tf.ragged.constant([[4], [5, 6]], dtype=tf.int64), training=True).numpy()
    assert ragged.shape == (2, 2, 3)
    assert (ragged[0, 1] == 0).all()
    assert (DynamicEmbedding(10, 3, mask_zero=True)(np.array([""], object), training=True).numpy() == 0).all()


@pytest.mark.usefixtures("eager")
def test_a_saved_model_has_its_rows(tmp_path: Path) -> None:
    ids = keras.Input((2,), dtype="string")
    layer = DynamicEmbedding(100, 3, "normal", admit_after=1, expire_seconds=60, mask_zero=True)
    network = keras.Model(ids, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(layer(ids))))
    network.compile("sgd", "mse")
    network.fit(tf.constant([["a", "b"], ["b", "c"]]), tf.ones([2]), verbose=0)
    network.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    given = tf.constant([["a", "z"], ["c", "b"]])
    assert np.array_equal(loaded.predict(given, verbose=0), network.predict(given, verbose=0))
    assert loaded.layers[1].get_config() == layer.get_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity=0, but a whole number from 1 to 1099511627776 was expected"),
        ({"output_dim": 1.5}, r"output_dim=1.5, but a whole number from 1"),
        ({"admit_after": 256}, "admit_after=256, but a whole number from 1 to 255 was expected"),
        ({"expire_steps": 0}, "expire_steps=0, but a whole number from 1 to 2147483647 was expected"),
        ({"expire_steps": 1, "expire_seconds": 1}, "expire_steps and expire_seconds: remove one of them"),
        ({"embeddings_initializer": "glorot_uniform"}, "embeddings_initializer=.*, but RandomUniform, .* was expected"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DynamicEmbedding(**{"capacity": 10, "output_dim": 2, **arguments})


@pytest.mark.usefixtures("eager")
def test_ids_that_are_no_whole_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="of_user: whole numbers or texts were expected as ids, not float32"):
        DynamicEmbedding(10, 2, name="of_user")(np.array([1.0], np.float32))


MODEL = textwrap.dedent("""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    from trainer.layers import DynamicEmbedding

    def data(seed, examples):
        random = np.random.default_rng(seed)
        users = np.concatenate([random.permutation(60)[:20] for _ in range(examples // 20)]) * 10**15 - 2**61
        items = np.concatenate([random.permutation(90)[:20] for _ in range(examples // 20)])
        targets = np.sin(users / 10**15)[:, None] + np.cos(items)[:, None]
        return {"user": users, "item": np.char.add("item ", items.astype(str))}, targets.astype("float32")

    def train_data(context):
        inputs, targets = data(1, 2000)
        return tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(20).repeat()

    def test_data(context):
        return data(2, 200)

    def model():
        user, item = keras.Input((), dtype="int64", name="user"), keras.Input((), dtype="string", name="item")
        of_user = DynamicEmbedding(1000, 4, keras.initializers.RandomUniform(seed=3), name="of_user")(user)
        of_item = DynamicEmbedding(1000, 4, keras.initializers.RandomNormal(seed=4), name="of_item")(item)
        x = layers.Concatenate()([of_user, of_item])
        network = keras.Model({"user": user, "item": item}, layers.Dense(1, kernel_initializer="ones")(x))
        network.compile(OPTIMIZER, "mse")
        return network
""")


def run(folder: Path, source: str, **settings: Any) -> Path:
    """Train a model file; return the training directory."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(source)
    given = {"train_steps": 100, "train_dir": str(folder / "run"), **settings}
    train_alone(Settings(model=str(folder / "mine.py"), **given))
    return folder / "run"


def inputs() -> dict[str, Any]:
    """Ids, of which the last ones are new."""
    users, items = np.arange(65) * 10**15 - 2**61, [f"item {number}" for number in range(65)]
    return {"user": users, "item": np.array([*items[:60], *(f"other {number}" for number in range(5))], object)}


def predicted(training_directory: Path) -> Any:
    """What the exported SavedModel gives for `inputs`."""
    name = Path(json.loads((training_directory / "result.json").read_text())["export"]).name
    model = saved_model.load(training_directory / "export" / name, "the model")
    with model.session as session:
        (output,) = model.outputs.values()
        return session.run(output, {model.inputs[key]: value for key, value in inputs().items()})


def fitted(source: str, steps: int) -> Any:
    """The model of the file after `fit`."""
    found: dict[str, Any] = {}
    exec(source, found)  # noqa: S102 - our own text
    keras.utils.set_random_seed(0)
    with eager_mode():
        network = found["model"]()
        network.fit(found["train_data"](None), epochs=1, steps_per_epoch=steps, shuffle=False, verbose=0)
    return network


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", ["keras.optimizers.SGD(0.1)", "keras.optimizers.Adagrad(0.1)"], ids=["sgd", "adagrad"]
)
def test_a_run_and_its_export_are_the_model_that_fit_trains(optimizer: str, tmp_path: Path) -> None:
    source = MODEL.replace("OPTIMIZER", optimizer)
    directory = run(tmp_path, source)
    network = fitted(source, 100)
    with eager_mode():
        given = {name: tf.constant(each) for name, each in inputs().items()}
        expected = network.predict(given, verbose=0)
        assert np.allclose(predicted(directory), expected, rtol=1e-4, atol=1e-5)
        assert np.ptp(expected[:60]) > 0.5
        name = Path(json.loads((directory / "result.json").read_text())["export"]).name
        kept = keras.models.load_model(directory / "export" / name / "model.keras")
        assert np.allclose(kept.predict(given, verbose=0), expected, rtol=1e-4, atol=1e-5)
        ids, values = network.get_layer("of_user").rows()
    stored = StoredArrays(str(directory / "model.ckpt-100")).rows("of_user/embeddings")
    assert isinstance(stored, DynamicRows)
    assert np.array_equal(stored.ids, ids)
    assert np.allclose(stored.take(ids), values, rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.slow
def test_a_run_continues_with_its_rows_and_their_slots(tmp_path: Path) -> None:
    source = MODEL.replace("OPTIMIZER", "keras.optimizers.Adagrad(0.1)").replace(".repeat()", ".skip(PART).take(50)")
    whole = run(tmp_path / "whole", source.replace(".skip(PART).take(50)", ""))
    for number, part in enumerate(("0", "50"), start=1):
        parts = run(tmp_path / "parts", source.replace("PART", part), train_steps=50 * number)
    assert np.allclose(predicted(parts), predicted(whole), rtol=1e-5, atol=1e-6)


REFUSED = {
    "the optimizer": (
        MODEL.replace("OPTIMIZER", "keras.optimizers.Lion(0.1)"),
        "of_user/embeddings is the table of a DynamicEmbedding, which needs an optimizer .* but not Lion",
    ),
    "clipnorm": (
        MODEL.replace("OPTIMIZER", "keras.optimizers.SGD(0.1, clipnorm=1.0)"),
        "without clipnorm, .* but not SGD",
    ),
    "a rate that is a function": (
        MODEL.replace("OPTIMIZER", "keras.optimizers.Adagrad(lambda: 0.1)"),
        "or a function as the learning rate, but not Adagrad as it is set",
    ),
    "a frozen layer": (
        MODEL.replace("OPTIMIZER", "'sgd'").replace('name="of_user")', 'name="of_user", trainable=False)'),
        "the layer of_user, a DynamicEmbedding, must be trainable",
    ),
    "an own step": (
        MODEL.replace("OPTIMIZER", "'sgd'").replace("network = keras.Model", "network = Own")
        + textwrap.dedent("""
            class Own(keras.Model):
                def train_step(self, data):
                    return super().train_step(data)
        """),
        "the layer of_user is a DynamicEmbedding, and a model with its own train_step cannot have one",
    ),
    "ids of parameters": (
        MODEL.replace("OPTIMIZER", "'sgd'").replace(
            "(user)\n", "(keras.ops.cast(layers.Embedding(60, 1)(user % 60)[:, 0], 'int64'))\n"
        ),
        "the ids of the layer of_user, a DynamicEmbedding, must follow from the inputs",
    ),
    "two layers of a name": (
        MODEL.replace("OPTIMIZER", "'sgd'").replace('name="of_item"', 'name="of_user"'),
        "of_user",
    ),
    "floats": (
        MODEL.replace("OPTIMIZER", "'sgd'").replace("(user)\n", "(keras.ops.cast(user, 'float32'))\n"),
        "of_user: whole numbers or texts were expected as ids, not float32",
    ),
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("source", "message"), [*REFUSED.values()], ids=[*REFUSED])
def test_a_model_that_cannot_be_trained_is_refused(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(tmp_path, source)


@pytest.mark.slow
def test_without_the_ops_the_error_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.OFF, "0")
    library.load.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match=r"needs the ops of row_ops\.cc: python -m trainer\.kernels"):
            run(tmp_path, MODEL.replace("OPTIMIZER", "'sgd'"))
    finally:
        library.load.cache_clear()


TOWERS = textwrap.dedent("""
    def towers(network):
        return tuple(
            keras.Model(network.input[name], network.get_layer(f"of_{name}").output) for name in ("user", "item")
        )

    def candidates(context):
        return np.array([f"item {number}" for number in range(90)])
""")


@needs_compiler
@pytest.mark.slow
def test_towers_of_growing_tables_have_signatures(tmp_path: Path) -> None:
    directory = run(tmp_path, MODEL.replace("OPTIMIZER", "keras.optimizers.SGD(0.1)") + TOWERS)
    name = Path(json.loads((directory / "result.json").read_text())["export"]).name
    assert predicted(directory).shape == (65, 1)
    model = saved_model.load(directory / "export" / name, "the model", signature="candidate")
    with model.session as session:
        vectors = session.run(model.outputs["vectors"], {model.inputs["item"]: np.array(["item 3", "none"], object)})
    assert (vectors[0] != 0).all()
    assert (vectors[1] == 0).all()


CALLBACK = textwrap.dedent("""
    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            ids, rows = self.model.get_layer("of_user").rows()
            np.savez(FILE, ids=ids, rows=rows)

    def fit_arguments():
        return {"epochs": 1, "steps_per_epoch": 50, "callbacks": [Keep()]}
""")


@needs_compiler
@pytest.mark.slow
def test_a_callback_sees_the_rows_of_a_table_that_grows(tmp_path: Path) -> None:
    callback = CALLBACK.replace("FILE", repr(str(tmp_path / "seen.npz")))
    directory = run(tmp_path, MODEL.replace("OPTIMIZER", "keras.optimizers.SGD(0.1)") + callback, train_steps=50)
    seen = np.load(tmp_path / "seen.npz")
    stored = StoredArrays(str(directory / "model.ckpt-50")).rows("of_user/embeddings")
    assert isinstance(stored, DynamicRows)
    assert np.array_equal(seen["ids"], stored.ids)
    assert np.array_equal(seen["rows"], stored.take(stored.ids))


@needs_compiler
@pytest.mark.slow
def test_two_lookups_of_padded_lists_train_as_by_fit(tmp_path: Path) -> None:
    """Padding has no row and no gradient, and an id that both lookups have has the sum of both gradients."""
    source = MODEL.replace("OPTIMIZER", "keras.optimizers.SGD(0.1)")
    lists = textwrap.dedent("""
        def data(seed, examples):
            ids = np.random.default_rng(seed).integers(2, 12, (examples, 4)) * [[1, 1, 1, 0]]
            return {"ids": ids}, np.sin(ids.sum(axis=1, keepdims=True)).astype("float32")

        def model():
            ids = keras.Input((4,), dtype="int64", name="ids")
            table = DynamicEmbedding(100, 4, keras.initializers.RandomUniform(seed=3), mask_zero=True, name="table")
            x = layers.Concatenate()([layers.GlobalAveragePooling1D()(each) for each in (table(ids), table(ids // 2))])
            network = keras.Model({"ids": ids}, layers.Dense(1, kernel_initializer="ones")(x))
            network.compile(keras.optimizers.SGD(0.1), "mse")
            return network
    """)
    directory = run(tmp_path, source + lists)
    with eager_mode():
        expected_ids, expected = fitted(source + lists, 100).get_layer("table").rows()
    stored = StoredArrays(str(directory / "model.ckpt-100")).rows("table/embeddings")
    assert isinstance(stored, DynamicRows)
    assert np.array_equal(stored.ids, expected_ids)
    assert expected_ids.tolist() == list(range(1, 12))
    assert np.allclose(stored.take(expected_ids), expected, rtol=1e-4, atol=1e-5)
