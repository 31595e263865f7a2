"""Checkpoints of real processes: killed within a save, on a full or read-only volume, and with a second chief."""

import glob
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.trainers import PATIENCE, WITHOUT_EVALUATIONS, Trainer, step_in, wait_for_line, wait_until
from trainer.tensorflow import tf1

Hosts = Callable[[int, int], list[str]]

FOREVER = "--train_steps=1000000"


class Logged:
    """A trainer whose output goes to a file."""

    def __init__(self, trainer: Trainer, *words: str, **environment: str) -> None:
        self.process = trainer.start("train", *words, **environment)
        self.log = trainer.folder / f"{self.process.pid}.log"
        with self.log.open("wb") as log:
            self.copy = subprocess.Popen(["cat"], stdin=self.process.stdout, stdout=log)

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: step_in(self.log) > step)

    def wait_for_count(self, sentence: str, count: int) -> None:
        wait_until(lambda: self.log.read_text().count(sentence) >= count)

    def wait(self) -> int:
        """Return the exit code, once the whole output is in the file."""
        code = self.process.wait(timeout=PATIENCE)
        self.copy.wait(timeout=PATIENCE)
        return code

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()


def listed(directory: Path) -> list[str]:
    state = tf1.train.get_checkpoint_state(str(directory))
    return list(state.all_model_checkpoint_paths) if state else []


def newest(directory: Path) -> int:
    return max((int(path.rpartition("-")[2]) for path in listed(directory)), default=0)


def wait_for_newer(directory: Path, step: int) -> None:
    """Wait until a checkpoint after this step is listed."""
    wait_until(lambda: newest(directory) > step)


def check_all(directory: Path) -> None:
    """Read every value of every checkpoint in the list, which checks the checksums."""
    for path in listed(directory):
        reader = tf1.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)


def test_a_chief_that_is_killed_while_it_saves_lists_only_whole_checkpoints(trainer: Trainer) -> None:
    directory, moments = trainer.folder / "run", random.Random(0)
    words = ["--hidden_units=2000", "--batch_size=1", "--save_steps=20", "--train_dir=run"]
    words += [WITHOUT_EVALUATIONS, FOREVER]
    for _ in range(2):
        before = newest(directory)
        run = Logged(trainer, *words)
        wait_for_newer(directory, before)
        wait_until(lambda: glob.glob(f"{directory}/.saving/*"))
        time.sleep(moments.uniform(0, 0.1))
        run.end(signal.SIGKILL)
        check_all(directory)
        assert f"at step {before} of" in run.log.read_text(), "it continues with the newest one"
    code, output = trainer.run("train", *words[:-1], f"--train_steps={newest(directory) + 20}")
    assert code == 0, output
    assert "cannot be read" not in output
    assert not (directory / ".saving").exists()


@pytest.fixture
def volume(trainer: Trainer) -> Iterator[Path]:
    """A volume of 24 MB."""
    folder = trainer.folder / "volume"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a volume cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        while folder.is_mount():  # a test may have mounted it twice
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(volume: Path) -> Path:
    """Fill a volume, again if something was deleted since; return the file that does."""
    filler = volume / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def fill_until_line(volume: Path, log: Path, part: str) -> Path:
    """Keep a volume full until a log has this: a checkpoint that was being saved frees its room when it fails."""
    wait_until(lambda: fill(volume) and part in log.read_text())
    return volume / "filler"


def cover(volume: Path) -> None:
    """Mount a read-only view of a volume over it. Files that are open for writing stay so."""
    subprocess.run(["mount", "--bind", str(volume), str(volume)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(volume)], check=True)


def test_a_run_goes_on_while_its_volume_is_full_or_read_only_and_then_saves_again(
    trainer: Trainer, volume: Path
) -> None:
    directory = volume / "run"
    words = [f"--train_dir={directory}", "--save_seconds=0.5", "--eval_seconds=0.5", "--keep_checkpoints=2", FOREVER]
    run = Logged(trainer, *words)
    wait_until(lambda: newest(directory) > 0)
    for is_full in (True, False):
        if is_full:
            # A save that succeeds while the volume is filled removes an old checkpoint, and has room for the next one.
            filler = fill_until_line(volume, run.log, "the checkpoint cannot be written")
            reason = "No space left on device"
        else:
            cover(volume)
            reason = "Read-only file system"
        wait_for_line(run.log, "the checkpoint cannot be written", reason, "training goes on")
        saved, reached = newest(directory), step_in(run.log)
        run.wait_for_step(reached + 500)
        assert newest(directory) == saved
        check_all(directory)
        written_again = run.log.read_text().count("the checkpoint is written again")
        if is_full:
            filler.unlink()
        else:
            subprocess.run(["umount", "--lazy", str(volume)], check=True)
        wait_for_newer(directory, saved)
        run.wait_for_count("the checkpoint is written again", written_again + 1)
        run.process.send_signal(signal.SIGSTOP)  # it would remove a checkpoint that is being read
        check_all(directory)
        run.process.send_signal(signal.SIGCONT)
    assert run.end() == 143, run.log.read_text()
    assert "\nTraceback" not in run.log.read_text()


