"""Packaging a model, and what a packaged model predicts: `trainer serve` without its server.

tests/images/test_model_image.py asks the server.
"""

import base64
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from trainer import cli
from trainer.data import arrays
from trainer.errors import AbsentError, ConfigurationError
from trainer.serving import model_folder, package, rest_v1, serve, sources
from trainer.serving.model_folder import EXPORT, ModelRecord
from trainer.serving.predictor import BadRequestError, Predictor
from trainer.tensorflow import tf, tf1

DATA = {"dataset": "lance", "dataset_uri": "s3://bucket/Hand_Digits.lance", "dataset_version": "3", "model": "mlp"}


def write_export(folder: Path, inputs: Any, outputs: Any) -> Path:
    """Write a SavedModel, whose tensors functions make, and its data.json."""
    with tf.Graph().as_default(), tf1.Session() as session:
        made = inputs()
        builder = tf1.saved_model.Builder(str(folder))
        signature = tf1.saved_model.predict_signature_def(made, outputs(made))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    (folder / "data.json").write_text(json.dumps(DATA))
    (folder / "model.keras").write_text("for training")
    return folder


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with one input, float32 [n, 3], and one output, its sums."""
    return write_export(
        tmp_path_factory.mktemp("run") / "export" / "300",
        lambda: {"images": tf1.placeholder(tf.float32, [None, 3])},
        lambda made: {"sums": tf.reduce_sum(made["images"], 1)},
    )


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with two inputs, int32 [n, any] and float32 [n], and two outputs, one of them bfloat16."""
    return write_export(
        tmp_path_factory.mktemp("run") / "export" / "7",
        lambda: {
            "words": tf1.placeholder(tf.int32, [None, None]),
            "age": tf1.placeholder(tf.float32, [None]),
        },
        lambda made: {
            "vectors": tf.reduce_sum(tf.gather(tf.constant([[0.0, 1.0], [10.0, 20.0]]), made["words"]), 1),
            "older": tf.cast(made["age"] + 1, tf.bfloat16),
        },
    )


@pytest.fixture(scope="module")
def one(sums: Path) -> Predictor:
    return Predictor(sums)


@pytest.fixture(scope="module")
def two(words: Path) -> Predictor:
    return Predictor(words)


def ask(predictor: Predictor, body: Any) -> dict[str, Any]:
    request = rest_v1.parse(body, predictor.inputs)
    return rest_v1.respond(predictor.predict(request.values), request)


def test_rows_of_a_single_input_may_leave_out_its_name(one: Predictor) -> None:
    expected = {"predictions": [6.0, 15.0]}
    assert ask(one, {"instances": [[1, 2, 3], [4, 5, 6]]}) == expected
    assert ask(one, {"instances": [{"images": [1, 2, 3]}, {"images": [4, 5, 6]}]}) == expected
    assert ask(one, b'{"instances": [[1, 2, 3], [4, 5, 6]], "signature_name": "serving_default"}') == expected


def test_columns_give_columns(one: Predictor) -> None:
    assert ask(one, {"inputs": [[1, 2, 3]]}) == {"outputs": [6.0]}
    assert ask(one, {"inputs": {"images": [[1, 2, 3]]}}) == {"outputs": [6.0]}


def test_several_inputs_and_outputs_have_names(two: Predictor) -> None:
    rows = [{"words": [0, 1], "age": 3}, {"words": [1, 1], "age": 4.5}]
    expected = [{"older": 4.0, "vectors": [10.0, 21.0]}, {"older": 5.5, "vectors": [20.0, 40.0]}]
    assert ask(two, {"instances": rows}) == {"predictions": expected}
    found = ask(two, {"inputs": {"words": [[0, 1]], "age": [3]}})
    assert found == {"outputs": {"older": [4.0], "vectors": [[10.0, 21.0]]}}


