"""`trainer models publish` and `compare` with a real MLflow server."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from hack.ports import free_ports
from tests.processes.mlflow_servers import MlflowServer, pairs
from tests.processes.object_stores import ObjectStore
from tests.processes.trainers import Trainer, wait_until
from trainer.run_directory import curves
from trainer.run_directory.run import RUNNING_SECONDS

LOADING = """
import sys
import mlflow, numpy as np
from trainer.data import digits
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
test = digits.load()[1]
found = np.asarray(model.predict({"images": np.asarray(test.inputs)})["probabilities"])
print("accuracy", (found.argmax(axis=1) == test.targets).mean())
try:
    model.predict({"images": np.zeros((3, 5), np.float32)})
except mlflow.MlflowException as error:
    print("refused", "schema" in str(error))
"""
"""What a user does with a registered model: MLflow's own loader, and examples of another shape."""


SERVING = """
import sys, types
import numpy as np
from trainer import cli
from trainer.data import digits
from trainer.serving import serve

def ask(source, predictor, *rest):
    test = digits.load()[1]
    found = predictor.predict({"images": test.inputs})["probabilities"]
    print(source.name, source.version, (found.argmax(axis=1) == test.targets).mean())

sys.modules["trainer.serving.kserve_model"] = types.SimpleNamespace(serve=ask)
sys.exit(cli._code_of(lambda: serve.run(serve.read(sys.argv[1:]))))
"""
"""`trainer serve` with a call of the predictor in place of KServe's server, which is in the model's image only."""


PROGRAM = """
import json, sys
import keras, numpy as np, tensorflow as tf
folder = sys.argv[1]
model = keras.Sequential([keras.Input((4,), name="features"), keras.layers.Dense(3, activation="softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
inputs, targets = np.eye(4, dtype=np.float32).repeat(4, 0), np.arange(16) % 3
board = keras.callbacks.TensorBoard(folder)
found = model.fit(inputs, targets, epochs=3, validation_data=(inputs, targets), callbacks=[board], verbose=0)
with tf.summary.create_file_writer(f"{folder}/own").as_default():
    for step in range(5):
        tf.summary.scalar("lr", 1 / (step + 1), step)
        tf.summary.text("note", "no number", step)
model.export(f"{folder}/export/1", verbose=False)
tf.saved_model.save(tf.Module(), f"{folder}/without signature")
print(json.dumps({"history": found.history, "outputs": model.predict(inputs, verbose=0).tolist()}))
"""
"""A program that does not know the trainer: Keras with TensorBoard, `tf.summary`, and two SavedModels."""

PREDICTING = """
import json, sys
import mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
(name,) = model.metadata.get_input_schema().input_names()
(found,) = model.predict({name: np.eye(4, dtype=np.float32).repeat(4, 0)}).values()
print(json.dumps({"name": name, "outputs": np.asarray(found).tolist()}))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A running server."""
    found = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    starter = Trainer(tmp_path_factory.mktemp("trained"))
    code, output = starter.run("train", "--train_dir", "run", "--train_steps", "200", "--report_steps", "20")
    starter.end()
    assert code == 0, output
    return starter.folder / "run"


def publish(
    trainer: Trainer, server: MlflowServer, directory: Path | str, *words: str, **environment: Any
) -> dict[str, Any]:
    """Run `trainer models publish` to its successful end; return what it prints."""
    address = ["--tracking_uri", server.uri]
    code, output = trainer.run("models", "publish", directory, *address, "--json", *words, **environment)
    assert code == 0, output
    return dict(json.loads(output))


def info(server: MlflowServer, run: str) -> dict[str, Any]:
    """The state of a run and its times, as the server has them."""
    return dict(server.get("runs/get", run_id=run)["run"]["info"])


def age(folder: Path, seconds: float) -> None:
    """Let all files of a folder be older."""
    for file in folder.rglob("*"):
        written = file.stat().st_mtime - seconds
        os.utime(file, (written, written))


def points(server: MlflowServer, run: str, metric: str) -> list[dict[str, Any]]:
    """The points of a metric."""
    return list(server.get("metrics/get-history", run_id=run, metric_key=metric, max_results="10000")["metrics"])


def history(server: MlflowServer, run: str, metric: str) -> dict[int, float]:
    """The values of a metric by step."""
    return {int(each.get("step", 0)): float(each["value"]) for each in points(server, run, metric)}


def history_times(server: MlflowServer, run: str, metric: str) -> dict[int, int]:
    """The times of a metric by step, in milliseconds."""
    return {int(each.get("step", 0)): int(each["timestamp"]) for each in points(server, run, metric)}


