"""The programs under measurement: each starts its processes on this machine, and returns the outcome of a run."""

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import FailedError, Processes, Task, running
from benchmarks.recommenders import torch_environment
from benchmarks.recommenders.meter import Meter
from benchmarks.recommenders.progress import WARM_UP, Progress
from benchmarks.recommenders.work import Given, Work
from hack.ports import free_ports

ROOT = Path(__file__).parents[2]
MODEL = Path(__file__).parent / "trainer_model.py"
TIMEOUT = 900.0
"""Seconds after which a run counts as hung."""
WITHOUT_ROW_OPS = "trainer without row_ops.cc"
REPORTS = 20
"""Points of the trainer's curves, from which its steady part is read."""
LONG = 20
"""The trainer is told that it takes so many times the steps, so that its executions have the size of a long run."""


@dataclass(frozen=True)
class Outcome:
    """The measurements of a run."""

    rate: float
    """Examples per second in the steady part, of all workers together."""
    per_cpu_second: float
    """Examples per second of CPU time, of all tasks together, in the steady part."""
    bytes_per_example: float
    """Bytes over the loopback interface per example, in the steady part."""
    memory: dict[str, float] = field(default_factory=dict)
    """Peak resident memory in MiB by role, of the largest process of each role."""
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    """(Examples, seconds since the first step, figure on the held-out examples) of each snapshot."""
    ops: list[tuple[str, str, str, float]] = field(default_factory=list)
    """(Role, type, name, milliseconds for each batch of a worker) of each op, if the run was profiled."""

    def __str__(self) -> str:
        figures = [f"{self.rate:,.0f} samples/s"]
        figures += [f"{self.per_cpu_second:,.0f} per CPU second"] if self.per_cpu_second else []
        figures += [f"{self.curve[-1][2]:.4f} after {self.curve[-1][0]:,}"] if self.curve else []
        return ", ".join(figures)


@dataclass(frozen=True)
class _Line:
    """What a program says of itself."""

    begin: float
    end: float
    examples: int
    seconds: float
    snapshots: Sequence[tuple[int, float]] = ()


def run_trainer(given: Given) -> Outcome:
    """Run the trainer on a cluster: to its end for snapshots, otherwise until the steady part is over."""
    work = given.work
    with tempfile.TemporaryDirectory() as name:
        if work.every:
            with _started(trainer_tasks(given, Path(name), work.steps), Meter) as (processes, meter):
                processes.wait(work.ps)  # worker 0, the chief
            line = _read_curve(Path(name), work)
            _ask("checkpoints", given, name)
        else:
            with _started(trainer_tasks(given, Path(name), LONG * work.steps), Meter) as (processes, meter):
                line = _watch(processes, work)
        return _outcome(given, line, processes, meter)


def run_without_row_ops(given: Given) -> Outcome:
    """Run the trainer with the ops of TensorFlow on rows of tables, in place of those in C++."""
    return run_trainer(replace(given, variables={"TRAINER_ROW_OPS": "0"}))


def trainer_tasks(given: Given, folder: Path, steps: int) -> list[Task]:
    """The tasks of the trainer for so many steps: parameter servers, then workers."""
    work = given.work
    every = work.every // work.examples_per_step
    saves = [f"--save_steps={every}", "--keep_checkpoints=1000"] if every else ["--save_share=0"]
    command = [sys.executable, "-m", "trainer", "train", f"--model={MODEL}", f"--train_steps={steps}"]
    command += [f"--sync_replicas={work.mode == 'synchronous'}", f"--train_dir={folder}", *saves]
    command += ["--save_seconds=100000", "--eval_seconds=100000", f"--report_steps={max(10, work.steps // REPORTS)}"]
    return _cluster(command, given, ("ps", "worker"))


def step_of(processes: Processes, work: Work) -> int:
    """The last step that the trainer's chief has reported; 0 before.

    Raises:
        FailedError: a task has ended.
    """
    processes.check()
    steps = re.findall(r"step (\d+)/", processes.output(work.ps))
    return int(steps[-1]) if steps else 0


def _watch(processes: Processes, work: Work) -> _Line:
    """The steady part of a run, from the lines that the chief prints at most each second."""
    progress, step = Progress(replace(work, every=0)), 0
    while True:
        now = step_of(processes, work)
        if now > step and not progress.tick(now * work.examples_per_step):
            return _Line(**progress.line)
        step = now
        time.sleep(0.02)


