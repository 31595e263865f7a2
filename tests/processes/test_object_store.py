"""Training directories and data on a real S3 server."""

import json
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hack.ports import free_ports
from tests.processes.object_stores import SECRET, ObjectStore
from tests.processes.trainers import PATIENCE, WITHOUT_EVALUATIONS, Trainer, wait_until
from trainer.errors import ConfigurationError, SupersededError
from trainer.run_directory.mirror import Mirror, make_directory
from trainer.run_directory.writer import Writer
from trainer.storage import object_store

Run = Callable[..., tuple[int, str]]


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


@pytest.fixture
def access(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives this process access to the server."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


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
        code, output = run("train", f"--train_steps={steps}", f"--train_dir={store.uri('a')}", WITHOUT_EVALUATIONS)
        assert code == 0, output
        assert f"result in {store.uri('a')}/result.json" in output
        assert saved_step(store, "a") == steps
        assert not list(local.iterdir()), "the temporary copy is removed"
    assert "restored" in output
    found = result(store, "a")
    assert (found["state"], found["global_step"], found["train_dir"]) == ("done", 400, store.uri("a"))
    assert found["checkpoint"] == f"{store.uri('a')}/model.ckpt-400"
    assert str(local) not in output.splitlines()[-1]
    assert (store.folder / "a/export" / Path(found["export"]).name / "saved_model.pb").exists()
    assert list((store.folder / "a/train").glob("events.*"))
    remaining = sorted(path.name for path in (store.folder / "a").glob("model.ckpt-*.index"))
    assert "model.ckpt-400.index" in remaining
    code, output = run("train", "--train_steps=400", f"--train_dir={store.uri('a')}", "--hidden_units=7")
    assert code == 2
    assert "holds a run of different parameters" in output


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_killed_run_continues_from_what_was_copied(
    trainer: Trainer, run: Run, store: ObjectStore, local: Path, number: signal.Signals
) -> None:
    words = ["train", f"--train_dir={store.uri('a')}", "--save_seconds=1", "--report_steps=1000", WITHOUT_EVALUATIONS]
    environment = {**store.environment, "TMPDIR": str(local)}
    process = trainer.start(*words, "--train_steps=10000000", **environment)
    wait_until(lambda: (store.folder / "a/checkpoint").exists() and saved_step(store, "a") > 0)
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE)
    step = saved_step(store, "a")
    if number == signal.SIGTERM:
        assert f"saved step {step}; continue" in output, "the last checkpoint is copied before the end"
    shutil.rmtree(local)
    local.mkdir()
    code, output = run(*words, f"--train_steps={step + 100}")
    assert code == 0, output
    assert re.search(rf"restored \S+model.ckpt-{step}\b", output)
    assert result(store, "a")["global_step"] == step + 100


@pytest.mark.long
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
    process.communicate(timeout=PATIENCE)
    assert saved_step(store, "a") > step


@pytest.mark.long
def test_the_last_changes_are_copied_when_the_store_is_back(trainer: Trainer, store: ObjectStore, local: Path) -> None:
    words = ["train", f"--train_dir={store.uri('a')}", "--train_steps=20000"]
    process = trainer.start(*words, **store.environment, TMPDIR=str(local))
    wait_until(lambda: (store.folder / "a/run.json").exists())
    store.stop()
    assert process.stdout
    assert any("done: 20000 steps" in line for line in iter(process.stdout.readline, ""))
    store.start()
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert result(store, "a")["state"] == "done"
    assert saved_step(store, "a") == 20_000


