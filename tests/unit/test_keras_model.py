"""Keras models: what they become here. Most of how they train as by `fit` is shown by tests/conformance."""

import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.data.orders import Deal
from trainer.errors import ConfigurationError
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.graph import keras_optimizer, replica, step_graph
from trainer.models import model_files
from trainer.models.keras_model import KerasModel
from trainer.shards import parameters
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode

from .conftest import EXAMPLES, values_in

pytestmark = pytest.mark.slow

SIZE, STEPS = 20, 100
LOSS = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
# Smooth: a rectifier's gradient jumps at 0, where the rounding of another CPU decides.
LAYERS = "layers.Dense(16, activation='tanh'), layers.BatchNormalization(momentum=0.9), layers.Dense(10)"


def write(folder: Path, layers: str = LAYERS, compiled: str = "", name: str = "mine.py") -> Path:
    """A model file with these layers, which is compiled with these arguments, if any."""
    path = folder / name
    text = f"""
        import keras
        from keras import layers
        from keras.optimizers import *

        def model(input_shape, classes):
            network = keras.Sequential([layers.Input(input_shape), {layers}])
            {f"network.compile({compiled})" if compiled else ""}
            return network
        """
    path.write_text(textwrap.dedent(text))
    return path


def load(path: Path, seed: int = 0, weights: Path | None = None) -> tuple[KerasModel, dict[str, Any]]:
    """The model of a file, and its arrays."""
    settings = Settings(model=str(path), seed=seed, initial_weights=weights)
    model = model_files.model_of(model_files.load(settings.model), settings)
    assert isinstance(model, KerasModel)
    return model, model.parameters(EXAMPLES.signature)


def train(path: Path, steps: int = STEPS, **settings: Any) -> dict[str, npt.NDArray[Any]]:
    """The arrays after these steps of a single process, as they are evaluated and exported."""
    model, arrays = load(path)
    given = Settings(batch_size=SIZE, steps_per_execution=10, train_steps=steps, **settings)
    built = replica.build(given, None, model, arrays, EXAMPLES, 0, "this run")
    with tf1.Session(graph=built.graph) as session:
        session.run([built.initialize, built.mark_ready])
        built.batches.begin(session)
        execution = built.replication.executions[10]
        for step in range(0, steps, 10):
            feeds = dict(zip(built.batches.feeds(10), built.batches.take(10, step), strict=True))
            session.run(execution.step, feeds)
        saved = built.saver.save(session, path.parent / "checkpoint")
    with CheckpointEvaluator(model, arrays, EXAMPLES) as evaluator:
        evaluator.restore(saved)
        found: dict[str, npt.NDArray[Any]] = evaluator._session.run(evaluator._arrays)
        return found


def fit(path: Path, steps: int = STEPS) -> dict[str, npt.NDArray[Any]]:
    """The same arrays after `keras.Model.fit` with the same batches."""
    model, _ = load(path)
    deal = Deal(len(EXAMPLES), SIZE, batches=1, seed=0)
    order = np.concatenate([deal.take(step, 0)[0] for step in range(steps)])
    with eager_mode():
        network = model._model
        network.fit(EXAMPLES.inputs[order], EXAMPLES.targets[order], batch_size=SIZE, shuffle=False, verbose=0)
        return {name: variable.numpy() for name, variable in model.arrays.variables.items()}


@pytest.mark.parametrize("decay", ["", ", weight_decay=1e-9"])
def test_each_step_of_an_execution_is_applied_of_a_loss_that_is_linear(tmp_path: Path, decay: str) -> None:
    """The gradient does not depend on the update before."""
    layers = "layers.Flatten(), layers.Dense(1, kernel_initializer='zeros')"
    path = write(tmp_path, layers, f"optimizer=SGD(0.01{decay}), loss=lambda _, found: -found")
    ours = train(path, 10)
    (bias,) = (values for name, values in ours.items() if name.endswith("bias"))
    assert bias == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["clipnorm=5.0", "clipvalue=5.0", "global_clipnorm=5.0", "clipnorm=0.0"])
