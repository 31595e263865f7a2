"""`trainer data watch` as a real process, with real commands, on datasets that change."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from tests.processes.object_stores import ObjectStore
from tests.processes.trainers import PATIENCE, Trainer, wait_for_line, wait_until

SOME_LOOKS = 1.0
"""Seconds in which the watch looks several times."""
RECORD = "echo $DATA_VERSION >> runs"
"""Each run is a line with its version in the file `runs`."""


class Watch:
    """A `trainer data watch` of the dataset t.lance, and the runs of its command."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.folder = trainer.folder
        self.dataset = self.folder / "t.lance"
        self.log = self.folder / "watch.log"
        self.process: subprocess.Popen[str]

    def start(
        self, script: str, *options: str, uri: str = "t.lance", environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it with a shell script as the command, and wait until it watches."""
        self.log.unlink(missing_ok=True)
        variables = ["env", *(f"{name}={value}" for name, value in (environment or {}).items())]
        words = ["data", "watch", uri, "--interval=0.1", *options, "--", "sh", "-c", script]
        self.process = self._trainer.start_in(variables, self.log, *words)
        wait_until(lambda: self.log.exists() and "watching" in self.log.read_text())

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def runs(self) -> list[str]:
        """What the runs have written, in their order."""
        file = self.folder / "runs"
        return file.read_text().split() if file.exists() else []

    def wait_for(self, *runs: str) -> None:
        """Wait until there are so many runs; they must be these."""
        wait_until(lambda: len(self.runs()) >= len(runs))
        assert self.runs() == [*runs]

    def write(self, mode: str = "append") -> int:
        """Write a version of the dataset; return its number."""
        table = pa.table({"x": np.arange(2), "y": np.arange(2)})
        return int(lance.write_dataset(table, str(self.dataset), mode=mode).version)


@pytest.fixture
def watch(trainer: Trainer) -> Watch:
    return Watch(trainer)


def test_the_command_runs_once_for_each_version(watch: Watch) -> None:
    watch.start('echo "$DATA_VERSION,$DATA_URI,[$DATA_TAG],${#DATA_TRANSACTION}" >> runs')
    wait_for_line(watch.log, "waiting: there is no dataset at t.lance")
    for number in (1, 2, 3):
        assert watch.write() == number
        watch.wait_for(*(f"{each},t.lance,[],36" for each in range(1, number + 1)))
        time.sleep(SOME_LOOKS)
    watch.wait_for("1,t.lance,[],36", "2,t.lance,[],36", "3,t.lance,[],36")
    wait_until(lambda: watch.log.read_text().count("the command is done") == 3)
    assert watch.log.read_text().count("waiting") == 1
    assert watch.stop() == 128 + signal.SIGTERM


def test_of_the_versions_that_come_during_a_run_the_newest_is_next(watch: Watch) -> None:
    watch.write()
    watch.start(f"{RECORD}; until test -e go; do sleep 0.05; done")
    watch.wait_for("1")
    writers = [threading.Thread(target=watch.write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    time.sleep(SOME_LOOKS)
    watch.wait_for("1")  # one run at a time
    (watch.folder / "go").touch()
    watch.wait_for("1", "5")
    time.sleep(SOME_LOOKS)
    assert watch.stop() == 128 + signal.SIGTERM
    watch.wait_for("1", "5")


def test_a_restart_with_the_state_file_repeats_no_version_and_misses_none(watch: Watch) -> None:
    state = watch.folder / "state.json"
    watch.write()
    watch.start(RECORD, "--state=state.json")
    wait_until(lambda: state.exists() and json.loads(state.read_text())["version"] == 1)
    watch.stop()
    watch.start(RECORD, "--state=state.json")
    time.sleep(SOME_LOOKS)
    watch.stop()
    watch.wait_for("1")
    watch.write()
    watch.start(RECORD, "--state=state.json")
    watch.wait_for("1", "2")
    wait_until(lambda: json.loads(state.read_text())["version"] == 2)
    watch.stop()
    watch.start(RECORD)  # without the file, the present version is the first
    watch.wait_for("1", "2", "2")
    watch.stop()


def test_a_version_whose_run_was_stopped_is_repeated_after_a_restart(watch: Watch) -> None:
    watch.write()
    for runs in (["1"], ["1", "1"]):
        watch.start(f"{RECORD}; until test -e go; do sleep 0.05; done", "--state=state.json")
        watch.wait_for(*runs)
        assert watch.stop() == 128 + signal.SIGTERM
    assert not (watch.folder / "state.json").exists()


@pytest.mark.parametrize(
    ("failure", "outcome"), [("exit 7", "has ended with code 7"), ("kill -KILL $$", "was ended by signal 9 (Killed)")]
)
def test_a_command_that_fails_is_repeated_after_a_growing_pause(watch: Watch, failure: str, outcome: str) -> None:
    watch.write()
    watch.start(f"{RECORD}; test -e mended || {failure}")
    wait_until(lambda: len(watch.runs()) >= 3)
    (watch.folder / "mended").touch()
    wait_for_line(watch.log, "version 1: the command is done")
    runs = watch.runs()
    assert set(runs) == {"1"}
    log = watch.log.read_text()
    assert f"version 1: the command {outcome}; it runs again in 0.1 s, or for another version" in log
    assert "it runs again in 0.2 s" in log
    assert log.count(outcome) == len(runs) - 1
    time.sleep(SOME_LOOKS)
    watch.stop()
    assert watch.runs() == runs


def test_a_tag_runs_the_command_each_time_it_names_another_version(watch: Watch) -> None:
    watch.write()
    watch.start('echo "$DATA_VERSION,$DATA_TAG" >> runs', "--tag=latest")
    wait_for_line(watch.log, "waiting: t.lance has no tag latest")
    watch.write()
    tags = lance.dataset(str(watch.dataset)).tags
    tags.create("other", 1)
    tags.create("latest", 2)
    watch.wait_for("2,latest")
    watch.write()  # a version without the tag
    tags.update("other", 3)
    time.sleep(SOME_LOOKS)
    tags.update("latest", 3)
    watch.wait_for("2,latest", "3,latest")
    tags.update("latest", 1)  # back
    watch.wait_for("2,latest", "3,latest", "1,latest")
    tags.delete("latest")
    wait_until(lambda: watch.log.read_text().count("has no tag latest") == 2)
    tags.create("latest", 1)
    time.sleep(SOME_LOOKS)
    watch.stop()
    watch.wait_for("2,latest", "3,latest", "1,latest")


def test_a_dataset_that_is_made_anew_has_new_versions_with_the_same_numbers(watch: Watch) -> None:
    watch.write()
    watch.start(RECORD)
    watch.wait_for("1")
    shutil.rmtree(watch.dataset)
    assert watch.write() == 1
    watch.wait_for("1", "1")
    watch.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command_and_the_watch_ends_after_it(watch: Watch, number: signal.Signals) -> None:
    watch.write()
    handled = "trap 'sleep 1; echo handled >> runs; exit 5' TERM INT"
    watch.start(f"{handled}; {RECORD}; while :; do sleep 0.05; done", "--state=state.json")
    watch.wait_for("1")
    assert watch.stop(number) == 128 + number
    watch.wait_for("1", "handled")
    wait_for_line(watch.log, f"version 1: the command has ended with code 5 after {number.name}")
    assert not (watch.folder / "state.json").exists()


def test_a_signal_ends_the_processes_that_the_command_has_started(watch: Watch, trainer: Trainer) -> None:
    watch.write()
    watch.start(f"{RECORD}; sleep 1000; true")
    watch.wait_for("1")
    assert watch.stop() == 128 + signal.SIGTERM
    wait_until(lambda: not trainer.processes())


def test_a_run_that_succeeds_in_spite_of_a_signal_is_done(watch: Watch) -> None:
    watch.write()
    watch.start(f"trap 'exit 0' TERM; {RECORD}; while :; do sleep 0.05; done", "--state=state.json")
    watch.wait_for("1")
    assert watch.stop() == 128 + signal.SIGTERM
    assert json.loads((watch.folder / "state.json").read_text())["version"] == 1


@pytest.mark.long
def test_a_folder_that_cannot_be_read_for_a_while_is_reported_once(watch: Watch) -> None:
    watch.write()
    watch.start(RECORD)
    watch.wait_for("1")
    away = watch.folder / "away.lance"
    watch.dataset.rename(away)
    wait_for_line(watch.log, "waiting: there is no dataset at t.lance")
    watch.dataset.touch()  # a file in its place
    wait_for_line(watch.log, "t.lance cannot be read: ", "Not a directory", "; the watch goes on")
    time.sleep(6)  # Lance repeats each read for two seconds
    watch.dataset.unlink()
    away.rename(watch.dataset)
    wait_for_line(watch.log, "t.lance can be read again")
    time.sleep(SOME_LOOKS)
    watch.write()
    watch.wait_for("1", "2")
    assert watch.log.read_text().count("cannot be read") == 1
    watch.stop()


def test_new_data_trains_a_model(watch: Watch, trainer: Trainer) -> None:
    """With the command of docs/data.md."""
    program = f"'{sys.executable}' -m trainer train --train_steps 20"
    data = '--dataset lance --data_dir "$DATA_URI" --data_version "$DATA_VERSION"'
    watch.start(f'{program} {data} --train_dir "trained/$DATA_VERSION"', "--tag=latest", "--state=state.json")
    for number in (1, 2):
        raw = watch.folder / f"raw{number}"
        raw.mkdir()
        random = np.random.default_rng(number)
        np.savez(raw / "a.npz", x=random.random((100, 3), np.float32), y=random.integers(0, 2, 100))
        words: list[str | Path] = ["data", "import", raw, "t.lance", "--append", "--tag=latest", "--force"]
        code, output = trainer.run(*words)
        assert code == 0, output
        wait_for_line(watch.log, f"version {number}: the command is done")
        result = json.loads((watch.folder / "trained" / str(number) / "result.json").read_text())
        assert (result["state"], result["dataset_version"]) == ("done", str(number))
    watch.stop()


def test_a_state_that_cannot_be_written_does_not_end_the_watch(watch: Watch) -> None:
    folder = watch.folder / "states"
    folder.mkdir()
    watch.start(RECORD, "--state=states/state.json")
    folder.rmdir()
    watch.write()
    wait_for_line(watch.log, "cannot be written (No such file or directory); a restart would repeat version 1")
    folder.mkdir()
    watch.write()
    wait_until((folder / "state.json").exists)
    watch.stop()
    watch.wait_for("1", "2")


@pytest.mark.long
def test_a_store_that_is_away_is_reported_once(watch: Watch, trainer: Trainer, store: ObjectStore) -> None:
    raw = watch.folder / "raw"
    raw.mkdir()
    np.savez(raw / "a.npz", x=np.random.default_rng(0).random((50, 3), np.float32), y=np.arange(50) % 2)
    uri = store.uri("t.lance")
    words: list[str | Path] = ["data", "import", raw, uri, "--append", "--tag=latest", "--force"]
    assert trainer.start(*words, **store.environment).wait(PATIENCE) == 0
    watch.start(RECORD, "--tag=latest", uri=uri, environment=store.environment)
    watch.wait_for("1")
    store.stop()
    wait_for_line(watch.log, "the watch goes on")
    time.sleep(SOME_LOOKS)
    store.start()
    wait_for_line(watch.log, f"{uri} can be read again")
    assert trainer.start(*words, **store.environment).wait(PATIENCE) == 0
    watch.wait_for("1", "2")
    assert watch.log.read_text().count("the watch goes on") == 1
    watch.stop()


def test_a_signal_ends_a_watch_whose_store_does_not_answer(watch: Watch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        }
        watch.start(RECORD, uri="s3://runs/t.lance", environment=environment)
        connection, _ = silent.accept()  # it is looking
        with connection:
            watch.process.send_signal(signal.SIGTERM)
            assert watch.process.wait(60) == 128 + signal.SIGTERM  # the read itself would wait for minutes
