"""Tasks of a launch as forks of a process that has imported TensorFlow."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from trainer.cluster.spec import Task
from trainer.errors import EXIT_CONFIGURATION
from trainer.launcher.forks import MODULES, Fork, Forks
from trainer.launcher.plan import TaskProgram

SECONDS = 120
Started = tuple[Fork, Path]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks(MODULES, {**os.environ, "TRAINER_BATCH_SIZE": "no number", "INHERITED": "yes"})
    yield made
    made.close()


@pytest.fixture
def start(forks: Forks, tmp_path: Path) -> Callable[..., Started]:
    """Starts a task that trains with the model in a file of this text; returns its process and its log."""

    def start(text: str, index: int = 0, environment: Mapping[str, str] = {}) -> Started:
        file, log = tmp_path / f"file_{index}.py", tmp_path / f"worker-{index}.log"
        file.write_text(text)
        words = ["train", "--model", str(file), "--train_dir", str(tmp_path / str(index))]
        with log.open("ab") as output:
            program = TaskProgram(Task("worker", index), True, words, dict(environment))
            return forks.start(program, output, time.time()), log

    return start


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_task_has_its_own_output_environment_random_numbers_and_command(start: Callable[..., Started]) -> None:
    text = """
import json, os, random, sys
import numpy as np
given = {name: os.environ.get(name) for name in ("OWN", "INHERITED", "TRAINER_BATCH_SIZE")}
leads = os.getsid(0) == os.getpid()
print(json.dumps([given, random.random(), np.random.rand(), sys.orig_argv[1:4], leads]), flush=True)
os._exit(7)
"""
    tasks = [start(text, index, {"OWN": str(index)}) for index in range(2)]
    assert [fork.wait(SECONDS) for fork, _ in tasks] == [7, 7]
    (first, *others), (second, *more) = (json.loads(log.read_text().splitlines()[-1]) for _, log in tasks)
    assert (first["OWN"], second["OWN"]) == ("0", "1")
    assert (first["INHERITED"], first["TRAINER_BATCH_SIZE"]) == ("yes", None)
    assert others[:2] != more[:2]
    assert others[2:] == [["-m", "trainer", "train"], True]


def test_the_imports_are_those_of_the_server(start: Callable[..., Started]) -> None:
    fork, log = start("import os, time; print(time.process_time(), flush=True); os._exit(0)")
    assert fork.wait(SECONDS) == 0
    alone = subprocess.run(
        [sys.executable, "-c", "import trainer.tensorflow, time; print(time.process_time())"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert float(log.read_text().splitlines()[-1]) < float(alone.stdout), "CPU time, and not that of a clock"


def test_an_error_is_a_task_s_own(start: Callable[..., Started]) -> None:
    fork, log = start("1 / 0")
    assert fork.wait(SECONDS) == EXIT_CONFIGURATION
    assert "trainer: " in log.read_text()
    assert "fork_server" not in log.read_text()


def test_a_signal_is_a_negative_code_and_only_its_task_ends(start: Callable[..., Started]) -> None:
    text = "import time; print('here', flush=True); time.sleep(1000)"
    (first, log), (second, _) = start(text), start(text, 1)
    wait_for(lambda: "here" in log.read_text())
    assert psutil.Process(first.pid).name() == "worker-0"
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.01)
    first.kill()
    assert first.wait(SECONDS) == -signal.SIGKILL
    first.kill()
    assert second.poll() is None
    second.terminate()
    assert second.wait(SECONDS) is not None


def test_a_lost_server_ends_its_tasks_and_is_replaced(tmp_path: Path) -> None:
    before = psutil.Process().children()
    forks = Forks((), os.environ)
    program = TaskProgram(Task("worker", 0), True, ["--version"], {})
    with (tmp_path / "log").open("ab") as output:
        assert forks.start(program, output, time.time()).wait(SECONDS) == 0
        (server,) = set(psutil.Process().children()).difference(before)
        server.kill()
        server.wait(SECONDS)
        assert forks.start(program, output, time.time()).wait(SECONDS) == 0
    forks.close()
    assert psutil.Process().children() == before


def test_tasks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = f"""
import os, signal, sys, time
from trainer.cluster.spec import Task
from trainer.launcher.forks import Forks
from trainer.launcher.plan import TaskProgram
words = ["tensorboard", "--logdir", {str(tmp_path)!r}, "--port", "0"]
print(Forks((), os.environ).start(TaskProgram(Task("worker", 0), True, words, {{}}), sys.stderr, 0.0).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True, timeout=SECONDS)
    wait_for(lambda: not psutil.pid_exists(int(done.stdout)))
