"""`trainer report` and `trainer models compare` on runs of real processes."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes.trainers import Trainer, wait_for_line, wait_until

SHORT = ["--train_steps", "300", "--batch_size", "50", "--report_steps", "20", "--hidden_units", "20"]
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


def train(trainer: Trainer, directory: str, *words: str) -> Path:
    code, output = trainer.run("train", "--train_dir", directory, *SHORT, *words)
    assert code == 0, output
    return trainer.folder / directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs of each kind of model."""
    trainer = Trainer(tmp_path_factory.mktemp("runs"))
    (trainer.folder / "net.py").write_text(KERAS)
    (trainer.folder / "linear.py").write_text(PLAIN_OPS)
    models = {"mlp": "mlp", "keras": "net.py", "ops": "linear.py"}
    return {name: train(trainer, name, "--model", model) for name, model in models.items()}


def served(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """The labels of the held-out digits, and what the exported model predicts, by TensorFlow itself."""
    from trainer.data import digits
    from trainer.tensorflow import tf, tf1

    _, test = digits.load()
    (folder,) = (run / "export").iterdir()
    with tf.Graph().as_default(), tf1.Session() as session:
        serving = tf1.saved_model.load(session, ["serve"], str(folder)).signature_def["serving_default"]
        feed = {serving.inputs["images"].name: test.inputs}
        return test.targets, session.run(serving.outputs["probabilities"].name, feed).argmax(axis=1)


@pytest.mark.parametrize("kind", ["mlp", "keras", "ops"])
def test_a_page_of_each_kind_of_model_has_what_it_has_misread(
    trainer: Trainer, runs: dict[str, Path], kind: str
) -> None:
    code, output = trainer.run("report", runs[kind], "--output", "page.html")
    assert (code, output) == (0, "page.html\n")
    text = (trainer.folder / "page.html").read_text()
    labels, predicted = served(runs[kind])
    wrong = int((labels != predicted).sum())
    assert 0 < wrong < 60
    assert f"has {wrong} of 360 examples wrong" in text
    assert text.count('src="data:image/png') == wrong
    assert json.loads((runs[kind] / "result.json").read_text())["dataset_digest"] in text
    assert len(text) < 1_000_000


def test_a_page_is_written_while_the_run_goes_on_and_after_it_was_stopped(trainer: Trainer) -> None:
    words = ["--train_steps", "1000000", "--train_dir", "run", "--report_steps", "20"]
    process = trainer.start("launch", "--ps", "1", "--workers", "1", *words)
    wait_for_line(trainer.folder / "run" / "logs" / "worker-0.log", '"progress"')
    code, output = trainer.run("report", "run")
    assert code == 0, output
    page = trainer.folder / "run" / "report.html"
    assert '<span class="state running">' in page.read_text()
    assert "needs the exported model" in page.read_text()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert trainer.run("report", "run")[0] == 0
    assert '<span class="state stopped">' in page.read_text()


def test_a_page_of_a_failed_run_says_why(trainer: Trainer) -> None:
    (trainer.folder / "bad.py").write_text(PLAIN_OPS.replace("(784, classes)", "(7, classes)"))
    code, _ = trainer.run("launch", "--ps", "0", "--workers", "1", "--strategy", "allreduce", "--model", "absent.py")
    assert code == 2
    code, output = trainer.run("launch", "--ps", "1", "--workers", "1", "--train_dir", "run", "--model", "absent.py")
    assert code == 2, output
    code, output = trainer.run("report", "run")
    assert code == 0, output
    text = (trainer.folder / "run" / "report.html").read_text()
    assert '<span class="state failed">' in text
    assert "ended with code 2: model=&#x27;absent.py&#x27;" in text


def test_a_page_tells_restarts_lost_tasks_and_restored_checkpoints(trainer: Trainer) -> None:
    words = ["--train_steps", "1000000", "--train_dir", "run", "--report_steps", "20", "--save_steps", "200"]
    process = trainer.start("launch", "--ps", "1", "--workers", "1", *words)
    run = trainer.folder / "run"
    wait_until(lambda: list(run.glob("model.ckpt-*.index")))
    trainer.task("ps").kill()
    wait_for_line(run / "logs" / "worker-0.log", '"restored"')
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert trainer.run("report", "run")[0] == 0
    faults = (run / "report.html").read_text().partition('id="faults"')[2].partition("</section>")[0]
    assert "started again, start 2" in faults
    assert "lost a parameter server" in faults
    assert "restored run/model.ckpt-" in faults


def test_a_foreign_directory_is_refused(trainer: Trainer) -> None:
    code, output = trainer.run("report", ".")
    assert code == 2
    assert output.startswith("trainer: DIR: . is no training directory")
    assert len(output.splitlines()) == 1


def test_a_page_leaves_out_the_confusions_if_the_data_is_absent(trainer: Trainer, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "all.npz", x=random.random((100, 8, 8), np.float32), y=random.integers(0, 3, 100))
    train(trainer, "run", "--dataset", "npz", "--data_dir", str(folder))
    shutil.rmtree(folder)
    assert trainer.run("report", "run")[0] == 0
    assert "There is no confusion matrix: data_dir=" in (trainer.folder / "run" / "report.html").read_text()
    np.savez(tmp_path / "all.npz", x=random.random((100, 8, 8), np.float32), y=random.integers(0, 3, 100))
    folder.mkdir()
    shutil.move(tmp_path / "all.npz", folder)
    assert trainer.run("report", "run")[0] == 0
    assert "the data has changed since the run" in (trainer.folder / "run" / "report.html").read_text()


def compare(trainer: Trainer, *words: str | Path) -> dict[str, Any]:
    code, output = trainer.run("models", "compare", *words, "--json")
    assert code == 0, output
    return dict(json.loads(output))


def test_two_models_are_compared_on_the_same_examples(trainer: Trainer, runs: dict[str, Path]) -> None:
    found = compare(trainer, runs["mlp"], runs["ops"], "--html", "page.html")
    (labels, first), (_, second) = served(runs["mlp"]), served(runs["ops"])
    assert found["examples"] == 360
    assert [each["right"] for each in found["models"]] == [(first == labels).sum(), (second == labels).sum()]
    assert found["only_first_right"] == ((first == labels) & (second != labels)).sum()
    assert found["neither_right"] == ((first != labels) & (second != labels)).sum()
    assert found["different_predictions"] == (first != second).sum() > 0
    assert (trainer.folder / "page.html").read_text().count('src="data:image/png') == (first != second).sum()


def test_models_are_export_folders_or_saved_models_too(trainer: Trainer, runs: dict[str, Path]) -> None:
    (saved,) = (runs["mlp"] / "export").iterdir()
    words = [runs["mlp"] / "export", saved]
    found = compare(trainer, *words, "--dataset", "digits")
    assert found["different_predictions"] == 0
    assert found["mcnemar_p"] == 1
    code, output = trainer.run("models", "compare", *words)
    assert (code, output.partition(": ")[2].partition(":")[0]) == (2, "dataset")


def shift(data: bytes) -> bytes:
    return data[:5000] + bytes(255 - byte for byte in data[5000:5100]) + data[5100:]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param(lambda model: (model / "saved_model.pb").unlink(), "is no model", id="absent"),
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
    trainer: Trainer, runs: dict[str, Path], change: Callable[[Path], object], sentence: str
) -> None:
    (saved,) = (runs["mlp"] / "export").iterdir()
    copy = trainer.folder / "copy"
    shutil.copytree(saved, copy)
    change(copy)
    code, output = trainer.run("models", "compare", runs["mlp"], copy)
    assert code == 2, output
    assert output.startswith("trainer: B: ")
    assert sentence in output
    assert len(output.splitlines()) == 1


def test_models_and_data_that_do_not_fit_are_refused(trainer: Trainer, runs: dict[str, Path], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for classes, size in ((3, 28), (10, 8)):
        folder = tmp_path / f"data{classes}"
        folder.mkdir()
        labels = np.arange(100) % classes
        np.savez(folder / "all.npz", x=random.random((100, size, size), np.float32), y=labels)
        train(trainer, f"run{classes}", "--dataset", "npz", "--data_dir", str(folder))
    code, output = trainer.run("models", "compare", runs["mlp"], "run3")
    assert code == 2
    assert "10 classes" in output
    assert "3 classes" in output
    code, output = trainer.run("models", "compare", runs["mlp"], "run10")
    assert code == 2
    assert "B: the model run10/export/300 takes images float32 (None, 8, 8, 1)" in output
    code, output = trainer.run("models", "compare", "run3", "run3", "--dataset", "digits")
    assert code == 2
    assert "knows 3 classes, but the data has labels up to 9" in output