def test_a_model_of_texts_takes_texts(tmp_path: Path) -> None:
    lengths = write_export(
        tmp_path / "1",
        lambda: {"text": tf1.placeholder(tf.string, [None])},
        lambda made: {"lengths": tf.strings.length(made["text"])},
    )
    predictor = Predictor(lengths)
    assert str(predictor.inputs["text"]) == "string [n]"
    assert ask(predictor, {"instances": ["red", "grün"]}) == {"predictions": [3, 5]}
    zeros = {"b64": base64.b64encode(b"\xff\0\0").decode()}
    assert ask(predictor, {"instances": ["red", zeros, "grün"]}) == {"predictions": [3, 3, 5]}
    for wrong, sentence in (
        ([3], "text: it has values that are no texts, but string [n] was expected."),
        ([["red"]], "text: its shape is [1, 1], but string [n] was expected."),
    ):
        with pytest.raises(BadRequestError, match=f"^{re.escape(sentence)}$"):
            ask(predictor, {"instances": wrong})


def test_null_is_a_missing_value_for_a_model_of_columns_alone(tmp_path: Path) -> None:
    export = write_export(
        tmp_path / "1",
        lambda: {"age": tf1.placeholder(tf.float32, [None]), "city": tf1.placeholder(tf.string, [None])},
        lambda made: {"old": tf.math.is_nan(made["age"]), "long": tf.strings.length(made["city"])},
    )
    rows = {"instances": [{"age": 3, "city": "Graz"}, {"age": None, "city": None}]}
    with pytest.raises(BadRequestError, match="age: it has values that are no numbers"):
        ask(Predictor(export), rows)
    (export / "data.json").write_text(json.dumps(DATA | {"plan": {"inputs": []}}))
    expected = [{"long": 4, "old": False}, {"long": 0, "old": True}]
    assert ask(Predictor(export), rows) == {"predictions": expected}


def encoded(image: Image.Image, form: str = "PNG") -> dict[str, str]:
    """A value of a request: an image in base64."""
    target = io.BytesIO()
    image.save(target, form)
    return {"b64": base64.b64encode(target.getvalue()).decode()}


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """A model of images [4, 3, 1] that gives its input back."""
    return Predictor(
        write_export(
            tmp_path_factory.mktemp("run") / "export" / "1",
            lambda: {"image": tf1.placeholder(tf.float32, [None, 4, 3, 1])},
            lambda made: {"pixels": tf.identity(made["image"])},
        )
    )


GREY = np.arange(0, 240, 20, dtype=np.uint8).reshape(4, 3)


def test_an_image_in_base64_has_the_scale_and_the_channels_of_training(pixels: Predictor) -> None:
    trained_on = arrays.examples({"x": GREY[np.newaxis]}, np.zeros(1, np.int64), "here").inputs
    value = encoded(Image.fromarray(GREY))
    bodies: list[Any] = [{"instances": [value]}, {"instances": [{"image": value}]}]
    bodies += [{"inputs": [value]}, {"inputs": {"image": [value]}}]
    bodies += [{"instances": [encoded(Image.fromarray(GREY).convert("RGB"))]}]
    for body in bodies:
        (found,) = ask(pixels, body).values()
        np.testing.assert_allclose(found, trained_on, rtol=1e-6)


def test_jpeg_and_numbers_mix_in_a_request(pixels: Predictor) -> None:
    white = encoded(Image.new("L", (3, 4), 255), "JPEG")
    found = ask(pixels, {"instances": [white, np.zeros([4, 3, 1]).tolist()]})["predictions"]
    np.testing.assert_array_equal(found, [np.ones([4, 3, 1]), np.zeros([4, 3, 1])])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            {"b64": "abc"},
            "image: example 1: b64 is not base64 (Incorrect padding); give the output of base64 --wrap=0 for the file.",
        ),
        (
            {"b64": 7},
            "image: example 1: b64 is not a string; give the output of base64 --wrap=0 for the file.",
        ),
        (
            {"b64": base64.b64encode(b"a text").decode()},
            "image: example 1: it is not an image; give a PNG or a JPEG image of 4 x 3 pixels (height x width).",
        ),
        (
            encoded(Image.new("L", (3, 4)), "GIF"),
            "image: example 1: it is not an image; give a PNG or a JPEG image of 4 x 3 pixels (height x width).",
        ),
        (
            encoded(Image.new("L", (4, 3))),
            "image: example 1: its size is 3 x 4, but 4 x 3 was expected; give a PNG or a JPEG image of 4 x 3 pixels "
            "(height x width).",
        ),
    ],
)
def test_what_is_not_an_image_of_that_size_gets_a_sentence(pixels: Predictor, value: Any, sentence: str) -> None:
    with pytest.raises(BadRequestError, match=f"^{re.escape(sentence)}$"):
        ask(pixels, {"instances": [encoded(Image.fromarray(GREY)), value]})


