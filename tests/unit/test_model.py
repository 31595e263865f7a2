"""Models: lookup by name or file, loss and accuracy."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.errors import ConfigurationError
from trainer.models import Model, cnn, mlp, model_files
from trainer.models.ops_model import OpsModel, cross_entropy
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
    expected = "cnn, mlp, columns, the path of a Python file or folder, or the name of a module was expected"
    with pytest.raises(ConfigurationError, match=f"{name!r}, but {expected}"):
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