def test_the_last_checkpoint_is_copied_within_the_grace_period(
    trainer: Trainer, store: ObjectStore, local: Path
) -> None:
    """The store is away at the signal, and comes back after the time that the main thread has."""
    words = ["train", f"--train_dir={store.uri('a')}", "--save_seconds=1", "--train_steps=10000000"]
    process = trainer.start(*words, **store.environment, TMPDIR=str(local))
    wait_until(lambda: (store.folder / "a/checkpoint").exists())
    store.stop()
    process.send_signal(signal.SIGTERM)
    assert process.stdout
    saved = next(found for line in process.stdout if (found := re.search(r"saved step (\d+); continue", line)))
    time.sleep(5)
    store.start()
    process.communicate(timeout=PATIENCE)
    assert saved_step(store, "a") == int(saved[1])


@pytest.mark.long
def test_a_store_that_is_slower_than_the_checkpoints_has_a_whole_one(
    trainer: Trainer, store: ObjectStore, local: Path
) -> None:
    words = ["train", f"--train_dir={store.uri('a')}", "--save_steps=50", "--train_steps=10000000"]
    with store.slowed(upload=200_000) as environment:
        process = trainer.start(*words, **environment, TMPDIR=str(local))
        wait_until(lambda: (store.folder / "a/checkpoint").exists() and saved_step(store, "a") > 0)
        process.kill()
        process.communicate()
    saved_step(store, "a")


@pytest.mark.usefixtures("access")
def test_a_push_after_the_end_deletes_nothing(store: ObjectStore) -> None:
    """The watchdog may push while the main thread ends."""
    directory, copy = make_directory(), object_store.ObjectStore(store.uri("a"), "train_dir")
    with Mirror(copy, directory, lambda: False, Writer("a", "1", is_restart=False)) as mirror:
        (directory / "run.json").write_text("{}")
    assert not directory.exists()
    mirror.push()
    assert (store.folder / "a/run.json").read_text() == "{}"


@pytest.mark.usefixtures("access")
def test_a_chief_copies_nothing_when_another_one_has_claimed_the_copy(store: ObjectStore) -> None:
    directory, copy = make_directory(), object_store.ObjectStore(store.uri("a"), "train_dir")
    old, new = Writer("a", "1", is_restart=False), Writer("a", "2", is_restart=False)
    with (  # noqa: PT012
        pytest.raises(SupersededError, match="belongs to another chief"),
        Mirror(copy, directory, lambda: False, old),
    ):
        (directory / "run.json").write_text("old")
        wait_until(lambda: copy.read("run.json") == b"old")
        newer = make_directory()
        with Mirror(copy, newer, lambda: False, new):
            assert (newer / "run.json").read_text() == "old"
            (newer / "run.json").write_text("newer")
        (directory / "run.json").write_text("the old chief's last words")
        wait_until((directory / "writer.json").exists)  # there the old chief's main thread finds the claim
    assert copy.read("run.json") == b"newer"
    assert not directory.exists()
    with pytest.raises(SupersededError), Mirror(copy, make_directory(), lambda: False, Writer("a", "1", True)):
        raise AssertionError("the old chief's pod has restarted")


@pytest.mark.usefixtures("access")
def test_a_chief_that_is_superseded_during_a_copy_writes_no_pointer_and_deletes_nothing(store: ObjectStore) -> None:
    """A copy of a large checkpoint takes minutes."""

    class SlowStore(object_store.ObjectStore):
        def upload(self, name: str, content: Path | bytes) -> None:
            super().upload(name, content)
            if name == "model.ckpt-2":
                super().upload("writer.json", Writer("a", "2", is_restart=False).claim(None))

    copy = SlowStore(store.uri("a"), "train_dir")
    with (  # noqa: PT012
        pytest.raises(SupersededError, match="belongs to another chief"),
        Mirror(copy, make_directory(), lambda: False, Writer("a", "1", is_restart=False)) as mirror,
    ):
        directory = mirror._directory
        (directory / "model.ckpt-1").write_text("1")
        (directory / "checkpoint").write_text("1")
        mirror.push()
        assert copy.read("checkpoint") == b"1"
        (directory / "model.ckpt-2").write_text("2")
        (directory / "checkpoint").write_text("2")
        (directory / "model.ckpt-1").unlink()
    assert (copy.read("checkpoint"), copy.read("model.ckpt-1")) == (b"1", b"1")


