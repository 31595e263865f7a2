"""Tasks of a launch as forks of a process that has imported TensorFlow."""

import json
import os
import resource
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
    made.close(0)


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


SLOW = "import time; print('here', flush=True); time.sleep(1000)"
"""A model's file whose task takes some seconds to end after SIGTERM: the watchdog gives it that time."""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tuple[Forks, Callable[[str], Started], psutil.Process]]:
    """A server of its own, what starts a task of it that runs this text, and the server's process."""
    before = psutil.Process().children()
    forks = Forks((), os.environ)
    (server,) = set(psutil.Process().children()).difference(before)

    def start(text: str) -> Started:
        (tmp_path / "model.py").write_text(text)
        with (tmp_path / "log").open("ab") as output:
            words = ["train", "--model", str(tmp_path / "model.py"), "--grace_seconds", "1"]
            fork = forks.start(TaskProgram(Task("worker", 0), True, words, {}), output, time.time())
        return fork, tmp_path / "log"

    yield forks, start, server
    forks.close(0)
    assert set(psutil.Process().children()) <= set(before)  # one of another test may end meanwhile


Alone = tuple[Forks, Callable[[str], Started], psutil.Process]


def test_a_task_of_a_lost_server_runs_until_it_ends_and_the_next_one_has_another_server(alone: Alone) -> None:
    _, start, server = alone
    fork, log = start(SLOW)
    wait_for(lambda: "here" in log.read_text())
    server.kill()
    server.wait(SECONDS)
    assert fork.poll() is None, "it saves"
    assert fork.wait(SECONDS) == -signal.SIGTERM
    assert "SIGTERM: ending" in log.read_text()
    fork.kill()
    again, _ = start("import os; os._exit(9)")
    assert again.wait(SECONDS) == 9


def test_a_signal_for_all_processes_leaves_the_end_to_the_tasks(alone: Alone) -> None:
    _, start, server = alone
    fork, log = start(SLOW)
    wait_for(lambda: "here" in log.read_text())
    server.terminate()
    fork.terminate()
    assert fork.wait(SECONDS) >= 0, "its own code, which the server still tells"
    assert server.is_running()


def test_a_task_that_is_told_to_end_in_the_moment_of_its_fork_ends(alone: Alone) -> None:
    _, start, server = alone
    os.sched_setscheduler(server.pid, os.SCHED_IDLE, os.sched_param(0))  # its task begins after the signal
    fork, _ = start(SLOW)
    fork.terminate()
    assert fork.wait(SECONDS) == -signal.SIGTERM


def test_a_server_whose_launcher_is_done_waits_for_tasks_that_nobody_knows(alone: Alone) -> None:
    forks, start, server = alone
    fork, log = start(SLOW)
    wait_for(lambda: "here" in log.read_text())
    forks.close(SECONDS)
    assert "SIGTERM: ending" in log.read_text()
    assert not psutil.pid_exists(fork.pid)
    assert not server.is_running()


def test_a_task_for_which_the_system_has_no_room_is_an_error_and_the_others_go_on(alone: Alone) -> None:
    _, start, server = alone
    fork, log = start(SLOW)
    wait_for(lambda: "here" in log.read_text())
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, 100))
    with pytest.raises(OSError, match="Too many open files"):
        start("")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (100, 100))
    other, _ = start("import os; os._exit(9)")
    assert other.wait(SECONDS) == 9
    assert fork.poll() is None
    fork.kill()
    assert fork.wait(SECONDS) == -signal.SIGKILL


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
