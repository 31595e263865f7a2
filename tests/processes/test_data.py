"""`trainer data` as real processes: writers at once, a full volume, signals, object stores, and running trainers."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from tests.processes.object_stores import SECRET, ObjectStore
from tests.processes.trainers import PATIENCE, Trainer, wait_until

ROWS = 2000
STREAM = "import trainer.data.lance_table as table; table.IN_MEMORY_BYTES = 0; from trainer.cli import main; main()"
"""The trainer, which reads tables of any size while it trains."""


@pytest.fixture
def raw(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder with .npz files of random rows, whose first input is `number`."""

    def write(number: int, files: int = 1, rows: int = ROWS, width: int = 20) -> Path:
        folder = tmp_path / f"raw{number}"
        folder.mkdir()
        random = np.random.default_rng(number)
        for index in range(files):
            x = random.random((rows, width), np.float32)
            x[:, 0] = number
            np.savez(folder / f"{index}.npz", x=x, y=random.integers(0, 3, rows))
        return folder

    return write


def first_inputs(uri: str, version: int | None = None) -> dict[float, int]:
    """How many rows have each number."""
    rows = lance.dataset(uri, version=version).to_table(["x"])["x"].combine_chunks()
    numbers = rows.flatten().to_numpy().reshape(len(rows), -1)[:, 0]
    values, counts = np.unique(numbers, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def environment(store: ObjectStore) -> dict[str, Any]:
    return dict(store.environment)


def data(trainer: Trainer, *words: str | Path, **environment: str) -> Any:
    """Run `trainer data WORDS… --json` to its successful end; return what it prints."""
    process = trainer.start("data", *words, "--json", **environment)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert SECRET not in output
    return json.loads(output[min(output.find(each) % (len(output) + 1) for each in "[{") :])


def test_writers_at_once_lose_nothing(trainer: Trainer, raw: Callable[..., Path]) -> None:
    data(trainer, "import", raw(0), "t.lance")
    writers = [trainer.start("data", "import", raw(number, files=5), "t.lance", "--append") for number in (1, 2, 3)]
    for writer in writers:
        output, _ = writer.communicate(timeout=PATIENCE)
        assert writer.returncode == 0, output
    uri = str(trainer.folder / "t.lance")
    assert first_inputs(uri) == {0: ROWS, 1: 5 * ROWS, 2: 5 * ROWS, 3: 5 * ROWS}
    assert [each["rows"] for each in data(trainer, "versions", "t.lance")][0::3] == [ROWS, 16 * ROWS]
    stats = data(trainer, "stats", "t.lance")
    assert sum(sum(classes.values()) for classes in stats["splits"].values()) == 16 * ROWS
    assert stats["values"]["x"]["count"] == 16 * ROWS * 20


def test_a_dataset_is_created_once(trainer: Trainer, raw: Callable[..., Path]) -> None:
    writers = [trainer.start("data", "import", raw(number, files=5), "t.lance") for number in (1, 2, 3)]
    outputs = [writer.communicate(timeout=PATIENCE)[0] for writer in writers]
    codes = [writer.returncode for writer in writers]
    assert codes.count(0) == 1, outputs
    assert set(codes) <= {0, 2, 138}, outputs
    (winner,) = [number for number, code in enumerate(codes, 1) if code == 0]
    assert first_inputs(str(trainer.folder / "t.lance")) == {winner: 5 * ROWS}
    for code, output in zip(codes, outputs, strict=True):
        if code:
            assert "exists in version 1" in output or "was created by another process meanwhile" in output, output


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A volume of 2 MB."""
    folder = tmp_path / "volume"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted: this needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_volume_that_fills_in_keeps_its_versions(
    trainer: Trainer, raw: Callable[..., Path], small_volume: Path
) -> None:
    uri = small_volume / "t.lance"
    large = raw(9, files=20)
    code, output = trainer.run("data", "import", large, uri)
    assert (code, output.count("\n")) == (2, 1), output
    assert "cannot be written: No space left on device" in output
    assert not uri.exists()
    data(trainer, "import", raw(1), uri, "--tag=good")
    for mode in ("--append", "--overwrite"):
        code, output = trainer.run("data", "import", large, uri, mode)
        assert (code, output.count("\n")) == (2, 1), output
    assert first_inputs(str(uri)) == {1: ROWS}
    assert [each["tags"] for each in data(trainer, "versions", uri)] == [["good"]]
    assert len(list((uri / "data").iterdir())) == 1, "files without a version stay on the volume"
    data(trainer, "import", raw(2), uri, "--append")
    assert first_inputs(str(uri)) == {1: ROWS, 2: ROWS}


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_import_that_is_stopped_writes_no_version(
    trainer: Trainer, raw: Callable[..., Path], number: signal.Signals
) -> None:
    data(trainer, "import", raw(1), "t.lance")
    table = trainer.folder / "t.lance"
    writer = trainer.start("data", "import", raw(2, files=1000), "t.lance", "--append")
    wait_until(lambda: len(list((table / "data").iterdir())) == 2)
    writer.send_signal(number)
    output, _ = writer.communicate(timeout=PATIENCE)
    assert writer.returncode == 128 + number, output
    assert output == "trainer: stopped before the version was complete; none was written.\n"
    assert len(lance.dataset(str(table)).versions()) == 1
    assert len(list((table / "data").iterdir())) == 1, "files without a version stay"


@pytest.mark.long
def test_versions_on_an_object_store(trainer: Trainer, raw: Callable[..., Path], store: ObjectStore) -> None:
    uri = store.uri("t.lance")
    assert data(trainer, "import", raw(1), uri, "--tag=first", **environment(store))["version"] == 1
    writers = [
        trainer.start("data", "import", raw(number, files=5), uri, "--append", **environment(store))
        for number in (2, 3)
    ]
    for writer in writers:
        output, _ = writer.communicate(timeout=PATIENCE)
        assert writer.returncode == 0, output
    code, output = trainer.run("data", "import", raw(4), uri, **environment(store))
    assert code == 2
    assert f"{uri} exists in version 3" in output
    found = data(trainer, "versions", uri, **environment(store))
    assert [(each["rows"], each["tags"]) for each in found][::2] == [(ROWS, ["first"]), (11 * ROWS, [])]
    assert data(trainer, "stats", uri, **environment(store))["rows"] == 11 * ROWS
    assert data(trainer, "diff", uri, "first", "3", **environment(store))["rows_added"] == 10 * ROWS
    data(trainer, "tag", uri, "first", "2", "--force", **environment(store))
    code, output = trainer.run(
        "train", "--dataset=lance", f"--data_dir={uri}", "--data_version=1", "--train_steps=10", "--train_dir=run",
        **environment(store),
    )  # fmt: skip
    assert code == 0, output
    result = json.loads((trainer.folder / "run" / "result.json").read_text())
    assert (result["dataset_uri"], result["dataset_version"]) == (uri, "1")
    for words in (["versions"], ["import", "raw1"]):
        wrong: dict[str, Any] = {**store.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
        code, output = trainer.run("data", *words, uri, **wrong)
        assert (code, output.count("\n")) == (2, 1), output
        assert "check the address and the credentials" in output


def test_a_store_without_conditional_writes_is_named(
    trainer: Trainer, raw: Callable[..., Path], store: ObjectStore
) -> None:
    sentence = "the store ignores conditional writes (If-None-Match)"
    code, output = trainer.run("data", "import", raw(1), store.uri("a.lance"), **environment(store))
    assert code == 0, output
    assert sentence not in output
    store.stop()
    store.start(has_conditional_writes=False)
    code, output = trainer.run("data", "import", "raw1", store.uri("b.lance"), **environment(store))
    assert code == 0, output
    assert f"{store.uri('b.lance')}: {sentence}, so of two imports at the same time one may be lost" in output
    assert not list(store.folder.glob("?.lance/.conditional"))


def train_on(trainer: Trainer, uri: str, steps: int, *words: str) -> subprocess.Popen[str]:
    options = ["--dataset=lance", f"--data_dir={uri}", "--train_dir=run", f"--train_steps={steps}", *words]
    return trainer.python("-c", STREAM, "train", "--report_steps=20", "--eval_seconds=1", *options)


@pytest.mark.long
def test_new_versions_do_not_disturb_a_running_training(trainer: Trainer, raw: Callable[..., Path]) -> None:
    data(trainer, "import", raw(1), "t.lance")
    uri = str(trainer.folder / "t.lance")
    running = train_on(trainer, uri, 300)
    result = trainer.folder / "run" / "result.json"
    wait_until(result.exists)
    running.send_signal(signal.SIGSTOP)  # the imports may take longer than the training
    data(trainer, "import", raw(2), uri, "--append")
    data(trainer, "import", raw(3, width=7), uri, "--overwrite", "--tag=other")
    running.send_signal(signal.SIGCONT)
    output, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, output
    first = json.loads(result.read_text())
    assert (first["dataset_uri"], first["dataset_version"], first["global_step"]) == (uri, "1", 300)
    assert len(first["dataset_digest"]) == 64
    # The run continues on its version, also after a restart, and names it in all of its files.
    again = train_on(trainer, uri, 320)
    output, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, output
    assert "data: version 1, on which the run began (data_version=the newest)" in output
    last = json.loads(result.read_text())
    facts = {key: last[key] for key in ("dataset", "dataset_uri", "dataset_version", "dataset_digest")}
    assert facts == {key: first[key] for key in facts}
    claim = json.loads((trainer.folder / "run" / "run.json").read_text())
    exported = json.loads((trainer.folder / last["export"] / "data.json").read_text())
    for each in (claim, exported):
        assert {key: each[key] for key in facts} == facts
    # Another version by its number is another run.
    other = train_on(trainer, uri, 340, "--data_version=2")
    output, _ = other.communicate(timeout=PATIENCE)
    assert other.returncode == 2
    assert "holds a run of different dataset" in output


def test_the_tasks_of_a_launch_read_one_version(trainer: Trainer, raw: Callable[..., Path]) -> None:
    data(trainer, "import", raw(1), "t.lance", "--tag=chosen")
    data(trainer, "import", raw(2), "t.lance", "--append")
    result = trainer.launch(
        "--ps=1", "--workers=2", "--dataset=lance", "--data_dir=t.lance", "--data_version=chosen", "--train_dir=run",
        "--train_steps=50",
    )  # fmt: skip
    assert result["dataset_version"] == "1"
    assert "data_version: '1'" in (trainer.folder / "run" / "logs" / "config.yaml").read_text()


@pytest.mark.long
def test_a_worker_that_has_read_another_version_ends(
    trainer: Trainer, raw: Callable[..., Path], hosts: Callable[[int, int], list[str]]
) -> None:
    data(trainer, "import", raw(1), "t.lance")
    data(trainer, "import", raw(2), "t.lance", "--append")
    flags = [*hosts(1, 2), "--dataset=lance", "--data_dir=t.lance", "--train_steps=100000"]
    trainer.start("train", *flags, "--job_name=ps", "--task_index=0")
    trainer.start("train", *flags, "--job_name=worker", "--task_index=0", "--data_version=1", "--train_dir=run")
    late = trainer.start("train", *flags, "--job_name=worker", "--task_index=1")
    output, _ = late.communicate(timeout=PATIENCE)
    assert late.returncode == 138, output
    assert "this task has read version 2 of the data, but the run is on version 1; restart it" in output
    # With the training directory it finds the version of the run.
    again = trainer.start("train", *flags, "--job_name=worker", "--task_index=1", "--train_dir=run")
    assert again.stdout
    assert any("data: version 1, on which the run began" in line for line in again.stdout)
    trainer.end()