def test_a_run_is_logged_while_it_goes_on_and_its_model_is_registered_at_its_end(
    trainer: Trainer, server: MlflowServer
) -> None:
    words = ["--train_dir", "run", "--report_steps", "200", "--save_steps", "200", "--export", "last"]
    process = trainer.start("train", *words, "--train_steps", "1000000")
    directory = trainer.folder / "run"
    wait_until(lambda: list(directory.glob("model.ckpt-*.index")))
    first = publish(trainer, server, "run", "--experiment", "digits", "--model", "going on")
    assert first["new_points"] > 0
    assert first["version"] is None
    assert server.get("runs/get", run_id=first["run_id"])["run"]["info"]["status"] == "RUNNING"
    assert server.versions("going on") == []
    process.send_signal(signal.SIGTERM)
    process.communicate()
    saved = max(int(each.stem.rpartition("-")[2]) for each in directory.glob("model.ckpt-*.index"))
    code, output = trainer.run("train", *words, "--train_steps", str(saved + 200))
    assert code == 0, output

    words = ["--experiment", "digits", "--model", "going on", "--tag", "image=mine"]
    second = publish(trainer, server, "run", *words, IMAGE_DIGEST="sha256:1")
    assert second["run_id"] == first["run_id"]
    assert second["differing_settings"] == ["train_steps"]
    assert (second["version"], second["is_new_version"]) == ("1", True)
    third = publish(trainer, server, "run", "--experiment", "digits", "--model", "going on")
    assert (third["new_points"], third["version"], third["is_new_version"]) == (0, "1", False)

    logged = server.get("runs/get", run_id=first["run_id"])["run"]
    result = json.loads((directory / "result.json").read_text())
    tags, parameters = pairs(logged["data"]["tags"]), pairs(logged["data"]["params"])
    assert logged["info"]["status"] == "FINISHED"
    assert tags["dataset_digest"] == result["dataset_digest"]
    assert (tags["image"], tags["image_digest"]) == ("mine", "sha256:1")
    settings = yaml.safe_load((directory / "settings.yaml").read_text())
    assert parameters["learning_rate"] == str(settings["learning_rate"])
    assert parameters["train_steps"] == "1000000"
    (dataset,) = logged["inputs"]["dataset_inputs"]
    assert dataset["dataset"]["name"] == "digits"
    for split in ("train", "test"):
        for tag, curve in curves.read(directory / split).items():
            found = history(server, first["run_id"], f"{split}/{tag}")
            points = dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))
            assert found.items() >= points.items()
    assert history(server, first["run_id"], "test_accuracy") == {saved + 200: result["test_accuracy"]}

    (version,) = server.versions("going on")
    assert version["run_id"] == first["run_id"]
    assert version["tags"]["dataset_digest"] == result["dataset_digest"]
    assert (version["tags"]["image"], version["tags"]["image_digest"]) == ("mine", "sha256:1")
    process = trainer.python("-c", LOADING, server.uri, "models:/going on/1")
    output, _ = process.communicate()
    said = dict(line.split() for line in output.splitlines() if line.startswith(("accuracy ", "refused ")))
    assert said.keys() == {"accuracy", "refused"}, output
    assert float(said["accuracy"]) == pytest.approx(result["test_accuracy"], abs=1e-4)
    assert said["refused"] == "True"


@pytest.mark.long
def test_the_run_of_a_directory_on_an_object_store_is_found_again(
    trainer: Trainer, server: MlflowServer, store: ObjectStore
) -> None:
    uri, environment = store.uri("mine"), dict[str, Any](store.environment)
    code, output = trainer.run("train", "--train_dir", uri, "--train_steps", "100", **environment)
    assert code == 0, output
    words = ["models", "publish", uri, "--tracking_uri", server.uri, "--model", "stored", "--json"]
    outputs = [trainer.run(*words, **environment) for _ in range(2)]
    first, second = (json.loads(output) for code, output in outputs)
    assert second == {**first, "new_points": 0, "is_new_version": False}
    assert first["version"] == "1"
    run = server.get("runs/get", run_id=first["run_id"])["run"]
    assert pairs(run["data"]["tags"])["mlflow.source.name"] == uri
    assert run["info"]["end_time"] == history_times(server, first["run_id"], "test_accuracy")[100], "not that of copies"


