"""Workers that leave and join a run in progress, and synchronous runs that do not wait for a late one."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes.trainers import PATIENCE, Trainer

Hosts = Callable[[int, int], list[str]]
SYNC = ("--sync_replicas", "--dataset=digits")


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """Read a process's output up to a line in which this regular expression is found; return what was read."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if re.search(pattern, line):
            return seen
    raise AssertionError(f"the output ended without a line of {pattern!r}:\n{seen}")


class Tasks:
    """The tasks of one run: a parameter server, and workers that a test starts one by one."""

    def __init__(self, trainer: Trainer, hosts: list[str], *words: str) -> None:
        self._trainer, self._words = trainer, [*hosts, *words]
        self.ps = self._start("ps", 0)
        self.chief = self.worker(0, "--train_dir=run")

    def _start(self, role: str, index: int, *words: str) -> subprocess.Popen[str]:
        return self._trainer.start("train", *self._words, f"--job_name={role}", f"--task_index={index}", *words)

    def worker(self, index: int, *words: str) -> subprocess.Popen[str]:
        return self._start("worker", index, *words)

    def finish(self, *workers: subprocess.Popen[str]) -> str:
        """Wait until all tasks have ended with code 0; return the chief's remaining output."""
        outputs = []
        for process in (self.chief, *workers, self.ps):
            output, _ = process.communicate(timeout=240)
            assert process.returncode == 0, output
            outputs.append(output)
        return outputs[0]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._trainer.folder / "run" / "result.json").read_text())
        return found


def test_a_synchronous_run_begins_without_listed_workers_whose_names_do_not_resolve(
    trainer: Trainer, hosts: Hosts
) -> None:
    ps, workers = hosts(1, 1)
    tasks = Tasks(trainer, [ps, f"{workers},absent.invalid:2222"], *SYNC, "--train_steps=3000")
    assert "1 replica" in tasks.finish()


def test_a_late_replica_is_passed_over_and_joins_again(trainer: Trainer, hosts: Hosts) -> None:
    tasks = Tasks(trainer, hosts(1, 2), *SYNC, "--train_steps=1000000", "--straggler_seconds=2")
    slow = tasks.worker(1)
    read_until(tasks.chief, "2 replicas")
    slow.send_signal(signal.SIGSTOP)
    read_until(tasks.chief, "goes on without worker 1, as its gradient is later than straggler_seconds, 2 s: 1 replica")
    read_until(tasks.chief, ": loss")
    slow.send_signal(signal.SIGCONT)
    read_until(tasks.chief, "worker 1 takes part from step [0-9]+ on: 2 replicas")
    for process in (slow, tasks.chief, tasks.ps):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)


@pytest.mark.long
def test_no_task_hangs_at_the_last_step_when_a_worker_is_stopped(trainer: Trainer, hosts: Hosts) -> None:
    tasks = Tasks(trainer, hosts(1, 2), *SYNC, "--train_steps=1500", "--report_steps=50", "--straggler_seconds=2")
    worker = tasks.worker(1)
    read_until(worker, "step (9|1[0-4])[0-9]+/1500")
    worker.send_signal(signal.SIGSTOP)
    time.sleep(45)  # longer than parameter servers once waited for a replica at the end
    worker.send_signal(signal.SIGCONT)
    tasks.finish(worker)
    assert tasks.result()["global_step"] == 1500
