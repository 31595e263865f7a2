"""`trainer report` and `trainer models compare` on trained runs of each kind of model."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainer import cli
from trainer.config import Settings
from trainer.data import digits
from trainer.telemetry.metrics import Metrics
from trainer.tensorflow import tf, tf1
from trainer.training.context import TaskContext
from trainer.training.train import train
from trainer.training.watch.watchdog import Watchdog

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
]

KERAS = """
import keras
def model(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes)])
"""
PLAIN_OPS = """
from trainer.models import Parameter
from trainer.tensorflow import tf
def parameters(image_shape, classes, hidden_units):
    return {"weights": Parameter((784, classes), stddev=0.01)}
def logits(parameters, images):
    return tf.reshape(images, [-1, 784]) @ parameters["weights"]
"""


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains a run in this process; returns its directory."""

    def make(**values: Any) -> Path:
        directory = tmp_path_factory.mktemp("run")
        shared = {"train_steps": 200, "batch_size": 50, "report_steps": 20, "hidden_units": 20, "export": "last"}
        settings = Settings(train_dir=str(directory), **{**shared, **values})
        context = TaskContext(settings, None, Watchdog(60, 1, 1), Metrics("single", 0))
        assert train(context)
        return directory

    return make


@pytest.fixture(scope="module")
def runs(make_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs of each kind of model, on digits."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "net.py").write_text(KERAS)
    (folder / "linear.py").write_text(PLAIN_OPS)
    models = {"mlp": "mlp", "keras": str(folder / "net.py"), "ops": str(folder / "linear.py")}
    return {name: make_run(model=model) for name, model in models.items()}


def served(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """The labels of the held-out digits, and what the exported model predicts, by TensorFlow itself."""
    _, test = digits.load()
    (folder,) = (run / "export").iterdir()
    with tf.Graph().as_default(), tf1.Session() as session:
        serving = tf1.saved_model.load(session, ["serve"], str(folder)).signature_def["serving_default"]
        feed = {serving.inputs["images"].name: test.inputs}
        return test.targets, session.run(serving.outputs["probabilities"].name, feed).argmax(axis=1)


@pytest.mark.parametrize("kind", ["mlp", "keras", "ops"])
def test_a_page_of_each_kind_of_model_has_what_it_has_misread(
    runs: dict[str, Path], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["report", str(runs[kind]), "--output", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    labels, predicted = served(runs[kind])
    wrong = int((labels != predicted).sum())
    assert 0 < wrong < 60
    assert f"has {wrong} of 360 examples wrong" in text
    assert text.count('src="data:image/png') == wrong
    assert json.loads((runs[kind] / "result.json").read_text())["dataset_digest"] in text
    assert len(text) < 1_000_000


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `trainer WORDS…` in this process; returns its exit code and its output."""

    def run(*words: str | Path) -> tuple[int, str]:
        code = cli.main([*map(str, words)])
        return code, "".join(capsys.readouterr())

    return run


def test_a_foreign_directory_is_refused(command: Command, tmp_path: Path) -> None:
    code, output = command("report", tmp_path)
    assert code == 2
    assert output.startswith(f"trainer: DIR: {tmp_path} is not a training directory")
    assert len(output.splitlines()) == 1


def write_data(folder: Path, classes: int, size: int, seed: int = 0) -> Path:
    """Images of noise with labels."""
    folder.mkdir()
    images = np.random.default_rng(seed).random((100, size, size), np.float32)
    np.savez(folder / "all.npz", x=images, y=np.arange(100) % classes)
    return folder


def test_a_page_leaves_out_the_confusions_if_the_data_is_absent_or_has_changed(
    command: Command, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write_data(tmp_path / "data", 3, 8)
    run = make_run(dataset="npz", data_dir=str(folder))
    shutil.rmtree(folder)
    assert command("report", run)[0] == 0
    assert "There is no confusion matrix: data_dir=" in (run / "report.html").read_text()
    write_data(folder, 3, 8, seed=1)
    assert command("report", run)[0] == 0
    assert "the data has changed since the run" in (run / "report.html").read_text()


def test_a_page_has_the_confusions_of_data_that_is_named(
    command: Command, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    """As of a run on a cluster, whose volume had the data."""
    folder = write_data(tmp_path / "data", 3, 8)
    run = make_run(dataset="npz", data_dir=str(folder))
    moved = folder.rename(tmp_path / "moved")
    assert command("report", run)[0] == 0
    assert "name it with --dataset and --data_dir" in (run / "report.html").read_text()
    for words in (["--data_dir", moved], ["--dataset", "npz", "--data_dir", moved]):
        assert command("report", run, *words) == (0, f"{run / 'report.html'}\n")
        assert "There is no confusion matrix" not in (run / "report.html").read_text()
    other = write_data(tmp_path / "other", 3, 8, seed=1)
    for place, sentence in ((folder, "data_dir="), (other, "the data has changed since the run")):
        code, output = command("report", run, "--data_dir", place)
        assert code == 2
        assert output.startswith(f"trainer: {sentence}")


def compare(command: Command, *words: str | Path) -> dict[str, Any]:
    code, output = command("models", "compare", *words, "--json")
    assert code == 0, output
    return dict(json.loads(output))


def test_two_models_are_compared_on_the_same_examples(command: Command, runs: dict[str, Path], tmp_path: Path) -> None:
    found = compare(command, runs["mlp"], runs["ops"], "--html", tmp_path / "page.html")
    (labels, first), (_, second) = served(runs["mlp"]), served(runs["ops"])
    assert found["examples"] == 360
    assert [each["right"] for each in found["models"]] == [(first == labels).sum(), (second == labels).sum()]
    assert found["only_first_right"] == ((first == labels) & (second != labels)).sum()
    assert found["neither_right"] == ((first != labels) & (second != labels)).sum()
    assert found["different_predictions"] == (first != second).sum() > 0
    assert (tmp_path / "page.html").read_text().count('src="data:image/png') == (first != second).sum()


def test_models_are_export_folders_or_saved_models_too(command: Command, runs: dict[str, Path]) -> None:
    (saved,) = (runs["mlp"] / "export").iterdir()
    words = [runs["mlp"] / "export", saved]
    found = compare(command, *words, "--dataset", "digits")
    assert found["different_predictions"] == 0
    assert found["mcnemar_p"] == 1
    code, output = command("models", "compare", *words, "--data", "digits")
    assert code == 0
    assert "The models predict the same for each example." in output
    code, output = command("models", "compare", *words)
    assert code == 2
    assert output.startswith("trainer: dataset: neither A nor B is the directory of a run")


def test_a_run_whose_data_is_elsewhere_is_compared_on_data_that_is_named(
    command: Command, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write_data(tmp_path / "data", 3, 8)
    run = make_run(dataset="npz", data_dir=str(folder))
    moved = folder.rename(tmp_path / "moved")
    code, output = command("models", "compare", run, run)
    assert code == 2
    assert output.endswith("; if the data of the run is elsewhere, name it with --dataset and --data_dir.\n")
    assert compare(command, run, run, "--dataset", "npz", "--data_dir", moved)["different_predictions"] == 0


def test_a_comparison_on_absent_data_neither_fetches_it_nor_makes_its_folder(
    command: Command, runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    code, output = command("models", "compare", runs["mlp"], runs["mlp"], "--dataset=mnist", "--data_dir", folder)
    assert code == 2
    assert output == (
        f"trainer: data_dir={folder} contains neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz; add the "
        "file, which a training with download=true fetches.\n"
    )
    assert not folder.exists()


def shift(data: bytes) -> bytes:
    return data[:5000] + bytes(255 - byte for byte in data[5000:5100]) + data[5100:]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param(lambda model: (model / "saved_model.pb").unlink(), "is not a model", id="absent"),
        pytest.param(
            lambda model: (model / "saved_model.pb").write_bytes(b"garbage"), "is incomplete or altered", id="no graph"
        ),
        pytest.param(
            lambda model: [
                file.write_bytes(shift(file.read_bytes())) for file in model.glob("variables/variables.data-*")
            ],
            "is incomplete or altered",
            id="other weights",
        ),
    ],
)
def test_an_altered_model_is_refused(
    command: Command, runs: dict[str, Path], tmp_path: Path, change: Callable[[Path], object], sentence: str
) -> None:
    (saved,) = (runs["mlp"] / "export").iterdir()
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    change(copy)
    code, output = command("models", "compare", runs["mlp"], copy)
    assert code == 2, output
    assert output.startswith("trainer: B: ")
    assert sentence in output
    assert len(output.splitlines()) == 1


def test_models_and_data_that_do_not_fit_are_refused(
    command: Command, runs: dict[str, Path], make_run: Callable[..., Path], tmp_path: Path
) -> None:
    three = make_run(dataset="npz", data_dir=str(write_data(tmp_path / "three", 3, 28)))
    small = make_run(dataset="npz", data_dir=str(write_data(tmp_path / "small", 10, 8)))
    for words, sentence in (
        ((runs["mlp"], three), "knows 10 classes, but B"),
        (
            (runs["mlp"], small),
            "takes images float32 (None, 8, 8, 1), but an example of the data is images float32 [28",
        ),
        ((three, three, "--dataset", "digits"), "knows 3 classes, but the data has labels up to 9"),
    ):
        code, output = command("models", "compare", *words)
        assert code == 2, output
        assert sentence in output


def summaries(run: Path) -> dict[str, Any]:
    """The last summary of each tag of the held-out split."""
    events = [event for file in (run / "test").glob("events.*") for event in tf1.train.summary_iterator(str(file))]
    return {value.tag: value for event in events for value in event.summary.value}


def test_tensorboard_gets_misread_examples_and_histograms(runs: dict[str, Path]) -> None:
    for kind, weights in (("mlp", "hidden/weights"), ("ops", "weights")):
        found = summaries(runs[kind])
        picture = Image.open(io.BytesIO(found["misread"].image.encoded_image_string))
        labels, predicted = served(runs[kind])
        shown = min(int((labels != predicted).sum()), 24)
        rows, columns = -(-shown // 8), min(shown, 8)
        assert picture.size == (columns * 30 - 2, rows * 37 - 2)
        histogram = found[f"weights/{weights}"].histo
        assert sum(histogram.bucket) == histogram.num == 784 * (20 if kind == "mlp" else 10)
        assert histogram.min < 0 < histogram.max


@pytest.mark.parametrize(("kind", "features"), [("mlp", 20), ("keras", 784), ("ops", 784)])
def test_the_projector_gets_the_last_hidden_layer(runs: dict[str, Path], kind: str, features: int) -> None:
    folder = runs[kind] / "test"
    tensor = np.loadtxt(folder / "embedding" / "tensor.tsv", delimiter="\t")
    assert tensor.shape == (360, features)
    labels, predicted = served(runs[kind])
    rows = (folder / "embedding" / "metadata.tsv").read_text().splitlines()[1:]
    assert [tuple(map(int, row.split("\t")[:2])) for row in rows] == [*zip(labels, predicted, strict=True)]
    with Image.open(folder / "embedding" / "sprite.png") as sprite:
        assert sprite.size == (19 * 28, 19 * 28)
    assert "embedding/tensor.tsv" in (folder / "projector_config.pbtxt").read_text()
    if kind == "mlp":
        reader = tf1.train.load_checkpoint(str(runs[kind]))
        images = digits.load()[1].inputs.reshape(360, -1)
        expected = np.maximum(images @ reader.get_tensor("hidden/weights") + reader.get_tensor("hidden/biases"), 0)
        assert np.allclose(tensor, expected, rtol=1e-3, atol=1e-3)


def test_a_model_of_something_else_has_histograms_only_and_is_not_compared(
    make_run: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data" / "all.npz", x=random.random((100, 5), np.float32), y=random.random(100))
    (tmp_path / "net.py").write_text(
        "import keras\ndef model():\n    net = keras.Sequential([keras.layers.Dense(1)])\n"
        "    net.compile('adam', 'mse')\n    return net\n"
    )
    run = make_run(model=str(tmp_path / "net.py"), dataset="npz", data_dir=str(tmp_path / "data"))
    found = summaries(run)
    assert "misread" not in found
    assert any(tag.startswith("weights/") for tag in found)
    assert not (run / "test" / "projector_config.pbtxt").exists()
    code, output = command("models", "compare", run, run)
    assert code == 2
    assert output.startswith(
        f"trainer: A: the model {run} is not a classifier: an output probabilities [n, classes], or one "
    )


TWO_CLASSES = """
import keras
import numpy as np
def data(seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(300, 4)).astype("float32")
    labels = (x.sum(1) + random.normal(size=300) > 0).astype("int32")
    return x, {targets}
def train_data(context):
    return data(0)
def test_data(context):
    return data(1)
def model():
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense({units}, {activation})])
    network.compile(keras.optimizers.Adam(0.05), {loss}, metrics=[{accuracy}, keras.metrics.AUC(name="auc", {auc})])
    return network
"""
LOGITS = {
    "loss": "keras.losses.BinaryCrossentropy(from_logits=True)",
    "activation": "None",
    "accuracy": "keras.metrics.BinaryAccuracy('accuracy', threshold=0.0)",
    "auc": "from_logits=True",
}
SIGMOID = {
    "units": "1",
    "activation": "'sigmoid'",
    "loss": "'binary_crossentropy'",
    "accuracy": "'accuracy'",
    "auc": "",
}


def write_two_classes(file: Path, content: str, **text: str) -> None:
    """Write a model file; the text has what differs from a sigmoid and the binary cross entropy."""
    for name, value in {**SIGMOID, **text}.items():
        content = content.replace(f"{{{name}}}", value)
    file.write_text(content)


@pytest.mark.parametrize(
    "text",
    [
        {"targets": "labels.astype('float32')"},
        {"targets": "labels[:, None]", **LOGITS},
        {"targets": "labels", "loss": "'mse'"},  # the graph says that it ends in a sigmoid
        {"targets": "np.eye(2)[labels]", "units": "2", "activation": "'softmax'", "loss": "'categorical_crossentropy'"},
    ],
    ids=["labels 1.0 and 0.0", "logits", "mean squared error", "one of two"],
)
def test_two_classes_by_one_output_are_compared_and_shown_as_by_two(
    make_run: Callable[..., Path], command: Command, tmp_path: Path, text: dict[str, str]
) -> None:
    write_two_classes(tmp_path / "net.py", TWO_CLASSES, **text)
    first, second = (make_run(model=str(tmp_path / "net.py"), train_steps=steps) for steps in (5, 60))
    results = [json.loads((run / "result.json").read_text()) for run in (first, second)]
    found = compare(command, first, second)
    assert found["examples"] == 300
    for result, each in zip(results, found["models"], strict=True):
        assert each["accuracy"] == pytest.approx(result["test_accuracy"], abs=1e-4)
        assert each["auc"] == pytest.approx(result["test_auc"], abs=0.01)  # of Keras, with 200 thresholds
    code, output = command("models", "compare", first, second, "--html", tmp_path / "page.html")
    assert (code, "AUC" in output) == (0, True)
    assert "AUC of B" in (tmp_path / "page.html").read_text()
    code, output = command("report", second, "--output", "-")
    assert code == 0
    auc = found["models"][1]["auc"]
    for wanted in (
        "Confusion matrix",
        "ROC curve of 1",
        "Precision and recall of 1",
        f"<dd>{auc:.4f}<small>of class 1",
    ):
        assert wanted in output


def test_labels_that_are_values_have_no_confusions(
    make_run: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    write_two_classes(tmp_path / "net.py", TWO_CLASSES, targets="0.3 * labels")
    run = make_run(model=str(tmp_path / "net.py"), train_steps=5)
    code, output = command("report", run, "--output", "-")
    assert code == 0
    assert "There is no confusion matrix: the examples have no class labels" in output


def test_a_page_on_a_model_of_two_values_has_no_confusions(
    make_run: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    given = {"targets": "x[:, :2]", "units": "2", "activation": "None", "loss": "'mse'"}
    content = TWO_CLASSES.replace(', metrics=[{accuracy}, keras.metrics.AUC(name="auc", {auc})]', "")
    write_two_classes(tmp_path / "net.py", content, **given)
    run = make_run(model=str(tmp_path / "net.py"), train_steps=5)
    code, output = command("report", run, "--output", "-")
    assert code == 0
    assert "There is no confusion matrix: the examples have no class labels" in output
    code, output = command("models", "compare", run, run)
    assert code == 2
    assert "the examples have no class labels" in output