def test_a_large_threshold_of_clipping_binds_as_in_keras(tmp_path: Path, optimizer: str) -> None:
    """Gradients of a kernel in the hundreds beside those of a bias around one."""
    layers = "layers.Rescaling(100.0), layers.Flatten(), layers.Dense(16, activation='tanh'), layers.Dense(10)"
    path = write(tmp_path, layers, f"optimizer=SGD(0.01, {optimizer}), loss={LOSS}")
    ours, expected = train(path, 10), fit(path, 10)
    assert ours.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(ours[name], values, rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("limit", [0.001, 4.0, 100.0, 1e6])
def test_an_optimizer_that_clips_by_the_norm_of_each_array_is_not_element_wise(limit: float) -> None:
    class Own(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            norm = keras.ops.sqrt(keras.ops.sum(gradient**2))
            super().update_step(gradient * limit / keras.ops.maximum(norm, limit), variable, learning_rate)

    with eager_mode():
        by_norms = [keras.optimizers.Adam(clipnorm=limit), Own(0.1)]
        others = [keras.optimizers.Adam(clipvalue=limit), keras.optimizers.SGD(0.1, global_clipnorm=limit)]
    assert not any(keras_optimizer.is_element_wise(each) or keras_optimizer.updates_rows(each) for each in by_norms)
    assert all(keras_optimizer.is_element_wise(each) and keras_optimizer.updates_rows(each) for each in others)


def test_the_trainers_own_optimizer_obeys_constraints(tmp_path: Path) -> None:
    path = write(tmp_path, "layers.Flatten(), layers.Dense(10, kernel_constraint='unit_norm')")
    kernel = next(value for name, value in train(path, 10).items() if name.endswith("kernel"))
    assert np.linalg.norm(kernel, axis=0) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("table_rows", [100_000, 5])
def test_a_run_continues_with_another_optimizer(tmp_path: Path, table_rows: int, log_lines: list[str]) -> None:
    """Its state begins anew; the averages of the parameters begin with these."""
    examples = Examples(np.arange(20, dtype=np.int32).reshape(10, 2) % 9, np.ones((10, 2), np.float32))
    layers = "layers.Embedding(9, 2), layers.GlobalAveragePooling1D(), layers.Dense(2)"
    saved = ""
    values: list[Any] = []
    for optimizer in ("Adam(0.1)", "SGD(0.1, momentum=0.9)", "SGD(0.1, use_ema=True)"):
        path = write(tmp_path, layers, f"optimizer={optimizer}, loss='mse'", name=f"{optimizer[:3]}_{len(values)}.py")
        path.write_text(path.read_text().replace("(input_shape, classes)", "(input_shape)"))
        settings = Settings(model=str(path), batch_size=10, steps_per_execution=1, table_rows=table_rows)
        model = model_files.model_of(model_files.load(settings.model), settings)
        arrays = model.parameters(examples.signature)
        built = replica.build(settings, None, model, arrays, examples, 0, "this run")
        with tf1.Session(graph=built.graph) as session:
            if saved:
                log_lines.clear()
                built.saver.restore(session, saved)
            else:
                session.run(built.initialize)
            built.batches.begin(session)
            if len(values) < 2:
                session.run(
                    built.replication.executions[1].step,
                    dict(zip(built.batches.feeds(1), built.batches.take(1, 0), strict=True)),
                )
            saved = str(built.saver.save(session, tmp_path / f"checkpoint_{len(values)}"))
        values.append(values_in(saved))
    assert log_lines == [
        f"{tmp_path}/checkpoint_1-2 has no average: the optimizer has changed, and its state begins anew"
    ]
    for name in arrays:
        assert np.array_equal(values[1][name], values[2][name])
        assert np.array_equal(values[1][name], values[2][f"{name}/average"])
    names = {name.rpartition("/")[2] for name in values[1]}
    assert "momentum" in names
    assert "velocity" not in names


def test_a_model_that_is_not_compiled_learns_with_the_trainers_optimizer(tmp_path: Path) -> None:
    path = write(tmp_path)
    model, arrays = load(path)
    assert model.optimizer is None
    before = {name: array.value for name, array in arrays.items()}
    after = train(path)
    assert all(np.abs(after[name] - before[name]).max() > 1e-4 for name in arrays)


def test_the_seed_determines_the_initial_values(tmp_path: Path) -> None:
    path = write(tmp_path)
    first, second, other = (load(path, seed)[1] for seed in (1, 1, 2))
    assert all(np.array_equal(first[name].value, second[name].value) for name in first)
    assert not np.array_equal(first["sequential/dense/kernel"].value, other["sequential/dense/kernel"].value)


def test_random_layers_draw_anew_in_each_step_and_differ_between_replicas(tmp_path: Path) -> None:
    """A dropout of nearly everything leaves other gradients in each step, although the batch is the same."""
    model, arrays = load(write(tmp_path, "layers.Dropout(0.9), layers.Dense(10)"))
    assert model.is_random
    layout = parameters.plan(arrays, 1)
    template = step_graph.make(model, layout, EXAMPLES.signature, SIZE)
    with tf.Graph().as_default(), tf1.Session() as session:
        values = [tf.constant(np.concatenate([each.value.ravel() for each in arrays.values()]))]
        batch = [tf.constant(array[:SIZE]) for array in EXAMPLES.arrays]
        seeds = [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
        losses = [template.compute(values, batch, (), seed).loss for seed in seeds]
        found = [float(loss) for _ in range(2) for loss in session.run(losses)]
    assert len(set(found)) == len(found)


def test_layers_that_are_not_trainable_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, "layers.Dense(16, trainable=False), layers.Dense(10)")
    arrays = load(path)[1]
    frozen = {name: array.value for name, array in arrays.items() if not array.trainable}
    assert len(frozen) == 2
    after = train(path, weight_decay=0.1)
    assert all(np.array_equal(after[name], value) for name, value in frozen.items())


def test_a_model_computes_in_bfloat16_by_its_policy(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = path.read_text().replace(
        "def model", "keras.mixed_precision.set_global_policy('mixed_bfloat16')\n\ndef model"
    )
    path.write_text(text)
    try:
        losses = train(path)
        assert all(np.isfinite(values).all() and values.dtype == np.float32 for values in losses.values())
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras
def test_keras_loads_the_saved_model(tmp_path: Path) -> None:
    model, arrays = load(write(tmp_path))
    values = {name: array.value + 1 for name, array in arrays.items()}
    model.save(tmp_path, values)
    with eager_mode():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert {each.path: each.numpy().tolist() for each in loaded.weights} == {
            name.removeprefix("sequential/"): value.tolist() for name, value in values.items()
        }


def test_initial_values_are_not_in_the_graph_which_each_task_gets(tmp_path: Path) -> None:
    model, arrays = load(write(tmp_path, "layers.Dense(2000), layers.Dense(10)"))
    built = replica.build(Settings(batch_size=SIZE, steps_per_execution=2), None, model, arrays, EXAMPLES, 0, "run")
    assert sum(array.value.nbytes for array in arrays.values()) > 6e6
    assert built.graph.as_graph_def().ByteSize() < 1e6


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras
@pytest.mark.parametrize("name", ["model.keras", "values.weights.h5"])
def test_initial_weights_are_those_of_a_file(tmp_path: Path, name: str) -> None:
    """Also those of a run with another seed, and those of other layers not."""
    model, arrays = load(write(tmp_path), seed=1)
    values = {name: array.value + 1 for name, array in arrays.items()}
    model.save(tmp_path, values)
    with eager_mode():
        keras.saving.load_model(tmp_path / "model.keras").save_weights(tmp_path / "values.weights.h5")
    found = load(tmp_path / "mine.py", weights=tmp_path / name)[1]
    assert all(np.array_equal(found[each].value, value) for each, value in values.items())
    wrong = write(tmp_path, "layers.Dense(17), layers.BatchNormalization(), layers.Dense(10)", name="wrong.py")
    with pytest.raises(
        ConfigurationError, match=rf"initial_weights={tmp_path}/{name} does not fit the model: ValueError"
    ):
        load(wrong, weights=tmp_path / name)
    with pytest.raises(ConfigurationError, match=f"initial_weights={tmp_path}/absent.keras does not exist"):
        load(tmp_path / "mine.py", weights=tmp_path / "absent.keras")
    with pytest.raises(ConfigurationError, match=r"mine\.py is neither a \.keras nor a \.weights\.h5 file"):
        load(tmp_path / "mine.py", weights=tmp_path / "mine.py")


def test_a_metric_with_a_value_for_each_class_has_a_number_for_each(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "layers.Dense(3)",
        "optimizer='sgd', loss='mse', metrics=[keras.metrics.R2Score(class_aggregation=None)]",
    )
    settings = Settings(model=str(path))
    path.write_text(path.read_text().replace("(input_shape, classes)", "(input_shape)"))
    model = model_files.model_of(model_files.load(settings.model), settings)
    values = np.zeros([8, 3], np.float32)
    arrays = model.parameters(Examples(values, values).signature)
    template = step_graph.make(model, parameters.plan(arrays, 1), Examples(values, values).signature, 8)
    assert template.metrics == ["r2_score_0", "r2_score_1", "r2_score_2"]


SCHEDULE = """
    import keras, tensorflow as tf
    class Warmup(keras.optimizers.schedules.LearningRateSchedule):  # without get_config, as in the transformer tutorial
        def __init__(self):
            super().__init__()
            self.width = tf.constant(64.0)
        def __call__(self, step):
            step = tf.cast(step, tf.float32) + 1.0
            return tf.math.rsqrt(self.width) * tf.minimum(tf.math.rsqrt(step), step * 20 ** -1.5)
    def model(input_shape, classes):
        network = keras.Sequential([keras.layers.Input(input_shape), keras.layers.Dense(classes)])
        network.compile(keras.optimizers.Adam(Warmup()), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return network
    """
HEAD = """
    import keras, tensorflow as tf
    class Own(keras.Model):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.head(self(data[0], training=True)) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}
    def model(input_shape):
        inputs = keras.layers.Input(input_shape)
        network = Own(inputs, keras.layers.Dense(8)(inputs))
        network.head = keras.layers.Dense(4)
        network.compile("sgd")
        return network
    """


def test_a_layer_that_only_train_step_calls_is_built_before_its_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(HEAD))
    model, arrays = load(tmp_path / "mine.py")
    assert [each.shape for each in arrays.values()] == [(784, 8), (8,), (8, 4), (4,)]
    assert not model.optimizer.built, "the step is traced and not run"


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras
def test_a_model_that_keras_cannot_write_is_exported_with_its_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(SCHEDULE))
    model, arrays = load(tmp_path / "mine.py")
    model.save(tmp_path, {name: each.value for name, each in arrays.items()})
    assert (tmp_path / "model.weights.h5").exists()
    assert not (tmp_path / "model.keras").exists()
    assert "model.keras cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("last", "logits"),
    [("layers.Dense(10)", True), ("layers.Dense(10, 'softmax')", False), ("layers.Dense(10), layers.Softmax()", False)],
)
def test_a_model_whose_last_op_is_a_softmax_gives_probabilities(tmp_path: Path, last: str, logits: bool) -> None:
    model, _ = load(write(tmp_path, last))
    assert model.gives_logits is logits


