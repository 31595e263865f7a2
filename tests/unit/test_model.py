"""Models: lookup by name or file, loss and accuracy."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.config import Settings
from trainer.data.examples import Examples, Signature
from trainer.errors import ConfigurationError
from trainer.models import Model, cnn, mlp, model_files
from trainer.models.ops_model import MEAN, STDDEV, OpsModel, cross_entropy
from trainer.tensorflow import tf, tf1


def find(name: str) -> Model:
    return model_files.model_of(model_files.load(name), Settings(model=name))


OWN_MODEL = """
from trainer.models import Parameter

def parameters(image_shape, classes, hidden_units):
    return {"weights": Parameter((*image_shape, classes))}

def logits(parameters, images):
    return images @ parameters["weights"]
"""


def test_built_in_models_are_found_by_name() -> None:
    assert model_files.load("mlp") is mlp
    assert model_files.load("cnn") is cnn


def test_a_custom_model_is_found_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_MODEL)
    model = find(str(tmp_path / "own.py"))
    assert isinstance(model, OpsModel)
    examples = Examples(np.ones((2, 4), np.float32), np.array([0, 2], np.int32))
    assert model.parameters(examples.signature)["weights"].shape == (4, 3)
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = tf.constant(np.diag([0.0, 0.0, 9.0, 0.0])[:, :3], tf.float32)
        step = model.step({"weights": weights}, [tf.constant(each) for each in examples.arrays], None)
        assert session.run(step.metrics) == {"accuracy": 0.5}


@pytest.mark.parametrize("function", ["parameters", "logits"])
def test_a_file_without_one_of_the_two_functions_is_an_error(tmp_path: Path, function: str) -> None:
    (tmp_path / "own.py").write_text(OWN_MODEL.replace(f"def {function}(", "def another("))
    with pytest.raises(ConfigurationError, match=f"own.py does not define the function {function}"):
        find(str(tmp_path / "own.py"))


@pytest.mark.parametrize("name", ["resnet", "absent.py", "", "../mlp", "/etc/passwd"])
def test_an_unknown_model_is_an_error_that_lists_the_models(name: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=f"{name!r}, but cnn, mlp, columns, the path of a Python file or folder, or the name of a module was exp",
    ):
        find(name)


def evaluate(tensor: Any) -> Any:
    with tf1.Session(graph=tensor.graph) as session:
        return session.run(tensor)


def expected_cross_entropy(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.int32]) -> float:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    return float(-np.log(probabilities[np.arange(len(labels)), labels]).mean())


def test_the_loss_is_the_mean_cross_entropy() -> None:
    random = np.random.default_rng(0)
    logits, labels = random.normal(0, 3, (50, 10)), random.integers(0, 10, 50, np.int32)
    with tf.Graph().as_default():
        loss = evaluate(cross_entropy(tf.constant(logits, tf.float32), tf.constant(labels)))
    assert loss == pytest.approx(expected_cross_entropy(logits, labels), rel=1e-5)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [([0.0, 1e30, 0.0], 1e30), ([1e30, 0.0, 0.0], 0.0), ([0.0, 0.0, 0.0], 1.09861), ([-1e38, 1e38, 0.0], 2e38)],
)
def test_the_loss_is_finite_for_extreme_logits(logits: list[float], expected: float) -> None:
    with tf.Graph().as_default():
        variable = tf.constant([logits], tf.float32)
        loss = cross_entropy(variable, tf.constant([0]))
        gradient = tf1.gradients(loss, variable)[0]
        with tf1.Session() as session:
            found, slope = session.run([loss, gradient])
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert np.isfinite(slope).all()


def test_the_gradient_of_a_wrong_prediction_does_not_vanish() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        logits = tf.constant([[0.0, 200.0, 0.0]])
        slope = session.run(tf1.gradients(cross_entropy(logits, tf.constant([0])), logits)[0])
    assert slope == pytest.approx(np.array([[-1.0, 1.0, 0.0]]))


def test_a_table_is_standardized() -> None:
    """Also in the arrays that checkpoints and exports have; a column that is always the same does no harm."""
    table = np.random.default_rng(0).normal([50_000, 40, 7], [20_000, 10, 0], (200, 3)).astype(np.float32)
    model = model_files.model_of(model_files.load("mlp"), Settings(model="mlp"), table)
    signature = Examples(table, np.arange(200, dtype=np.int32) % 3).signature
    parameters = model.parameters(signature)
    assert [name for name, parameter in parameters.items() if not parameter.trainable] == [MEAN, STDDEV]
    with tf.Graph().as_default(), tf1.Session() as session:
        drawn = np.random.default_rng(1).normal
        values = {
            name: tf.constant(drawn(size=each.shape) if each.value is None else each.value, tf.float32)
            for name, each in parameters.items()
        }
        labels = tf.zeros([200], tf.int32)
        step = model.step(values, [tf.constant(table), labels], None)
        standardized = (table - table.mean(0)) / [*table.std(0)[:2], 1]
        plain = OpsModel("mlp", mlp, 100)
        plain.parameters(signature)
        wanted = plain.step(values, [tf.constant(standardized, tf.float32), labels], None)
        changes, (loss, expected) = session.run([dict(step.changes), (step.loss, wanted.loss)])
    assert loss == pytest.approx(expected, rel=1e-3)
    assert list(changes) == list(parameters)
    assert not changes[MEAN].any()
    assert not changes[STDDEV].any()
    assert changes["hidden/weights"].any()


def test_only_the_built_in_network_standardizes_and_only_tables(tmp_path: Path) -> None:
    table = np.full((10, 3), 1000, np.float32)
    assert MEAN not in model_files.model_of(model_files.load("mlp"), Settings()).parameters(a_signature(3))
    (tmp_path / "mine.py").write_text(Path(mlp.__file__).read_text())
    mine = str(tmp_path / "mine.py")
    model = model_files.model_of(model_files.load(mine), Settings(model=mine), table)
    assert MEAN not in model.parameters(a_signature(3))


def a_signature(columns: int) -> Signature:
    return Examples(np.zeros((10, columns), np.float32), np.arange(10, dtype=np.int32) % 2).signature