@pytest.mark.long
def test_a_launcher_says_that_the_logs_of_its_tasks_cannot_be_written(trainer: Trainer, volume: Path) -> None:
    log = trainer.folder / "log"
    words = ["launch", "--workers=1", f"--train_dir={volume / 'run'}", "--save_seconds=0.5", FOREVER]
    launcher = trainer.start_in([], log, *words)
    wait_for_line(log, "steps/s")
    filler = fill_until_line(volume, log, f"{volume / 'run/logs'} cannot be written (No space left on device)")
    cover(volume)
    trainer.task("worker").kill()
    wait_for_line(log, "worker 0: starting again (SIGKILL)")
    subprocess.run(["umount", "--lazy", str(volume)], check=True)
    filler.unlink()
    wait_for_line(log, f"{volume / 'run/logs'} can be written again")
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(PATIENCE) == 143, log.read_text()
    assert "\nTraceback" not in log.read_text()


@pytest.mark.long
def test_an_allreduce_worker_says_that_it_waits_for_the_chief_to_end_the_run(
    trainer: Trainer, hosts: Hosts, volume: Path
) -> None:
    directory = volume / "run"
    words = [*hosts(0, 2), "--strategy=allreduce", "--train_steps=3000", "--save_steps=500", "--job_name=worker"]
    chief = Logged(trainer, *words, "--task_index=0", f"--train_dir={directory}")
    worker = Logged(trainer, *words, "--task_index=1")
    wait_until(lambda: newest(directory) > 0)
    filler = fill_until_line(volume, worker.log, "waiting until the chief has written the result, waiting for worker 0")
    filler.unlink()
    assert (chief.wait(), worker.wait()) == (0, 0), chief.log.read_text() + worker.log.read_text()


def test_a_run_that_ends_on_a_full_volume_waits_for_room(trainer: Trainer, volume: Path) -> None:
    directory = volume / "run"
    words = [f"--train_dir={directory}", "--train_steps=3000", "--save_steps=500"]
    run = Logged(trainer, *words)
    wait_until(lambda: newest(directory) > 0)
    run.process.send_signal(signal.SIGSTOP)  # it must not end before the volume is full
    filler = fill(volume)
    run.process.send_signal(signal.SIGCONT)
    wait_for_line(run.log, "the last checkpoint", "No space left on device", "trying again until there is room")
    assert run.process.poll() is None
    filler.unlink()
    assert run.wait() == 0, run.log.read_text()
    result = json.loads((directory / "result.json").read_text())
    assert (result["state"], result["global_step"]) == ("done", 3000)
    assert newest(directory) == 3000
    assert Path(result["export"], "saved_model.pb").exists()


@pytest.mark.long
def test_a_full_volume_that_never_has_room_ends_the_run_with_a_retryable_code(trainer: Trainer, volume: Path) -> None:
    directory = volume / "run"
    words = [f"--train_dir={directory}", "--train_steps=3000", "--save_steps=500", "--wait_seconds=3"]
    run = Logged(trainer, *words)
    wait_until(lambda: newest(directory) > 0)
    filler = fill(volume)
    assert run.wait() == 138, run.log.read_text()
    assert "make room in the volume" in run.log.read_text().splitlines()[-1]
    code, output = trainer.run("train", *words)  # it starts on the full volume
    assert code == 138, output
    assert "make room in the volume" in output
    filler.unlink()
    code, output = trainer.run("train", *words)
    assert code == 0, output
    assert "restored" in output


def test_a_chief_stops_without_writing_when_another_one_has_its_directory(trainer: Trainer) -> None:
    directory = trainer.folder / "run"
    (trainer.folder / "pod").mkdir()
    words = ["--train_dir=run", "--save_seconds=0.5", WITHOUT_EVALUATIONS, FOREVER]
    pod = str(trainer.folder / "pod")
    first = Logged(trainer, *words, TASK_DIR=pod)
    wait_until(lambda: newest(directory) > 0)
    first.end(signal.SIGKILL)
    again = Logged(trainer, *words, TASK_DIR=pod)  # the container restarts: it takes over its predecessor's claim
    wait_for_line(again.log, "restored run/model.ckpt-")
    wait_for_newer(directory, newest(directory))
    newer = Logged(trainer, *words)  # the pod that replaces it
    assert again.wait() == 5, again.log.read_text()
    sentence = again.log.read_text().splitlines()[-1]
    assert sentence.startswith("trainer: train_dir: run belongs to another chief since ")
    assert f"(process {newer.process.pid} on {os.uname().nodename}), so this one stops without writing" in sentence
    code, output = trainer.run("train", *words, TASK_DIR=pod)  # its container restarts once more
    assert code == 5, output
    assert "belongs to another chief" in output
    wait_for_newer(directory, newest(directory))
    assert newer.end() == 143, newer.log.read_text()
    code, output = trainer.run("train", *words[:-1], f"--train_steps={newest(directory)}")  # in another pod
    assert code == 0, output


@pytest.mark.long
def test_the_seconds_of_a_run_include_those_without_a_chief(trainer: Trainer, hosts: Hosts) -> None:
    words = [*hosts(1, 2), "--train_steps=3000", "--save_seconds=600", "--eval_seconds=600"]
    trainer.start("train", *words, "--job_name=ps", "--task_index=0")
    chief_words = [*words, "--job_name=worker", "--task_index=0", "--train_dir=run"]
    chief = Logged(trainer, *chief_words)
    worker = Logged(trainer, *words, "--job_name=worker", "--task_index=1")
    wait_until(lambda: step_in(worker.log) > 0)
    chief.end(signal.SIGKILL)
    assert worker.wait() == 0, worker.log.read_text()
    assert Logged(trainer, *chief_words).wait() == 0
    result = json.loads((trainer.folder / "run" / "result.json").read_text())
    assert result["state"] == "done"
    assert result["global_step"] >= 3000
    assert result["seconds"] > 0
    assert result["steps_per_second"] > 0
    wait_until(lambda: not trainer.processes())