@pytest.mark.long
def test_the_directory_of_a_killed_process_is_removed(
    trainer: Trainer, run: Run, store: ObjectStore, local: Path
) -> None:
    words = ["train", f"--train_dir={store.uri('a')}", "--train_steps=10000000"]
    process = trainer.start(*words, **store.environment, TMPDIR=str(local))
    wait_until(lambda: (store.folder / "a/run.json").exists())
    code, output = run("train", f"--train_dir={store.uri('b')}", "--train_steps=10")
    assert code == 0, output
    assert len(list(local.glob("train_dir-*"))) == 1, "that of the other process, which runs, stays"
    process.kill()
    process.communicate()
    code, output = run("train", f"--train_dir={store.uri('b')}", "--train_steps=20")
    assert code == 0, output
    assert not list(local.glob("train_dir-*"))


@pytest.mark.long
def test_a_file_may_take_longer_than_half_a_minute(run: Run, store: ObjectStore) -> None:
    (store.folder / "data").mkdir()
    labels = np.arange(200) % 2
    np.savez(store.folder / "data/digits.npz", x=np.random.default_rng(0).random((200, 4000)), y=labels)
    with store.slowed(download=160_000) as environment:
        code, output = run(
            "train", "--dataset=npz", f"--data_dir={store.uri('data')}", "--train_steps=1", **environment
        )
    assert code == 0, output


@pytest.mark.long
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
        (
            ["--train_dir=s3://runs/a"],
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            r"\(SignatureDoesNotMatch: .*\); check the address and the cred",
        ),
        (["--dataset=npz", "--data_dir=s3://absent/a"], {}, "data_dir=s3://absent/a: it cannot be read"),
    ],
)
def test_a_store_that_cannot_be_read_is_refused(
    run: Run, words: list[str], environment: dict[str, str], sentence: str
) -> None:
    code, output = run("train", "--train_steps=10", *words, **environment)
    assert code == 2, output
    assert re.search(sentence, output)
    assert "\nTraceback" not in output
    assert len(output.strip().splitlines()[-1]) < 400


def refusal(uri: str) -> str:
    """The sentence in which a training directory is refused."""
    with pytest.raises(ConfigurationError) as refused:
        object_store.ObjectStore(uri, "train_dir").check_writable()
    return str(refused.value)


@pytest.mark.usefixtures("access")
def test_a_bucket_that_does_not_exist_and_a_kind_of_store_that_is_unknown_are_named() -> None:
    assert refusal("s3://absent/a").startswith("train_dir=s3://absent/a: it cannot be read (NoSuchBucket: ")
    assert refusal("hdfs://host/a").startswith("train_dir=hdfs://host/a: a path or one of s3://BUCKET/FOLDER")


@pytest.mark.usefixtures("access")
def test_absent_credentials_are_named(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", store.environment["AWS_ENDPOINT_URL"])
    assert "(there are no credentials in the environment, and the machine has no identity)" in refusal("s3://runs/a")


@pytest.mark.usefixtures("access")
def test_a_store_that_cannot_be_written_is_refused(store: ObjectStore) -> None:
    store.stop()
    store.start("--readonly")
    sentence = r"train_dir=s3://runs/a: it cannot be written \(AccessDenied: .*\); check the address"
    assert re.match(sentence, refusal("s3://runs/a"))


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [["--train_dir=s3://runs/a"], ["--dataset=npz", "--data_dir=s3://runs/a"]],
)
def test_a_store_that_is_away_may_come_back(run: Run, store: ObjectStore, words: list[str]) -> None:
    store.stop()
    code, output = run("train", "--train_steps=10", *words)
    assert code == 138, output
    assert "check the network and the store's endpoint" in output
    assert "\nTraceback" not in output
