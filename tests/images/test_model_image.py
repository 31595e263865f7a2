"""The image of a model has this model and its server, which answers by the protocols that docs/serving.md shows."""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from testinfra.host import Host

from tests.images.conftest import IMAGE, LOCKED_DOWN, ROOT, Packaged, docker, inspected
from trainer.data import digits

pytestmark = [
    pytest.mark.timeout(1200),  # building the image installs TensorFlow
    pytest.mark.long,  # so CI leaves it out, and `make test-images` does not
]

CLIENT, MANIFEST_KEYS = ((Path(__file__).parent / name).read_text() for name in ("client.py", "manifest_keys.py"))
HELD_OUT = digits.load()[1]
JSON = "application/json"
CURL = "application/x-www-form-urlencoded"
"""The content type of `curl --data`."""

GRPC_CLIENT = """
import asyncio, json, logging, sys
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

async def main(name):
    client = InferenceGRPCClient("localhost:8081", timeout=60)
    images = np.zeros([2, 28, 28, 1], np.float32)
    given = InferInput("images", list(images.shape), "FP32")
    given.set_data_from_numpy(images)
    answer = await client.infer(InferRequest(name, [given]))
    print(json.dumps(answer.outputs[0].as_numpy().tolist()))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def image_name(packaged: Packaged) -> str:
    return packaged.image


@pytest.fixture(scope="module")
def server(image_name: str) -> Iterator[str]:
    """The name of a locked-down container whose server is ready."""
    name = start(image_name)
    wait_until_ready(name)
    yield name
    docker("rm", "--force", name)


def start(image: str, *arguments: str, options: Sequence[str] = ()) -> str:
    """Start a locked-down container, with more options of `docker run`; return its name."""
    started = docker("run", "--detach", *LOCKED_DOWN, *options, image, *arguments)
    assert started.returncode == 0, started.stderr
    return started.stdout.strip()


def wait_until_ready(name: str) -> None:
    begun = time.monotonic()
    while docker("exec", name, "python", "-c", CLIENT, "/v2/health/ready").returncode:
        state = json.loads(docker("inspect", name).stdout)[0]["State"]
        assert state["Running"], docker("logs", name).stderr
        assert time.monotonic() < begun + 240, docker("logs", name).stderr
        time.sleep(0.5)
    print(f"ready after {time.monotonic() - begun:.1f} s")


def ask(server: str, path: str, body: Any = None, content_type: str = JSON) -> tuple[int, Any]:
    """The status and the body of the answer."""
    text = body if isinstance(body, str) else json.dumps(body)
    request = [path] if body is None else [path, content_type]
    command = ["docker", "exec", "--interactive", server, "python", "-c", CLIENT, *request]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    status, answer = json.loads(done.stdout)
    return status, json.loads(answer) if answer.startswith("{") else answer


def predict(server: str, packaged: Packaged, body: Any, content_type: str = JSON) -> tuple[int, Any]:
    return ask(server, f"/v1/models/{packaged.name}:predict", body, content_type)


def test_its_size_is_below_the_documented_limit(image: Any) -> None:
    print(f"{image['Size'] / 1e6:.1f} MB")
    assert image["Size"] < 1.25e9


def test_it_is_smaller_than_the_trainers(image: Any) -> None:
    other = inspected(IMAGE)
    assert other, f"the Docker engine has no image {IMAGE}: run `make build-images` first."
    print(f"{image['Size'] / 1e6:.1f} MB of {other['Size'] / 1e6:.1f} MB")
    assert image["Size"] < 0.8 * other["Size"]


@pytest.mark.parametrize("package", ["keras", "h5py", "sklearn", "tensorboard", "pip", "setuptools"])
def test_it_has_no_packages_of_training(container: Host, package: str) -> None:
    assert container.run(f"python -c 'import {package}'").stderr.endswith(f"No module named '{package}'\n")


def test_it_has_that_model_alone(container: Host, packaged: Packaged) -> None:
    files = set(container.check_output("find /model -type f -printf '%P\\n'").splitlines())
    exported = {f"export/{path.relative_to(packaged.export)}" for path in packaged.export.rglob("*") if path.is_file()}
    assert files == exported | {"model.json"}


def test_it_is_labelled_with_version_data_and_digest(image: Any, container: Host, packaged: Packaged) -> None:
    labels = image["Config"]["Labels"]
    found = container.check_output("cd /model/export && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum")
    assert labels["distributed-tensorflow/model-digest"] == f"sha256:{found.split()[0]}"
    record = json.loads(container.file("/model/model.json").content_string)
    assert record["digest"] == labels["distributed-tensorflow/model-digest"]
    assert labels["org.opencontainers.image.title"] == record["name"] == packaged.name
    assert labels["org.opencontainers.image.version"] == record["version"] == packaged.export.name
    assert labels["distributed-tensorflow/data"] == "digits"
    assert labels["distributed-tensorflow/data-digest"] == packaged.result["dataset_digest"]
    assert labels["distributed-tensorflow/model"] == "mlp"
    assert int(labels["org.opencontainers.image.revision"].removesuffix("-dirty"), 16)


def test_its_entrypoint_serves(image: Any) -> None:
    assert image["Config"]["Entrypoint"] == ["trainer", "serve"]
    assert not image["Config"]["Cmd"]
    assert set(image["Config"]["ExposedPorts"]) == {"8080/tcp", "8081/tcp"}


def test_it_predicts_the_held_out_digits_as_well_as_the_run(server: str, packaged: Packaged) -> None:
    status, answer = predict(server, packaged, {"instances": HELD_OUT.inputs.tolist()})
    assert status == 200
    predicted = np.argmax(answer["predictions"], axis=1)
    accuracy = float(np.mean(predicted == HELD_OUT.targets))
    assert round(accuracy, 4) == packaged.result["best"]["test_accuracy"]


def test_the_forms_of_a_request_give_the_same_numbers(server: str, packaged: Packaged) -> None:
    images = HELD_OUT.inputs[:2].tolist()
    status, answer = predict(server, packaged, {"instances": images}, CURL)
    assert status == 200
    expected = answer["predictions"]
    assert predict(server, packaged, {"instances": [{"images": each} for each in images]}) == (200, answer)
    assert predict(server, packaged, {"inputs": {"images": images}}) == (200, {"outputs": expected})
    tensor = {"name": "images", "datatype": "FP32", "shape": [2, 28, 28, 1], "data": np.ravel(images).tolist()}
    status, inferred = ask(server, f"/v2/models/{packaged.name}/infer", {"id": "7", "inputs": [tensor]})
    assert status == 200
    assert (inferred["id"], inferred["model_version"]) == ("7", packaged.export.name)
    status, without_id = ask(server, f"/v2/models/{packaged.name}/infer", {"inputs": [tensor]})
    assert (status, without_id["outputs"]) == (200, inferred["outputs"])
    (output,) = inferred["outputs"]
    assert (output["name"], output["shape"], output["datatype"]) == ("probabilities", [2, 10], "FP32")
    assert np.allclose(np.reshape(output["data"], [2, 10]), expected)


def test_it_answers_grpc(server: str, packaged: Packaged) -> None:
    done = docker("exec", server, "python", "-c", GRPC_CLIENT, packaged.name)
    assert done.returncode == 0, done.stderr
    assert np.allclose(np.sum(json.loads(done.stdout), axis=1), [1, 1])


def test_it_describes_the_model_and_is_ready(server: str, packaged: Packaged) -> None:
    assert ask(server, f"/v1/models/{packaged.name}") == (200, {"name": packaged.name, "ready": True})
    assert ask(server, f"/v2/models/{packaged.name}/ready") == (200, {"name": packaged.name, "ready": True})
    status, found = ask(server, f"/v2/models/{packaged.name}")
    assert status == 200
    assert found["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 28, 28, 1]}]
    assert found["outputs"] == [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}]


def test_a_request_of_the_wrong_shape_gets_400_and_a_sentence(server: str, packaged: Packaged) -> None:
    expected = {"error": "images: its shape is [1, 63], but float32 [n, 28, 28, 1] was expected."}
    assert predict(server, packaged, {"instances": [[0] * 63]}) == (400, expected)
    tensor = {"name": "images", "datatype": "FP32", "shape": [1, 63], "data": [0] * 63}
    assert ask(server, f"/v2/models/{packaged.name}/infer", {"inputs": [tensor]}) == (400, expected)
    status, answer = ask(server, f"/v2/models/{packaged.name}/infer", {"inputs": [{**tensor, "shape": [1, 28, 28, 1]}]})
    assert status == 400
    assert answer["error"].startswith("images: the data is not FP32 of the shape [1, 28, 28, 1] (")
    log = docker("logs", server)
    assert expected["error"] in log.stderr
    assert "Traceback" not in log.stderr


@pytest.mark.parametrize("content_type", [JSON, CURL])
@pytest.mark.parametrize("body", ["{", "[1]", "{}", '{"instances": 3}', "[" * 5000])
def test_a_body_that_is_no_request_gets_400(server: str, packaged: Packaged, body: str, content_type: str) -> None:
    status, answer = predict(server, packaged, body, content_type)
    assert status == 400
    assert answer["error"]


def test_an_unknown_model_gets_404(server: str) -> None:
    expected = (404, {"error": "Model with name letters does not exist."})
    assert ask(server, "/v1/models/letters:predict", {"instances": [[0]]}) == expected
    assert ask(server, "/v2/models/letters/ready") == expected
    assert ask(server, "/v2/repository/models/letters/load", {}) == expected


def test_no_client_can_take_the_model_away(server: str, packaged: Packaged) -> None:
    status, answer = ask(server, f"/v2/repository/models/{packaged.name}/unload", {})
    assert (status, answer) == (400, {"error": "this server has one model, which cannot be loaded or unloaded."})
    assert ask(server, f"/v1/models/{packaged.name}")[0] == 200


def test_its_metrics_count_predictions(server: str, packaged: Packaged) -> None:
    def count() -> float:
        status, text = ask(server, "/metrics")
        assert status == 200
        (line,) = [line for line in text.splitlines() if line.startswith("request_predict_seconds_count")]
        assert f'model_name="{packaged.name}"' in line
        return float(line.split()[1])

    assert predict(server, packaged, {"instances": HELD_OUT.inputs[:1].tolist()})[0] == 200
    before = count()
    assert predict(server, packaged, {"instances": HELD_OUT.inputs[:1].tolist()})[0] == 200
    assert count() == before + 1


def test_it_finishes_a_request_before_it_stops(image_name: str, packaged: Packaged) -> None:
    server = start(image_name)
    wait_until_ready(server)
    try:
        # In a container of its own, because the server's end would kill it.
        options = ["--rm", "--interactive", f"--network=container:{server}", "--entrypoint=python", image_name]
        words = ["-c", CLIENT, f"/v1/models/{packaged.name}:predict", JSON, "--slowly"]
        with subprocess.Popen(
            ["docker", "run", *options, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdin
            assert client.stdout
            print(json.dumps({"instances": HELD_OUT.inputs[:2].tolist()}), file=client.stdin, flush=True)
            assert client.stdout.readline() == "half\n"
            assert docker("kill", "--signal=TERM", server).returncode == 0
            time.sleep(1)
            print(file=client.stdin, flush=True)
            status, answer = json.loads(client.stdout.readline())
        assert status == 200
        assert len(json.loads(answer)["predictions"]) == 2
        assert docker("wait", server).stdout == "0\n"
    finally:
        docker("rm", "--force", server)


def test_a_model_whose_file_was_altered_is_refused(image_name: str) -> None:
    alter = "cp -r /model /tmp/model && echo >> /tmp/model/export/variables/variables.index"
    command = f"{alter} && exec trainer serve /tmp/model"
    done = docker("run", "--rm", *LOCKED_DOWN, "--entrypoint=sh", image_name, "-c", command)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert "a file of the model image-test was altered: the digest is sha256:" in sentence


def test_an_unknown_option_is_reported_in_one_sentence(image_name: str) -> None:
    done = docker("run", "--rm", *LOCKED_DOWN, image_name, "--port=80")
    assert (done.returncode, done.stdout) == (2, "")
    sentence = "trainer: unrecognized arguments: --port=80 (did you mean --http_port?) (see trainer serve --help).\n"
    assert done.stderr == sentence


def test_kserve_knows_every_key_of_the_example(server: str) -> None:
    def unknown(manifest: Any) -> list[str]:
        command = ["docker", "exec", "--interactive", server, "python", "-c", MANIFEST_KEYS]
        done = subprocess.run(command, input=json.dumps(manifest), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    manifest = yaml.safe_load((ROOT / "examples" / "inference-service.yaml").read_text())
    assert unknown(manifest) == []
    manifest["spec"]["predictor"]["containers"][0]["securityContext"]["isRoot"] = False
    assert unknown(manifest) == [".spec.predictor.containers.securityContext.isRoot"]