def _read_curve(folder: Path, work: Work) -> _Line:
    """The steady part and the snapshots of a run that has ended, from its curves."""
    from trainer.run_directory import curves

    curve = curves.read(folder / "train")["loss"]
    steps, times = curve.steps, curve.times
    begin = np.flatnonzero(steps >= WARM_UP * work.steps)[0]
    seconds = json.loads((folder / "result.json").read_text())["seconds"]
    saved = sorted(int(file.stem.rpartition("-")[2]) for file in folder.glob("model.ckpt-*.index"))
    at = np.interp(saved, steps, times - (times[-1] - seconds))
    size = work.examples_per_step
    return _Line(
        float(times[begin]),
        float(times[-1]),
        int(steps[-1] - steps[begin]) * size,
        float(times[-1] - times[begin]),
        [(step * size, float(when)) for step, when in zip(saved, at, strict=True)],
    )


def run_fit(given: Given) -> Outcome:
    """Run `keras.Model.fit` in one process."""
    return _run(given, [Task("fit", [sys.executable, "-m", _module("fit_program")], given.environment())], 0)


def run_strategy(given: Given) -> Outcome:
    """Run `ParameterServerStrategy`, with a coordinator beside the workers."""
    roles = {"chief": 1, "ps": given.work.ps, "worker": given.work.workers}
    addresses = iter(f"localhost:{port}" for port in free_ports(sum(roles.values())))
    cluster = {role: [next(addresses) for _ in range(count)] for role, count in roles.items()}
    command = [sys.executable, "-m", _module("strategy_program")]
    tasks = [
        Task(role, command, {**given.environment(), "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})})
        for role, count in roles.items()
        for task in ({"type": role, "index": index} for index in range(count))
    ]
    return _run(given, tasks, 0)


def run_classic(given: Given) -> Outcome:
    """Run the program of TensorFlow 1."""
    command = [sys.executable, "-m", _module("classic_program"), f"--train_steps={10 * given.work.steps}"]
    command += ["--sync"] if given.work.mode == "synchronous" else []
    return _run(given, _cluster(command, given, ("ps", "worker")), given.work.ps)


def run_torch(given: Given) -> Outcome:
    """Run the program of PyTorch, a process for each worker."""
    python, (port,) = torch_environment.python(), free_ports(1)
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(given.work.workers)}
    shared |= {**given.environment(), "PYTHONPATH": str(ROOT)}
    tasks = [
        Task("rank", [str(python), "-m", _module("torch_program")], {**shared, "RANK": str(rank)})
        for rank in range(given.work.workers)
    ]
    return _run(given, tasks, 0)


Program = Callable[[Given], Outcome]
PROGRAMS: Mapping[str, Program] = {
    "trainer": run_trainer,
    WITHOUT_ROW_OPS: run_without_row_ops,
    "fit": run_fit,
    "ParameterServerStrategy": run_strategy,
    "classic": run_classic,
    "PyTorch": run_torch,
}


def _module(name: str) -> str:
    return f"benchmarks.recommenders.{name}"


def _cluster(command: Sequence[str], given: Given, roles: tuple[str, str]) -> list[Task]:
    """The tasks of a cluster that has the classic flags: parameter servers, then workers."""
    ps, workers = given.work.ps, given.work.workers
    addresses = [f"localhost:{port}" for port in free_ports(ps + workers)]
    hosts = [f"--ps_hosts={','.join(addresses[:ps])}", f"--worker_hosts={','.join(addresses[ps:])}"]
    return [
        Task(role, [*command, *hosts, f"--job_name={role}", f"--task_index={index}"], given.environment())
        for role, count in zip(roles, (ps, workers), strict=True)
        for index in range(count)
    ]


@contextmanager
def _started(tasks: Sequence[Task], make: Callable[[Processes], Any]) -> Iterator[tuple[Processes, Any]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running(tasks, Path(folder), TIMEOUT) as processes,
        make(processes) as made,
    ):
        yield processes, made


def _run(given: Given, tasks: Sequence[Task], leader: int) -> Outcome:
    """The outcome of a program whose task with the number `leader` prints a line."""
    with _started(tasks, Meter) as (processes, meter):
        line = _Line(**json.loads(processes.wait_for_line(leader)))
    return _outcome(given, line, processes, meter)


def _outcome(given: Given, line: _Line, processes: Processes, meter: Meter) -> Outcome:
    if line.examples <= 0 or line.seconds <= 0:
        raise FailedError("the run has no steady part; give it more examples.")
    cpu, sent = meter.used(line.begin, line.end)
    figures = dict(_ask("evaluate", given)) if given.work.every else {}
    curve = [(examples, seconds, figures[examples]) for examples, seconds in line.snapshots if examples in figures]
    used = line.examples / cpu if cpu else 0.0
    return Outcome(line.examples / line.seconds, used, sent / line.examples, dict(processes.memory), curve)


def _ask(program: str, given: Given, *words: str) -> Any:
    """What one of this package's programs prints."""
    task = Task(program, [sys.executable, "-m", _module(program), *words], given.environment())
    with tempfile.TemporaryDirectory() as folder, running([task], Path(folder), TIMEOUT) as processes:
        return json.loads(processes.wait(0) or "null")