def test_a_loss_is_known_by_its_class_and_not_by_its_name(tmp_path: Path) -> None:
    loss = "keras.losses.SparseCategoricalCrossentropy(from_logits=True, name='mine')"
    model, _ = load(write(tmp_path, "layers.Dense(10)", f"optimizer='sgd', loss={loss}"))
    assert model._metrics.accuracy is not None


def test_a_file_is_a_module_with_keras_as_tensorflow_has_it(tmp_path: Path) -> None:
    (tmp_path / "blocks_of_mine.py").write_text("WIDTH = 10\n")
    text = """
        from __future__ import annotations
        import dataclasses
        from blocks_of_mine import WIDTH
        from tensorflow.keras import backend as K
        from tensorflow.keras.layers import Dense, Input
        from tensorflow.keras.models import Sequential

        @dataclasses.dataclass
        class Options:
            width: int = dataclasses.field(default=WIDTH)

        def model():
            K.flatten, K.sum
            return Sequential([Input((784,)), Dense(Options().width)])
        """
    (tmp_path / "mine.py").write_text(textwrap.dedent(text))
    _, arrays = load(tmp_path / "mine.py")
    assert [each.shape for each in arrays.values()] == [(784, 10), (10,)]


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"mine/__init__.py": "from .blocks import model", "mine/blocks.py": "KERAS"}, "mine"),
        ({"mine/model.py": "from blocks import model", "mine/blocks.py": "KERAS"}, "mine"),
        (
            {"a_package/nets/__init__.py": "", "a_package/__init__.py": "", "a_package/nets/one.py": "KERAS"},
            "a_package.nets.one",
        ),
    ],
    ids=["package", "folder", "module"],
)
def test_a_model_may_be_a_folder_or_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], name: str
) -> None:
    keras_file = write(tmp_path).read_text().replace("(input_shape, classes)", "(input_shape=(784,))")
    for each, text in files.items():
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text(text.replace("KERAS", keras_file))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    given = name if "." in name else str(tmp_path / name)
    _, arrays = load(Path(given))
    assert len(arrays) == 8
    assert model_files.identify(given).startswith(f"{name.rpartition('.')[2]} ")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        model_files.load(str(tmp_path))
    assert str(refused.value) == (
        f"model='{tmp_path}': the folder has no __init__.py and no model.py; add one of them."
    )


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("layers.Dense(7)", r"the model's output has the shape \[None, 7\], but the data has 10 classes"),
        ("layers.Reshape((28, 28))", r"the model's output has the shape \[None, 28, 28\]"),
        ("layers.Conv2D(3, 3)", r"model\(\) failed: ValueError"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path: Path, layers: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^model=.*mine\.py: .*{message}.*\.$"):
        load(write(tmp_path, layers))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import keras\ndef model():\n    model = keras.Sequential([keras.layers.Dense(10)])\n"
            "    model.compile('adam', 'mse', ['accuracy'])\n    return model",
            r"compile\(\) got 'accuracy' as loss_weights, the third of its arguments; write metrics=\['accuracy'\]",
        ),
        (
            "import keras\ndef model():\n    model = keras.Sequential([keras.layers.Dense(10)])\n"
            "    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), 'mse')\n    return model",
            "mixed_float16 and LossScaleOptimizer need the loss scaled, which the trainer does not do",
        ),
        ("def model():\n    return 3", r"model\(\) returned int; return a keras.Model"),
        ("def model(width):\n    pass", r"model\(\) has the argument width; it may have input_shape and classes"),
        ("def model():\n    raise KeyError('a')", r"model\(\) failed: KeyError: 'a'"),
        (
            "import keras\nclass Own(keras.Sequential):\n    def train_step(self, data): pass\n"
            "def model():\n    return Own([keras.layers.Dense(10)])",
            r"the model overrides train_step, so compile\(\) it with the optimizer that it uses",
        ),
        (
            "import keras\ndef model():\n    x = keras.Input((784,))\n    y = keras.layers.Dense(10)(x)\n"
            "    return keras.Model(x, [y, y])",
            r"the data has no class labels, .*, or the model several outputs; compile\(\) it with a loss",
        ),
        (
            "import keras\ndef model():\n    model = keras.Sequential([keras.layers.Dense(10)])\n"
            "    model.compile(loss={'a': 'mse'})\n    return model",
            r"the loss or the metrics of compile\(\) do not fit the data: ",
        ),
    ],
)
def test_a_file_whose_model_cannot_be_trained_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigurationError, match=rf"mine\.py: {message}"):
        load(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("Adam(gradient_accumulation_steps=2)", "gradient_accumulation_steps accumulates gradients; use a larger"),
        ("Adafactor()", "optimizer=Adafactor: its state does not have the shapes of the variables"),
        ("Nadam()", "optimizer=Nadam: its state does not have the shapes of the variables"),
    ],
)
def test_an_optimizer_whose_state_does_not_fit_is_refused(tmp_path: Path, optimizer: str, message: str) -> None:
    path = write(tmp_path, compiled=f"optimizer={optimizer}, loss={LOSS}")
    with pytest.raises(ConfigurationError, match=message):
        train(path)


