"""`trainer models publish` without MLflow: wrong addresses, the absent package, and the signature of a model."""

import http.server
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer import cli
from trainer.mlflow import mlmodel, publication
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.telemetry.summaries import SummaryWriter
from trainer.tensorflow import tf, tf1


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A training directory of a run that has just begun."""
    (tmp_path / "run.json").write_text(json.dumps({"model": "mlp"}))
    return tmp_path


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("", "tracking_uri: the MLflow server is not known; name it, as in --tracking_uri http://mlflow:5000, "),
        *(
            (address, "tracking_uri: http://HOST:PORT or https://HOST was expected, without a user, a password or a ")
            for address in (
                "sqlite:///runs.db",
                "http://",
                "https://mlflow?token=secret",
                "https://me:secret@mlflow",
                "me:secret@mlflow:5000",
                "https://me:sec/ret@mlflow",
            )
        ),
    ],
)
def test_an_address_that_is_none_is_refused(
    run: Path, address: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert cli.main(["models", "publish", str(run), "--tracking_uri", address]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"trainer: {sentence}")
    assert "secret" not in printed.replace("/", "")


BODIES = {
    "page": b"<!DOCTYPE html>\n<html>\n<title>Welcome</title>\n" + b"<p>It works</p>\n" * 1000,
    "json": b"{}",
    "empty": b"",
}


class OtherServer(http.server.BaseHTTPRequestHandler):
    """A web server that answers each request with the code and the body of its path: /CODE/BODY/…."""

    def do_GET(self) -> None:
        code, body = self.path.split("/")[1:3]
        self.send_response(int(code))
        self.end_headers()
        self.wfile.write(BODIES[body])

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in http.server
        """Log nothing."""


@pytest.fixture(scope="module")
def other_server() -> Iterator[str]:
    """The host and the port of a web server that is not MLflow's."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


REFUSED, AWAY = "MLflow refuses the request (", "MLflow does not respond ("


@pytest.mark.parametrize(
    ("address", "code", "sentence"),
    [
        ("http://HOST/200/page", 2, REFUSED),
        ("http://HOST/404/page", 2, REFUSED),
        ("http://HOST/405/empty", 2, REFUSED),
        ("http://HOST/200/json", 2, REFUSED),
        ("https://HOST", 2, REFUSED),
        ("http://HOST/403/page", 2, REFUSED),
        ("http://HOST/503/page", 138, AWAY),
        ("http://HOST/501/page", 138, AWAY),
    ],
)
def test_an_address_of_something_else_is_named_and_not_tried_again(
    run: Path,
    other_server: str,
    address: str,
    code: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    uri = address.replace("HOST", other_server)
    assert cli.main(["models", "publish", str(run), "--tracking_uri", uri]) == code
    printed = capsys.readouterr().err
    assert printed.startswith(f"trainer: tracking_uri={uri}: {sentence}")
    assert len(printed.splitlines()) == 1


def test_a_port_of_another_protocol_is_named(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.recv(65536)

        threading.Thread(target=answer).start()
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert cli.main(["models", "publish", str(run), "--tracking_uri", uri]) == 2
    assert "BadStatusLine('SSH-2.0-OpenSSH" in capsys.readouterr().err


def test_an_absent_client_is_named_with_the_remedy(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert cli.main(["models", "publish", str(run), "--tracking_uri", "http://localhost:1"]) == 2
    printed = capsys.readouterr().err
    assert "the Python package mlflow is not installed" in printed
    assert "pip install -r constraints/cpu-mlflow.txt" in printed


@pytest.mark.parametrize("words", [["--tag", "image"], ["--tag", "=x"], ["--param", "steps"]])
def test_a_pair_without_a_name_or_a_value_is_refused(
    run: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models", "publish", str(run), "--tracking_uri", "http://localhost:1", *words]) == 2
    assert f"{words[1]!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (
            "checkpoint",
            "DIR: {} has neither event files of TensorBoard nor a SavedModel, so there is nothing to publish;",
        ),
        (".new/saved_model.pb", "DIR: {} has neither event files of TensorBoard nor a SavedModel"),
        ("model.keras", "DIR: {} has neither event files of TensorBoard nor a SavedModel"),
        ("export/7/saved_model.pb", "DIR: the model {}/export/7 is incomplete or altered ("),
    ],
)
def test_a_directory_without_anything_to_publish_is_refused(
    tmp_path: Path, file: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(b"\xff")
    assert cli.main(["models", "publish", str(tmp_path), "--tracking_uri", "http://localhost:1", "--done"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"trainer: {sentence.format(tmp_path)}")
    assert len(printed.splitlines()) == 1


def test_the_folders_of_event_files_are_in_the_names_of_curves(tmp_path: Path) -> None:
    for folder in (".", "a", "a/b"):
        writer = SummaryWriter(tmp_path / folder)
        writer.write(1, {"loss": 2.0})
        writer.close()
    found = publication.read(TrainingDirectory(tmp_path), "DIR", is_done=False)
    assert found.curves.keys() == {"loss", "a/loss", "a/b/loss"}
    assert (found.state, found.export) == ("running", None)


def test_files_of_other_programs_with_the_names_of_the_trainers_own_make_no_run_of_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"experiment": "mine", "status": "COMPLETED"}))
    (tmp_path / "result.json").write_text(json.dumps({"global_step": 10, "loss": 0.5}))
    writer = SummaryWriter(tmp_path / "fit")
    writer.write(1, {"loss": 2.0})
    writer.close()
    found = publication.read(TrainingDirectory(tmp_path), "DIR", is_done=True)
    assert (found.state, set(found.curves)) == ("done", {"fit/loss"})


def test_the_newest_saved_model_with_a_signature_is_published_without_other_files(tmp_path: Path) -> None:
    for age, name in enumerate(("plain", "9", "10", "8")):
        with tf.Graph().as_default(), tf1.Session() as session:
            builder = tf1.saved_model.Builder(str(tmp_path / name))
            value = tf1.placeholder(tf.float32, [None])
            signature = tf1.saved_model.predict_signature_def({"x": value}, {"y": value + 1.0})
            signatures = {} if name == "plain" else {"serving_default": signature}
            builder.add_meta_graph_and_variables(session, ["serve"], signatures)
            builder.save()
        os.utime(tmp_path / name / "saved_model.pb", (1e9 - age, 1e9 - age))
    (tmp_path / "9" / "train").mkdir()
    found = publication.read(TrainingDirectory(tmp_path), "DIR", is_done=True)
    assert (found.state, found.export) == ("done", tmp_path / "9")
    assert list(found.not_exported) == ["train"]


def test_the_signature_is_that_of_the_saved_model(tmp_path: Path) -> None:
    export = tmp_path / "export"
    with tf.Graph().as_default(), tf1.Session() as session:
        texts = tf1.placeholder(tf.string, [None])
        numbers = tf1.placeholder(tf.float32, [None, 4, 2])
        outputs = {"sum": tf.reduce_sum(numbers, [1, 2]), "same": tf.identity(texts)}
        tf1.saved_model.simple_save(session, str(export), {"texts": texts, "numbers": numbers}, outputs)
    inputs, found = mlmodel.read_signature(export)
    assert [(each["name"], each["tensor-spec"]) for each in inputs] == [
        ("numbers", {"dtype": "float32", "shape": [-1, 4, 2]}),
        ("texts", {"dtype": "str", "shape": [-1]}),
    ]
    assert [(each["name"], each["tensor-spec"]["dtype"]) for each in found] == [("same", "str"), ("sum", "float32")]