def test_a_damaged_image_gets_a_sentence(pixels: Predictor) -> None:
    content = base64.b64decode(encoded(Image.fromarray(GREY))["b64"])[:-30]
    sentence = r"^image: example 0: the image is damaged \(.*\); give a PNG or a JPEG image of 4 x 3 pixels"
    with pytest.raises(BadRequestError, match=sentence):
        ask(pixels, {"instances": [{"b64": base64.b64encode(content).decode()}]})


def test_base64_is_for_images_and_texts(one: Predictor) -> None:
    sentence = (
        "images: example 0: b64 is for images, float32 [n, height, width, 1, 3 or 4], and for texts, but the model "
        "takes float32 [n, 3]; give numbers."
    )
    with pytest.raises(BadRequestError, match=f"^{re.escape(sentence)}$"):
        ask(one, {"instances": [encoded(Image.fromarray(GREY))]})


def test_the_signature_says_what_is_wanted(two: Predictor) -> None:
    assert {name: str(spec) for name, spec in two.inputs.items()} == {"age": "float32 [n]", "words": "int32 [n, n]"}
    assert {name: str(spec) for name, spec in two.outputs.items()} == {
        "older": "float32 [n]",
        "vectors": "float32 [n, 2]",
    }


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"instances": [[1, 2]]}, "images: its shape is [1, 2], but float32 [n, 3] was expected."),
        ({"instances": [1, 2]}, "images: its shape is [2], but float32 [n, 3] was expected."),
        ({"inputs": []}, "images: its shape is [0], but float32 [n, 3] was expected."),
        (
            {"instances": [[1, 2, 3], [1, 2]]},
            "images: its rows have different shapes, but float32 [n, 3] was expected.",
        ),
        (
            {"instances": [["a", "b", "c"]]},
            "images: it has values that are no numbers, but float32 [n, 3] was expected.",
        ),
        (
            {"instances": [[None, 2, 3]]},
            "images: it has values that are no numbers, but float32 [n, 3] was expected.",
        ),
        ({"instances": [[1e300, 2, 3]]}, "images: it has values that float32 cannot hold."),
        ({"instances": [{"pictures": [1, 2, 3]}]}, "instances: each example needs the inputs images, and no others."),
        ({"instances": [[1, 2, 3], {}]}, "instances: each example needs the inputs images, and no others."),
        ({"instances": []}, "instances: a list of at least one example was expected."),
        ({"instances": 3}, "instances: a list of at least one example was expected."),
        ({"inputs": {"pictures": [[1, 2, 3]]}}, "the inputs are pictures, but the model takes images."),
        ({"inputs": {}}, "the inputs are none, but the model takes images."),
        ({}, 'the body needs "instances", a list of examples, or "inputs", but not both.'),
        ([[1, 2, 3]], 'the body needs "instances", a list of examples, or "inputs", but not both.'),
        (
            {"instances": [[1, 2, 3]], "signature_name": "train"},
            'signature_name: the model has only the signature "serving_default".',
        ),
    ],
)
def test_a_request_that_does_not_fit_gets_a_sentence(one: Predictor, body: Any, sentence: str) -> None:
    with pytest.raises(BadRequestError, match=f"^{re.escape(sentence)}$"):
        ask(one, body)


@pytest.mark.parametrize("body", [b"instances", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_gets_a_sentence(one: Predictor, body: bytes) -> None:
    with pytest.raises(BadRequestError, match=r"^the body is not JSON"):
        ask(one, body)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"words": [[0.5]], "age": [1]}, "words: it has values that int32 cannot hold."),
        ({"words": [[2**40]], "age": [1]}, "words: it has values that int32 cannot hold."),
        ({"words": [[0]], "age": [1, 2]}, "the inputs have different numbers of rows: age 2, words 1."),
    ],
)
def test_values_are_not_changed_to_fit(two: Predictor, columns: Any, sentence: str) -> None:
    with pytest.raises(BadRequestError, match=f"^{re.escape(sentence)}$"):
        ask(two, {"inputs": columns})