@pytest.mark.parametrize(
    "statement", ["import keras", "import tensorflow as tf\nkeras = tf.keras", "from tensorflow import keras"]
)
def test_keras_may_be_imported_in_each_usual_way(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{statement}\ndef model():\n    return keras.Sequential([keras.layers.Dense(10)])\n")
    assert set(load(path)[1]) == {"sequential/dense/kernel", "sequential/dense/bias"}


OWN_PARTS = """
    import keras

    class Gate(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, x):
            return x * self.scale

    def own_loss(y, outputs):
        return keras.ops.mean((y - outputs) ** 2)

    def model():
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3), Gate(), keras.layers.Dense(1)])
        network.compile("sgd", own_loss)
        return network
    """


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras
def test_a_model_of_own_parts_is_loaded_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/your-model.md shows it."""
    page = (Path(__file__).parents[2] / "docs" / "your-model.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"\n\n((?:    .*\n|\n)*?    as_made\.load_weights\(path\)\n)", page)
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(OWN_PARTS))
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # that of another test
    settings = Settings(model=str(path))
    model = model_files.model_of(model_files.load(settings.model), settings)
    assert isinstance(model, KerasModel)
    values = np.ones([8, 3], np.float32)
    arrays = model.parameters(Examples(values, values[:, :1]).signature)
    found = {name: each.value + np.float32(1) for name, each in arrays.items()}
    model.save(tmp_path, found)
    with eager_mode():
        wanted = model.network(values)
        (tmp_path / "shown.py").write_text(textwrap.dedent(code))
        namespace = runpy.run_path(str(tmp_path / "shown.py"), {"path": tmp_path / "model.keras"})
        for name in ("predicts", "trains", "as_made"):
            np.testing.assert_allclose(namespace[name](values), wanted, rtol=1e-5)
        assert namespace["trains"].compiled
