"""What a step costs with more tasks: `python -m benchmarks.step_costs`, with real processes on this machine.

Runs of a null step (null_step.py: a few, 1 MB and 100 MB of parameters; rows of a table: embedding.py) and of the
packaged network are measured in a window of time, after all workers have begun: global steps/s, and the CPU time that
the parameter servers and the workers take for a batch. All processes share the machine's CPUs, so the rate with many
workers is that of the machine, but the CPU times hold for a cluster too. `trainer plan` has the costs that are fitted
to these times.

Then workers that sleep instead of computing, so that dozens fit on a machine, show what waiting for each other costs,
and what backups gain beside stragglers.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.optimize import nnls

from benchmarks.processes import FailedError, Processes, Task, running
from benchmarks.report import row
from hack.ports import free_ports
from trainer.scale.cost_model import Costs, Scenario, predict
from trainer.shards.parameters import MIN_SHARD_SIZE
from trainer.telemetry import progress, report

HERE = Path(__file__).parent
WINDOW = 8.0
"""Seconds that are measured."""
FITTED_WORKERS = 8
"""Points with more are not fitted: on few CPUs so many processes take each other's caches."""
TIMEOUT = 400.0
ENDLESS = 10**9
"""More steps than a run takes."""
TABLE_ROWS, TABLE_BATCH, IDS, DIM = 500_000, 100, 8, 32
BYTES_OF_ROWS = TABLE_BATCH * IDS * (4 * DIM + 8)
"""What a step of embedding.py moves in one direction."""


@dataclass(frozen=True)
class Step:
    """What a step does."""

    name: str
    megabytes: float
    """What it moves in each direction."""
    flags: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    most_workers: int = 32
    """As many as the machine's memory bears."""
    milliseconds: float | None = None
    """What it sleeps; None if it computes."""


def null_step(name: str, numbers: int, milliseconds: float = 0, straggling: float = 0, most_workers: int = 32) -> Step:
    """A step without arithmetic."""
    environment = {"NUMBERS": numbers, "MILLISECONDS": milliseconds, "STRAGGLING": straggling}
    return Step(
        name,
        4e-6 * numbers,
        (f"--model={HERE / 'null_step.py'}",),
        {key: str(value) for key, value in environment.items()},
        most_workers,
        milliseconds,
    )


SCALAR = null_step("null, 1 number", 1)
STEPS = (
    SCALAR,
    null_step("null, 1 MB", 250_000),
    null_step("null, 100 MB", 25_000_000, most_workers=8),
    Step(
        "rows of a table",
        BYTES_OF_ROWS / 1e6,
        (f"--model={HERE / 'embedding.py'}",),
        {"ROWS": str(TABLE_ROWS), "OPTIMIZER": "SGD"},
        most_workers=16,
    ),
    Step("network, 100 hidden units", 0.318, ()),
)
SLEEPING = null_step("sleeps 100 ms, 1 MB", 250_000, milliseconds=100)