@pytest.mark.long
def test_an_export_of_the_same_step_leaves_the_files_of_earlier_versions_alone(
    trainer: Trainer, server: MlflowServer, run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    (data,) = (tmp_path / "run" / "export").glob("*/data.json")
    assert publish(trainer, server, tmp_path / "run", "--model", "again")["version"] == "1"
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best"]
    expected = {name: str(best[name]) for name in ("global_step", "test_accuracy")}
    assert server.versions("again")[0]["tags"].items() >= expected.items(), "those of the export, not of the last step"
    data.write_text(data.read_text() + "\n")
    assert publish(trainer, server, tmp_path / "run", "--model", "again")["version"] == "2"
    words = ["models", "compare", "--tracking_uri", server.uri, "--data", "digits", "--json"]
    code, output = trainer.run(*words, "models:/again/1", "models:/again/2")
    assert code == 0, output  # the digest of each is checked


@pytest.mark.long
def test_a_failed_run_is_logged_as_failed(trainer: Trainer, server: MlflowServer) -> None:
    (trainer.folder / "mine.py").write_text("def model():\n    raise ValueError('no layers')\n")
    code, output = trainer.run("launch", "--ps", "1", "--workers", "1", "--train_dir", "run", "--model", "mine.py")
    assert code == 2, output
    logged = publish(trainer, server, "run")
    assert logged["version"] is None
    assert server.get("runs/get", run_id=logged["run_id"])["run"]["info"]["status"] == "FAILED"


@pytest.mark.long
def test_a_run_that_has_been_killed_without_a_word_does_not_stay_running(
    trainer: Trainer, server: MlflowServer
) -> None:
    words = ["train", "--train_dir", "run", "--save_steps", "200", "--train_steps", "1000000"]
    directory = trainer.folder / "run"
    process = trainer.start(*words)
    wait_until(lambda: list(directory.glob("model.ckpt-*.index")))
    process.kill()
    process.communicate()
    run = publish(trainer, server, "run")["run_id"]
    assert info(server, run)["status"] == "RUNNING", "it has written something a moment ago"
    age(directory, RUNNING_SECONDS)
    code, output = trainer.run("models", "publish", "run", "--tracking_uri", server.uri)
    assert code == 0, output
    assert "state   killed: nothing was written for 3 minutes; if the run goes on, publish it again\n" in output
    found = info(server, run)
    assert found["status"] == "KILLED"
    updated = datetime.fromisoformat(json.loads((directory / "result.json").read_text())["updated"])
    assert found["end_time"] == int(updated.timestamp() * 1000), "not the time of this call"

    written = (directory / "result.json").stat().st_mtime
    process = trainer.start(*words)
    wait_until(lambda: (directory / "result.json").stat().st_mtime > written)
    assert publish(trainer, server, "run")["run_id"] == run
    assert info(server, run)["status"] == "RUNNING"
    process.kill()
    process.communicate()


@pytest.mark.long
def test_a_run_on_an_object_store_is_silent_since_the_store_was_written(
    trainer: Trainer, server: MlflowServer, store: ObjectStore
) -> None:
    (store.folder / "begun").mkdir()
    (store.folder / "begun" / "run.json").write_text('{"model": "mlp"}')
    states = []
    for seconds in (0, RUNNING_SECONDS):
        age(store.folder / "begun", seconds)
        run = publish(trainer, server, store.uri("begun"), **store.environment)["run_id"]
        states.append(info(server, run)["status"])
    assert states == ["RUNNING", "KILLED"]


@pytest.mark.long
def test_what_a_program_of_ones_own_has_written_is_published(
    trainer: Trainer, server: MlflowServer, store: ObjectStore
) -> None:
    def say(*words: str) -> dict[str, Any]:
        output, _ = trainer.python("-c", *words).communicate()
        return dict(json.loads(output.splitlines()[-1]))

    said = say(PROGRAM, "mine")
    directory = trainer.folder / "mine"
    (directory / "logs").mkdir()
    (directory / "logs" / "worker-0.log").write_text("epoch 1\n")
    (directory / "result.json").write_text("[]")
    first = publish(trainer, server, "mine", "--model", "own")
    assert (first["version"], server.versions("own")) == (None, [])
    assert info(server, first["run_id"])["status"] == "RUNNING"
    assert history(server, first["run_id"], "own/lr") == pytest.approx({step: 1 / (step + 1) for step in range(5)})
    for split, name in (("train", "loss"), ("validation", "val_loss")):
        expected = dict(enumerate(said["history"][name]))
        assert history(server, first["run_id"], f"{split}/epoch_loss") == pytest.approx(expected)

    words = [
        "--model",
        "own",
        "--done",
        "--param",
        "steps=3",
        "--param",
        f"command={'x' * 7000}",
        "--tag",
        "image=mine:1",
    ]
    second = publish(trainer, server, "mine", *words)
    run = {"run_id": first["run_id"], "new_points": 0, "model": "own", "version": "1", "differing_settings": []}
    assert second == {**run, "is_new_version": True}
    (directory / "export" / "1" / "notes.txt").write_text("not of the SavedModel")
    assert publish(trainer, server, "mine", *words) == {**run, "is_new_version": False}

    logged = server.get("runs/get", run_id=first["run_id"])["run"]
    assert logged["info"]["status"] == "FINISHED"
    parameters = pairs(logged["data"]["params"])
    assert parameters == {"steps": "3", "command": f"{'x' * 5997}..."}
    assert pairs(logged["data"]["tags"])["image"] == "mine:1"
    (version,) = server.versions("own")
    assert version["run_id"] == first["run_id"]
    assert version["tags"].keys() == {"image", "export_digest"}, "nothing else is known"
    assert say(PREDICTING, server.uri, "models:/own/1") == {
        "name": "features",
        "outputs": [pytest.approx(row, abs=1e-6) for row in said["outputs"]],
    }

    ignored = shutil.ignore_patterns("mlflow.json", "notes.txt")
    shutil.copytree(directory, store.folder / "mine", ignore=ignored)
    stored = publish(trainer, server, store.uri("mine"), *words, **store.environment)
    assert stored["run_id"] != first["run_id"]
    assert (stored["version"], stored["is_new_version"]) == ("1", False), "it has the same digest"

    for folder in ("export", "own"):
        shutil.rmtree(directory / folder)
    code, output = trainer.run("models", "publish", "mine", "--tracking_uri", server.uri, "--done")
    assert code == 0, output
    assert "model   none: no SavedModel there has the signature serving_default\n" in output


@pytest.mark.long
def test_nothing_is_lost_if_mlflow_is_down_or_goes_down(trainer: Trainer, server: MlflowServer, run: Path) -> None:
    words = ["models", "publish", str(run), "--model", "later"]
    once: dict[str, Any] = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    before = len(server.runs())
    server.stop()
    code, output = trainer.run(*words, "--tracking_uri", server.uri, **once)
    assert code == 138, output
    assert output.startswith(f"trainer: tracking_uri={server.uri}: MLflow does not respond (")
    assert "Connection refused" in output
    assert output.endswith("; nothing is lost: run the command again when it does.\n")
    assert len(output.splitlines()) == 1
    server.start()
    with server.breaking(b"model-versions/create") as address:
        code, output = trainer.run(*words, "--tracking_uri", address, **once)
        assert code == 138, output
        assert "nothing is lost" in output
        assert len(output.splitlines()) == 1
    assert server.versions("later") == []
    found = publish(trainer, server, run, "--model", "later")
    assert (found["new_points"], found["version"], found["is_new_version"]) == (0, "1", True)
    assert len(server.runs()) == before + 1


@pytest.mark.long
def test_registered_versions_are_compared(trainer: Trainer, server: MlflowServer, run: Path) -> None:
    code, output = trainer.run("train", "--train_dir", "other", "--train_steps", "100", "--seed", "5")
    assert code == 0, output
    assert publish(trainer, server, run, "--model", "twice")["version"] == "1"
    assert publish(trainer, server, "other", "--model", "twice")["version"] == "2"
    server.post("registered-models/alias", name="twice", alias="last", version="2")
    words = ["models", "compare", "--tracking_uri", server.uri]
    code, output = trainer.run(*words, "models:/twice/1", "models:/twice/2", "--json")
    assert code == 0, output
    found = json.loads(output)
    results = [json.loads((each / "result.json").read_text()) for each in (run, trainer.folder / "other")]
    for each, result in zip(found["models"], results, strict=True):
        assert each["accuracy"] == pytest.approx(result["test_accuracy"], abs=1e-4)
    code, output = trainer.run(*words, "models:/twice/2", "other", "--json", MLFLOW_TRACKING_URI=server.uri)
    assert json.loads(output)["different_predictions"] == 0
    for uri, sentence in (
        *(
            (uri, f"does not exist on {server.uri} (")
            for uri in ("models:/twice/7", "models:/absent/1", "models:/twice@best")
        ),
        ("models:/twice", "models:/NAME/VERSION or models:/NAME@ALIAS was expected."),
    ):
        code, output = trainer.run(*words, uri, run)
        assert code == 2, output
        assert output.startswith(f"trainer: A: {uri}")
        assert len(output.splitlines()) == 1
        assert sentence in output


@pytest.mark.long
def test_a_number_names_a_version_of_the_only_registered_model_or_of_the_one_that_is_named(
    trainer: Trainer, run: Path, tmp_path: Path
) -> None:
    own = MlflowServer(tmp_path)
    own.start()
    environment: dict[str, Any] = {"MLFLOW_TRACKING_URI": own.uri}

    def compare(*words: str) -> dict[str, Any]:
        code, output = trainer.run("models", "compare", *words, "--json", **environment)
        assert code == 0, output
        return dict(json.loads(output))

    def refusal(*words: str, **variables: Any) -> str:
        code, output = trainer.run("models", *words, **variables)
        assert (code, len(output.splitlines())) == (2, 1), output
        return output

    try:
        none = refusal("compare", "1", "2", **environment)
        assert none == (
            f"trainer: A: 1 is neither a path nor a version in MLflow, as {own.uri} has no registered model; register "
            "one with trainer models publish, or name another path.\n"
        )
        publish(trainer, own, run, "--model", "digits")
        shutil.copytree(run, tmp_path / "1")
        (data,) = (tmp_path / "1" / "export").glob("*/data.json")
        data.write_text(data.read_text() + "\n")
        assert publish(trainer, own, "1", "--model", "digits")["version"] == "2"
        (tmp_path / "1").rename(tmp_path / "3")
        assert [each["model"] for each in compare("1", "2")["models"]] == ["models:/digits/1", "models:/digits/2"]
        assert [each["model"] for each in compare("3", "2")["models"]] == ["3", "models:/digits/2"], "3 is a path"
        assert f"B: models:/digits/4 does not exist on {own.uri} (" in refusal("compare", "1", "4", **environment)

        digit = tmp_path / "pictures"
        digit.mkdir()
        Image.fromarray(np.full((8, 8), 100, np.uint8)).save(digit / "0.png")
        for words in (["2"], ["models:/digits/2", "--tracking_uri", own.uri]):
            words = ["models", "predict", *words, "--data", str(digit), "--output", "out"]
            code, output = trainer.run(*words, **({} if "--tracking_uri" in words else environment))
            assert (code, output) == (
                0,
                "out: the predictions of 1 images in predictions.csv and predictions.parquet\n",
            )

        publish(trainer, own, run, "--model", "other")
        several = refusal("predict", "2", "--data", str(digit), "--output", "out", **environment)
        assert several == (
            f"trainer: MODEL: 2 may be a version of several registered models of {own.uri}, which are digits, other; "
            "name one of them with --model.\n"
        )
        assert [each["model"] for each in compare("1", "2", "--model", "digits")["models"]][1] == "models:/digits/2"
        assert "A: models:/x/1 does not exist" in refusal("compare", "1", "2", "--model", "x", **environment)
        assert refusal("compare", "1", "2") == (
            "trainer: A: 1 is not a path, and the MLflow server of version 1 is not known; name another path, or the "
            "server with --tracking_uri or in the variable MLFLOW_TRACKING_URI.\n"
        )
    finally:
        own.stop()


@pytest.mark.long
def test_a_registered_version_is_served(trainer: Trainer, server: MlflowServer, run: Path) -> None:
    def serve(*words: str, uri: str = server.uri, **environment: str) -> tuple[int, str]:
        process = trainer.python("-c", SERVING, *words, "--tracking_uri", uri, **environment)
        output, _ = process.communicate()
        return process.returncode, output

    published = publish(trainer, server, run, "--model", "My model")
    result = json.loads((run / "result.json").read_text())
    code, output = serve("models:/My model/1")
    assert code == 0, output
    name, version, accuracy = output.split()
    assert (name, version) == ("my-model", "1")
    assert float(accuracy) == pytest.approx(result["test_accuracy"], abs=1e-4)
    server.post("registered-models/alias", name="My model", alias="best", version="1")
    code, output = serve("models:/My model@best", "--name", "digits")
    assert (code, output.split()[:2]) == (0, ["digits", "1"])

    code, output = serve("models:/My model/2")
    assert (code, len(output.splitlines())) == (2, 1), output
    assert f"MODEL: models:/My model/2 does not exist on {server.uri} (" in output

    (file,) = server.folder.glob(f"files/*/{published['run_id']}/artifacts/export/*/saved_model.pb")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    code, output = serve("models:/My model/1")
    assert (code, len(output.splitlines())) == (2, 1), output
    assert "MODEL: models:/My model/1 is incomplete or altered: its digest is sha256:" in output
    file.write_bytes(content)

    (port,) = free_ports(1)
    code, output = serve("models:/My model/1", uri=f"http://127.0.0.1:{port}", MLFLOW_HTTP_REQUEST_MAX_RETRIES="1")
    assert (code, len(output.splitlines())) == (138, 1), output
    assert "MLflow does not respond (" in output