def test_what_the_model_cannot_use_is_the_mistake_of_the_request(two: Predictor) -> None:
    sentence = "the model cannot use these values: indices[0,0] = 2 is not in [0, 2)."
    with pytest.raises(BadRequestError, match=f"^{re.escape(sentence)}$"):
        ask(two, {"inputs": {"words": [[2]], "age": [1]}})


def test_several_inputs_need_their_names(two: Predictor) -> None:
    with pytest.raises(BadRequestError, match=r"^the model has several inputs, age, words: each needs its name"):
        ask(two, {"instances": [[0, 1]]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["words", "age", "x", "b64"]), inner),
    max_leaves=20,
)


@given(body=JSON | st.fixed_dictionaries({"instances": JSON}) | st.fixed_dictionaries({"inputs": JSON}))
def test_any_json_gets_an_answer_or_a_sentence(one: Predictor, two: Predictor, body: Any) -> None:
    for predictor in (one, two):
        with contextlib.suppress(BadRequestError):
            assert ask(predictor, body).keys() <= {"predictions", "outputs"}


def test_infinity_and_nan_pass(one: Predictor) -> None:
    found = one.predict({"images": np.array([[np.inf, 1, 2], [np.nan, 1, 2]])})
    assert np.isinf(found["sums"][0])
    assert np.isnan(found["sums"][1])


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is incomplete or altered .*; export it again, or copy"):
        Predictor(tmp_path)


# Packaging


def packaged(export: Path, context: Path) -> tuple[ModelRecord, Path]:
    return package.stage(export, "digits", sources.read_data(export), context)


def test_the_model_has_only_the_files_for_serving(sums: Path, tmp_path: Path) -> None:
    record, folder = packaged(sums, tmp_path)
    assert {path.name for path in (folder / EXPORT).iterdir()} == {"saved_model.pb", "variables", "data.json"}
    assert record == model_folder.read(folder) == ModelRecord("digits", "300", record.digest, DATA)
    assert packaged(sums, tmp_path) == (record, folder)  # again, in its place
    assert [*tmp_path.iterdir()] == [folder]
    modes = {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o644}


def test_the_digest_is_that_of_sha256sum(sums: Path, tmp_path: Path) -> None:
    record, folder = packaged(sums, tmp_path)
    command = "find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    done = subprocess.run(["sh", "-c", command], cwd=folder / EXPORT, capture_output=True, text=True, check=True)
    assert record.digest == f"sha256:{done.stdout.split()[0]}"


@pytest.mark.parametrize("change", ["alter", "add", "remove", "rename"])
def test_a_model_whose_files_were_altered_is_refused(
    sums: Path, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = packaged(sums, tmp_path)
    file = folder / EXPORT / "saved_model.pb"
    if change == "alter":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif change == "add":
        (folder / EXPORT / "assets").write_text("more")
    elif change == "remove":
        (folder / EXPORT / "data.json").unlink()
    else:
        file.rename(file.with_name("model.pb"))
    with pytest.raises(ConfigurationError, match=r"a file of the model digits was altered: the digest is sha256:\w+, "):
        model_folder.read(folder)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"name": "digits"}'])
def test_a_folder_that_is_no_packaged_model_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / model_folder.RECORD).write_text(content)
    with pytest.raises(ConfigurationError, match=r"model\.json cannot be read .*; name the folder of a model"):
        model_folder.read(tmp_path)


def test_a_run_gives_the_export_of_its_result(sums: Path, tmp_path: Path) -> None:
    for step in (100, 300, 900):
        shutil.copytree(sums, tmp_path / "export" / str(step))
    assert sources.find_export(tmp_path).name == "900"
    (tmp_path / "result.json").write_text(json.dumps({"export": "elsewhere/export/100"}))
    assert sources.find_export(tmp_path).name == "100"
    assert sources.find_export(tmp_path / "export").name == "900"
    assert sources.find_export(tmp_path / "export" / "300").name == "300"


def test_a_place_without_a_model_is_refused(sums: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^MODEL=.*: it has no exported model; name the directory of a run"):
        sources.find_export(tmp_path)
    shutil.copytree(sums, tmp_path / "best")
    with pytest.raises(ConfigurationError, match=r"the folder best has no step in its name"):
        sources.find_export(tmp_path / "best")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"dataset": "digits"}, "digits"),
        ({"dataset": "mnist", "dataset_uri": "/data"}, "mnist"),
        (DATA, "hand-digits"),
        ({"dataset": "npz", "dataset_uri": "/data/prices/"}, "prices"),
        ({"dataset": "train_data", "model": "examples/models/text_classifier.py"}, "text-classifier"),
    ],
)
def test_a_model_has_the_name_of_its_data(data: dict[str, str], name: str) -> None:
    assert sources.name_of(data) == name


