"""Training directories and data on a real S3 server."""

import json
import re
import shutil
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hack.ports import free_ports
from tests.processes.object_stores import SECRET, ObjectStore
from tests.processes.trainers import PATIENCE, Trainer, wait_until

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    server = ObjectStore(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """The folder of temporary files of the trainers."""
    folder = tmp_path / "local"
    folder.mkdir()
    return folder


@pytest.fixture
def run(trainer: Trainer, store: ObjectStore, local: Path) -> Run:
    """Runs `trainer WORDS…` with access to the server; returns the exit code and the output."""

    def run_trainer(*words: str, **environment: str) -> tuple[int, str]:
        given = {**store.environment, "TMPDIR": str(local), **environment}
        code, output = trainer.run(*words, patience=PATIENCE, **given)
        assert SECRET not in output
        return code, output

    return run_trainer


def result(store: ObjectStore, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store.folder / name / "result.json").read_text())
    return found


def saved_step(store: ObjectStore, name: str) -> int:
    """The step of the newest checkpoint that `checkpoint` names; its files must be there."""
    text = (store.folder / name / "checkpoint").read_text()
    match = re.match(r'model_checkpoint_path: "(model.ckpt-(\d+))"', text)
    assert match, text
    for suffix in (".index", ".data-00000-of-00001"):
        assert (store.folder / name / (match[1] + suffix)).stat().st_size
    return int(match[2])


def test_a_run_continues_without_its_local_files(run: Run, store: ObjectStore, local: Path) -> None:
    for steps in (200, 400):
        code, output = run("train", f"--train_steps={steps}", f"--train_dir={store.uri('a')}")
        assert code == 0, output
        assert f"result in {store.uri('a')}/result.json" in output
        assert saved_step(store, "a") == steps
        assert not list(local.iterdir()), "the temporary copy is removed"
    assert "restored" in output
    found = result(store, "a")
    assert (found["state"], found["global_step"], found["train_dir"]) == ("done", 400, store.uri("a"))
    assert found["checkpoint"] == f"{store.uri('a')}/model.ckpt-400"
    assert (store.folder / "a/export/400/saved_model.pb").exists()
    assert list((store.folder / "a/train").glob("events.*"))
    remaining = sorted(path.name for path in (store.folder / "a").glob("model.ckpt-*.index"))
    assert "model.ckpt-400.index" in remaining
    code, output = run("train", "--train_steps=400", f"--train_dir={store.uri('a')}", "--hidden_units=7")
    assert code == 2
    assert "holds a run of different parameters" in output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_continues_from_what_was_copied(
    trainer: Trainer, run: Run, store: ObjectStore, local: Path, number: signal.Signals
) -> None:
    words = ["train", f"--train_dir={store.uri('a')}", "--save_seconds=1", "--report_steps=1000"]
    environment = {**store.environment, "TMPDIR": str(local)}
    process = trainer.start(*words, "--train_steps=10000000", **environment)
    wait_until(lambda: (store.folder / "a/checkpoint").exists() and saved_step(store, "a") > 0)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    step = saved_step(store, "a")
    if number == signal.SIGTERM:
        assert f"saved step {step}; continue" in output, "the last checkpoint is copied before the end"
    shutil.rmtree(local)
    local.mkdir()
    code, output = run(*words, f"--train_steps={step + 100}")
    assert code == 0, output
    assert re.search(rf"restored \S+model.ckpt-{step}\b", output)
    assert result(store, "a")["global_step"] == step + 100


def test_training_goes_on_while_the_store_is_away(trainer: Trainer, store: ObjectStore, local: Path) -> None:
    words = ["train", f"--train_dir={store.uri('a')}", "--save_seconds=1", "--train_steps=10000000"]
    process = trainer.start(*words, **store.environment, TMPDIR=str(local))
    wait_until(lambda: (store.folder / "a/checkpoint").exists())
    store.stop()
    assert process.stdout
    lines = iter(process.stdout.readline, "")
    assert any("training goes on, and the copy is made later" in line for line in lines)
    assert any("steps/s" in line for line in lines)
    step = saved_step(store, "a")
    store.start()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert saved_step(store, "a") > step


def test_the_last_changes_are_copied_when_the_store_is_back(trainer: Trainer, store: ObjectStore, local: Path) -> None:
    words = ["train", f"--train_dir={store.uri('a')}", "--train_steps=20000"]
    process = trainer.start(*words, **store.environment, TMPDIR=str(local))
    wait_until(lambda: (store.folder / "a/run.json").exists())
    store.stop()
    assert process.stdout
    assert any("done: 20000 steps" in line for line in iter(process.stdout.readline, ""))
    store.start()
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert result(store, "a")["state"] == "done"
    assert saved_step(store, "a") == 20_000


def test_a_cluster_and_tensorboard_use_a_store(trainer: Trainer, run: Run, store: ObjectStore) -> None:
    uri = store.uri("cluster")
    code, output = run("launch", "--ps=1", "--workers=2", "--train_steps=300", f"--train_dir={uri}")
    assert code == 0, output
    assert f"trainer tensorboard --logdir {uri}" in output
    assert result(store, "cluster")["global_step"] >= 300
    (port,) = free_ports(1)
    trainer.start("tensorboard", f"--logdir={uri}", f"--port={port}", **store.environment)

    def shown() -> set[str]:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/data/runs", timeout=5) as answer:
                return set(json.load(answer))
        except OSError:
            return set()

    wait_until(lambda: {"train", "test"} <= shown())
    trainer.end()


def test_data_is_read_from_a_store(run: Run, store: ObjectStore) -> None:
    random = np.random.default_rng(0)
    (store.folder / "data").mkdir()
    labels = random.integers(0, 2, 200)
    np.savez(store.folder / "data/digits.npz", x=labels[:, None] + random.normal(0, 0.1, (200, 4)), y=labels)
    code, output = run("train", "--dataset=npz", f"--data_dir={store.uri('data')}", "--train_steps=100")
    assert code == 0, output
    assert "test accuracy 1.0" in output


@pytest.mark.parametrize(
    ("words", "environment", "sentence"),
    [
        (["--train_dir=s3://absent/a"], {}, r"train_dir=s3://absent/a: it cannot be read \(NoSuchBucket: "),
        (
            ["--train_dir=s3://runs/a"],
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            r"\(SignatureDoesNotMatch: .*\); check the address and the cred",
        ),
        (["--train_dir=hdfs://host/a"], {}, "train_dir=hdfs://host/a: a path or one of s3://BUCKET/FOLDER"),
        (["--dataset=npz", "--data_dir=s3://absent/a"], {}, "data_dir=s3://absent/a: it cannot be read"),
    ],
)
def test_a_store_that_cannot_be_read_is_refused(
    run: Run, words: list[str], environment: dict[str, str], sentence: str
) -> None:
    code, output = run("train", "--train_steps=10", *words, **environment)
    assert code == 2, output
    assert re.search(sentence, output)
    assert "Traceback" not in output
    assert len(output.strip().splitlines()[-1]) < 400


def test_an_evaluator_cannot_use_a_store(run: Run, store: ObjectStore, hosts: Callable[[int, int], list[str]]) -> None:
    words = [*hosts(1, 1), "--job_name=evaluator", "--task_index=0", f"--train_dir={store.uri('a')}"]
    code, output = run("train", *words)
    assert code == 2
    assert "an evaluator needs a directory that it shares with the chief" in output
