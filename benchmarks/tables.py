"""The rate of a model with a large embedding, by the trainer and by others: `python -m benchmarks.tables`.

All train the model of embedding.py with batches of the same sizes, on one machine, in interleaved rounds: the trainer,
the trainer without its own ops on rows, the trainer with a table that grows, the classic program,
ParameterServerStrategy, and `keras.Model.fit` in one process, whose step has one batch. The table has the median and
the range of the rates in global steps/s, and how many times the rate of each other program the trainer has in the same
round.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Task, running
from benchmarks.report import spread
from hack.ports import free_ports

HERE = Path(__file__).parent
OPTIMIZERS = ("SGD", "Adagrad", "Adam")
TIMEOUT = 900.0
"""Seconds after which a run counts as hung."""


@dataclass(frozen=True)
class Workload:
    """What the programs train."""

    optimizer: str
    rows: int
    batch_size: int
    ps: int
    workers: int
    steps: int
    synchronous: bool

    @property
    def flags(self) -> list[str]:
        """The flags that all programs know."""
        return [f"--train_steps={self.steps}", f"--batch_size={self.batch_size}"]

    @property
    def environment(self) -> dict[str, str]:
        """What embedding.py reads."""
        return {"ROWS": str(self.rows), "OPTIMIZER": self.optimizer}


def run_trainer(workload: Workload, **more: str) -> float:
    """The rate of the trainer, with more variables of the environment."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainer", "launch", "--json", *workload.flags, f"--ps={workload.ps}"]
        command += [f"--workers={workload.workers}", f"--sync_replicas={workload.synchronous}"]
        command += [f"--train_dir={folder}/run", f"--model={HERE / 'embedding.py'}"]
        command += ["--eval_seconds=600", "--save_share=0"]
        environment = {**os.environ, **workload.environment, **more}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=TIMEOUT)
        return float(json.loads(done.stdout)["steps_per_second"])


def run_without(workload: Workload) -> float:
    """The rate of the trainer with TensorFlow's ops in place of those of row_ops.cc."""
    return run_trainer(workload, TRAINER_ROW_OPS="0")


def run_classic(workload: Workload) -> float:
    """The rate of the classic program."""
    more = [f"--warmup_steps={workload.steps // 10}", *(["--sync"] if workload.synchronous else [])]
    return _run_tasks("classic_embedding", workload, more, leader=workload.ps)


def run_strategy(workload: Workload) -> float:
    """The rate of ParameterServerStrategy, whose coordinator is one more worker, which computes nothing."""
    return _run_tasks("strategy_embedding", workload, [], leader=workload.ps, coordinators=1)


def run_fit(workload: Workload) -> float:
    """The rate of `keras.Model.fit`."""
    tasks = [Task("fit", [sys.executable, "-m", "benchmarks.fit_embedding", *workload.flags], workload.environment)]
    with tempfile.TemporaryDirectory() as folder, running(tasks, Path(folder), TIMEOUT) as processes:
        return float(json.loads(processes.wait_for_line(0))["rate"])


def run_growing(workload: Workload) -> float:
    """The rate of the trainer with a table that grows in place of a fixed one."""
    return run_trainer(workload, GROWING="1")


PROGRAMS: Mapping[str, Callable[[Workload], float]] = {
    "without row_ops.cc": run_without,
    "growing": run_growing,
    "classic": run_classic,
    "strategy": run_strategy,
    "fit": run_fit,
}
"""The others."""
ASYNCHRONOUS = ("strategy", "fit")
"""Those without a synchronous form."""


def _run_tasks(program: str, workload: Workload, more: Sequence[str], leader: int, coordinators: int = 0) -> float:
    """The rate that the task with the number `leader` prints."""
    workers = workload.workers + coordinators
    addresses = [f"localhost:{port}" for port in free_ports(workload.ps + workers)]
    command = [sys.executable, "-m", f"benchmarks.{program}", *workload.flags, *more, f"--rows={workload.rows}"]
    command += [f"--optimizer={workload.optimizer}", f"--ps_hosts={','.join(addresses[: workload.ps])}"]
    command += [f"--worker_hosts={','.join(addresses[workload.ps :])}"]
    tasks = [
        Task(role, [*command, f"--job_name={role}", f"--task_index={index}"])
        for role, count in (("ps", workload.ps), ("worker", workers))
        for index in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder, running(tasks, Path(folder), TIMEOUT) as processes:
        return float(json.loads(processes.wait_for_line(leader))["rate"])


def compare(cases: Sequence[Workload], rounds: int, programs: Sequence[str] = tuple(PROGRAMS)) -> str:
    """Run all workloads by the trainer and these programs, in rounds, and return the table."""
    found: dict[tuple[Workload, str], list[float]] = defaultdict(list)
    for number in range(rounds):
        for case in cases:
            others = [each for each in programs if each not in ASYNCHRONOUS or not case.synchronous]
            for name in (*others, "trainer"):
                found[case, name].append(PROGRAMS.get(name, run_trainer)(case))
            rates = {name: round(found[case, name][-1], 1) for name in (*others, "trainer")}
            print(f"round {number}, {case}: {rates}", file=sys.stderr, flush=True)
    names = [*programs, "trainer"]
    titles = ["rows", "batch", "ps", "workers", "optimizer", "mode", *names]
    titles += [f"trainer / {name}" for name in programs]
    lines = [f"| {' | '.join(titles)} |", f"| {' | '.join('---' for _ in titles)} |"]
    for case in cases:
        cells = [f"{case.rows:,}", case.batch_size, case.ps, case.workers, case.optimizer]
        cells += ["synchronous" if case.synchronous else "asynchronous"]
        cells += [spread(found[case, name]) if found[case, name] else "" for name in names]
        for name in programs:
            ratios = [own / other for own, other in zip(found[case, "trainer"], found[case, name], strict=False)]
            cells.append(spread(ratios) if ratios else "")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def cases(
    optimizers: Sequence[str] = OPTIMIZERS,
    rows: Sequence[int] = (500_000,),
    batch_sizes: Sequence[int] = (100,),
    ps: Sequence[int] = (1,),
    workers: int = 2,
    steps: int = 5000,
) -> list[Workload]:
    """All combinations. A synchronous run takes a third of the steps, and one with larger batches fewer."""
    return [
        Workload(
            optimizer,
            many,
            size,
            servers,
            workers,
            max(100, steps * 100 // max(size, 100) // (3 if synchronous else 1)),
            synchronous,
        )
        for many in rows
        for servers in ps
        for size in batch_sizes
        for optimizer in optimizers
        for synchronous in (False, True)
    ]


def main() -> None:
    """Print a line for each run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=list(PROGRAMS), help="beside the trainer")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS)
    parser.add_argument("--rows", nargs="+", type=int, default=[500_000])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[100])
    parser.add_argument("--ps", nargs="+", type=int, default=[1])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5000, help="global steps of batches of 100 (5000)")
    given = vars(parser.parse_args())
    rounds, programs = given.pop("rounds"), given.pop("programs")
    print(compare(cases(**given), rounds, programs))


if __name__ == "__main__":
    main()