@dataclass(frozen=True)
class Case:
    """A run."""

    step: Step
    ps: int
    workers: int
    synchronous: bool
    to_aggregate: int | None = None

    @property
    def shards(self) -> int:
        """The parameter servers that have parameters."""
        return min(self.ps, max(1, int(self.step.megabytes * 1e6 / 4) // MIN_SHARD_SIZE))


@dataclass(frozen=True)
class Measured:
    """What a run took."""

    rate: float
    """Global steps/s."""
    ps_ms: float
    """CPU milliseconds of all parameter servers for a batch."""
    worker_ms: float
    """CPU milliseconds of a worker for a batch."""


def main() -> int:
    """Print a line for each run, and the tables; returns 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--ps", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--parts", nargs="+", choices=("cost", "backups"), default=["cost", "backups"])
    arguments = parser.parse_args()
    cases = []
    if "cost" in arguments.parts:
        cases += cost_cases(arguments.ps, arguments.workers)
    if "backups" in arguments.parts:
        cases += sleeping_cases(arguments.workers)
    found: dict[Case, Measured] = {}
    for case in cases:
        try:
            found[case] = measure(case)
        except FailedError as error:
            print(f"FAILED: {case}: {error}", file=sys.stderr)
            continue
        print(f"{case.step.name}, {case.ps} ps, {case.workers} workers: {found[case]}", file=sys.stderr, flush=True)
        if arguments.json:
            rows = [asdict(each) | asdict(took) for each, took in found.items()]
            arguments.json.write_text(json.dumps(rows, default=dict, indent=1))
    print(f"{render(found)}\n")
    if "cost" in arguments.parts:
        print(fit(found))
    return int(len(found) < len(cases))


def cost_cases(ps: Sequence[int], workers: Sequence[int]) -> list[Case]:
    """Each step with each number of workers, and with each number of parameter servers."""
    some = [count for count in workers if count <= 4][-1:] or workers[:1]
    shapes = [(ps[0], count) for count in workers] + [(count, some[0]) for count in ps[1:]]
    return [
        Case(step, servers, count, synchronous)
        for step in STEPS
        for servers, count in shapes
        for synchronous in (False, True)
        if count <= step.most_workers
    ]


def sleeping_cases(workers: Sequence[int]) -> list[Case]:
    """Workers that sleep: alone, together, and with backups beside stragglers."""
    cases = [Case(SLEEPING, 1, count, synchronous) for count in workers for synchronous in (False, True)]
    straggling = null_step("sleeps 100 ms, of 50 steps one 1 s", 1, milliseconds=100, straggling=0.02)
    most = min(16, max(workers))
    return [*cases, *(Case(straggling, 1, most, True, most - backups) for backups in range(min(5, most)))]


def measure(case: Case) -> Measured:
    """Run until a window of time has passed in which all workers train."""
    addresses = [f"localhost:{port}" for port in free_ports(case.ps + case.workers)]
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "trainer", "train", *case.step.flags, f"--train_steps={ENDLESS}"]
        command += [f"--sync_replicas={case.synchronous}", f"--ps_hosts={','.join(addresses[: case.ps])}"]
        command += [f"--worker_hosts={','.join(addresses[case.ps :])}", f"--train_dir={name}/run"]
        command += [f"--batch_size={TABLE_BATCH}", "--eval_seconds=3600", "--save_seconds=3600", "--save_share=0"]
        command += [f"--replicas_to_aggregate={case.to_aggregate}"] if case.to_aggregate else []
        environment = {**case.step.environment, report.VARIABLE: "1"}
        tasks = [
            Task(role, [*command, f"--job_name={role}", f"--task_index={index}"], environment)
            for role, count in (("ps", case.ps), ("worker", case.workers))
            for index in range(count)
        ]
        with running(tasks, Path(name), TIMEOUT) as processes:
            return _measure_window(case, processes)


def _measure_window(case: Case, processes: Processes) -> Measured:
    workers = range(case.ps, case.ps + case.workers)
    while not all(_last_step(processes.output(number)) for number in workers):
        processes.check()
        time.sleep(0.2)
    began = _next_report(processes, case.ps)
    while True:
        ended = _next_report(processes, case.ps)
        if ended[0] - began[0] >= WINDOW:
            break
    steps = ended[1] - began[1]
    batches = steps * (case.to_aggregate or case.workers if case.synchronous else 1)
    cpu = [1e3 * (after - before) / batches for before, after in zip(began[2], ended[2], strict=True)]
    return Measured(steps / (ended[0] - began[0]), sum(cpu[: case.ps]), sum(cpu[case.ps :]))


def _next_report(processes: Processes, chief: int) -> tuple[float, int, list[float]]:
    """Wait for the chief's next report of progress; return the time, the global step and the tasks' CPU seconds."""
    before = _last_step(processes.output(chief))
    while (step := _last_step(processes.output(chief))) == before:
        processes.check()
        time.sleep(0.01)
    return time.monotonic(), step, processes.cpu_seconds()


def _last_step(output: str) -> int:
    """The global step of the last report in a task's output; 0 if there is none."""
    for line in reversed(output.splitlines(keepends=True)):
        if line.endswith("\n") and (found := progress.parse(line.rstrip("\n"))):
            return found.step
    return 0


def render(found: Mapping[Case, Measured]) -> str:
    """The table of all runs."""
    machine = f"{psutil.cpu_count()} CPUs of this machine\n"
    head = ["step", "MB", "mode", "ps", "workers", "to aggregate", "global steps/s", "ps, CPU ms/batch"]
    head += ["worker, CPU ms/batch"]
    lines = [machine, row(head), row(["---"] * len(head))]
    for case, took in found.items():
        mode = "synchronous" if case.synchronous else "asynchronous"
        cells = [case.step.name, f"{case.step.megabytes:.3g}", mode, case.ps, case.workers, case.to_aggregate or ""]
        lines.append(row([*cells, f"{took.rate:.4g}", f"{took.ps_ms:.3g}", f"{took.worker_ms:.3g}"]))
    return "\n".join(lines)


def fit(found: Mapping[Case, Measured]) -> str:
    """The costs of `trainer.scale.cost_model` by least squares of the relative errors of null steps, and their errors.

    A sleeping worker's rate, which the fit does not know, is predicted on a machine whose links are no limit.
    """
    lines: list[str] = []
    errors: list[float] = []
    for name, synchronous in (("ASYNCHRONOUS", False), ("SYNCHRONOUS", True)):
        of_mode = {case: took for case, took in found.items() if case.synchronous == synchronous}
        null = {
            case: took
            for case, took in of_mode.items()
            if case.step.milliseconds == 0 and case.workers <= FITTED_WORKERS
        }
        terms = np.array([[case.shards, 1e6 * case.step.megabytes] for case in null])
        worker, ps = (
            _least_squares(terms, np.array([getattr(took, role) / 1e3 for took in null.values()]), errors)
            for role in ("worker_ms", "ps_ms")
        )
        costs = Costs(*(float(f"{cost:.2g}") for cost in (*worker, *ps)))
        lines.append(f"{name} = {costs}")
        for case, took in of_mode.items():
            if case.step == SLEEPING:
                scenario = Scenario(case.workers, 1e6, 1e12, 0.1, psutil.cpu_count() or 1, synchronous)
                predicted = predict(scenario, case.ps, costs)
                rate = (1 if synchronous else case.workers) / predicted.seconds
                lines.append(f"{case.workers} sleeping: {took.rate:.2f} steps/s, predicted {rate:.2f}")
    lines.append(f"errors of {len(errors)} points: median {np.median(errors):.0%}, largest {max(errors):.0%}")
    return "\n".join(lines)


def _least_squares(terms: Any, values: Any, errors: list[float]) -> Any:
    """The coefficients, none below 0; the relative errors are appended to `errors`."""
    found, _ = nnls(terms / values[:, None], np.ones(len(values)))
    errors += list(np.abs(terms @ found / values - 1))
    return found


if __name__ == "__main__":
    sys.exit(main())