def test_a_model_without_data_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match=r"give NAME=digits"):
        sources.name_of({})


def test_the_image_is_labelled_with_version_data_and_digest(
    sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert package.main([str(sums), "--", sys.executable, "-c", "import sys; print(sys.argv[1:])"]) == 0
    options, *rest = capfd.readouterr().out.splitlines()
    for part in (
        "'--tag', 'distributed-tensorflow/model-hand-digits:300'",
        "'--label', 'org.opencontainers.image.version=300'",
        "'--label', 'distributed-tensorflow/data=s3://bucket/Hand_Digits.lance'",
        "'--label', 'distributed-tensorflow/data-version=3'",
        "'--label', 'distributed-tensorflow/model-digest=sha256:",
        "'--build-arg', 'MODEL=dist/models/hand-digits-300-",
    ):
        assert part in options
    assert rest[0] == "built distributed-tensorflow/model-hand-digits:300"
    assert not [*Path("dist/models").iterdir()]


@pytest.mark.parametrize("name", ["Digits", "a b", "a-", "a" * 64, "a/b"])
def test_a_name_that_urls_and_images_cannot_have_is_refused(sums: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^NAME="):
        package.main([str(sums), "--name", name, "--", "true"])


# The model to serve


def found(place: Path, name: str | None = None) -> tuple[str, str, Path]:
    source = sources.find(str(place), name, None, place / "downloads")
    return source.name, source.version, source.export


def test_a_packaged_model_a_run_and_an_export_are_found(sums: Path, tmp_path: Path) -> None:
    _, folder = packaged(sums, tmp_path)
    assert found(folder) == ("digits", "300", folder / EXPORT)
    assert found(folder, "mine") == ("mine", "300", folder / EXPORT)
    assert found(sums.parents[1]) == found(sums) == ("hand-digits", "300", sums)
    assert found(sums, "mine")[0] == "mine"


def test_a_packaged_model_that_was_altered_is_not_found(sums: Path, tmp_path: Path) -> None:
    _, folder = packaged(sums, tmp_path)
    (folder / EXPORT / "data.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"^MODEL=.*: a file of the model digits was altered"):
        found(folder)


def test_a_run_that_goes_on_has_no_model_yet(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(AbsentError, match=r"^MODEL=.*: it has no exported model; name the directory of a run that is"):
        found(tmp_path)


def test_a_name_that_urls_cannot_have_is_refused(sums: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^NAME=a/b: a name of at most 63 small letters"):
        found(sums, "a/b")


def test_a_model_of_mlflow_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigurationError, match=r"^tracking_uri: the MLflow server is not known"):
        serve.run(serve.read(["models:/digits/1"]))


def test_a_damaged_model_is_refused(sums: Path, tmp_path: Path) -> None:
    export = shutil.copytree(sums, tmp_path / "export" / "300")
    (export / "saved_model.pb").write_bytes(b"garbage")
    with pytest.raises(ConfigurationError, match=r"^MODEL: the model .* is incomplete or altered .*; export it again"):
        serve.run(serve.read([str(tmp_path)]))


def test_it_waits_for_the_model(
    sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model that comes is damaged: it is found, and KServe is not needed."""
    damaged = shutil.copytree(sums, tmp_path / "exported" / "300")
    (damaged / "saved_model.pb").write_bytes(b"garbage")
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setattr(serve, "WAIT_SECONDS", 0.05)
    threading.Timer(0.5, damaged.parent.rename, [run / "export"]).start()
    with pytest.raises(ConfigurationError, match="is incomplete or altered"):
        serve.run(serve.read([str(run), "--wait"]))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trainer: waiting for the model: MODEL={run}: it has no exported model")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"^--http_port: '{port}' is not a port; give a number from 1 to 65535"
    ):
        serve.read([f"--http_port={port}"])


def test_serving_without_kserve_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve"]) == 2
    assert "the Python package kserve is not installed: run python3 -m venv .serve && .serve/bin/pip" in (
        capsys.readouterr().err
    )
