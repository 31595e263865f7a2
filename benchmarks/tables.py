"""The rate of a model with a large embedding, by the trainer and by the classic program: `python -m benchmarks.tables`.

Both train the model of embedding.py with batches of the same sizes, on one machine, in interleaved rounds. The table
has the median and the range of the rates in global steps/s, and of the ratio in the same round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Task, running
from hack.ports import free_ports

HERE = Path(__file__).parent
OPTIMIZERS = ("SGD", "Adagrad", "Adam")
TIMEOUT = 900.0
"""Seconds after which a run counts as hung."""


@dataclass(frozen=True)
class Workload:
    """What both programs train."""

    optimizer: str
    rows: int
    batch_size: int
    ps: int
    workers: int
    steps: int

    @property
    def flags(self) -> list[str]:
        """The flags that both programs know."""
        return [f"--train_steps={self.steps}", f"--batch_size={self.batch_size}"]


def run_classic(workload: Workload, synchronous: bool) -> float:
    """The rate of the classic program."""
    addresses = [f"localhost:{port}" for port in free_ports(workload.ps + workload.workers)]
    command = [sys.executable, "-m", "benchmarks.classic_embedding", *workload.flags]
    command += [f"--warmup_steps={workload.steps // 10}", f"--rows={workload.rows}"]
    command += [f"--optimizer={workload.optimizer}", *(["--sync"] if synchronous else [])]
    command += [f"--ps_hosts={','.join(addresses[: workload.ps])}"]
    command += [f"--worker_hosts={','.join(addresses[workload.ps :])}"]
    tasks = [
        Task(role, [*command, f"--job_name={role}", f"--task_index={index}"])
        for role, count in (("ps", workload.ps), ("worker", workload.workers))
        for index in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder, running(tasks, Path(folder), TIMEOUT) as processes:
        return float(json.loads(processes.wait_for_line(workload.ps))["rate"])


def run_trainer(workload: Workload, synchronous: bool) -> float:
    """The rate of the trainer."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainer", "launch", "--json", *workload.flags, f"--ps={workload.ps}"]
        command += [f"--workers={workload.workers}", f"--sync_replicas={synchronous}", f"--train_dir={folder}/run"]
        command += [f"--model={HERE / 'embedding.py'}", "--eval_seconds=600", "--save_share=0"]
        environment = {**os.environ, "ROWS": str(workload.rows), "OPTIMIZER": workload.optimizer}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=TIMEOUT)
        return float(json.loads(done.stdout)["steps_per_second"])


def compare(cases: Sequence[tuple[Workload, bool]], rounds: int) -> str:
    """Run all workloads, each synchronous or not, in rounds, and return the table."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for number in range(rounds):
        for position, (workload, synchronous) in enumerate(cases):
            rates = run_classic(workload, synchronous), run_trainer(workload, synchronous)
            found[position].append(rates)
            print(f"round {number}, {workload}, synchronous={synchronous}: {rates}", file=sys.stderr, flush=True)
    lines = [
        "| rows | batch | ps | workers | optimizer | mode | classic, steps/s | trainer, steps/s | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for position, (workload, synchronous) in enumerate(cases):
        classic, trainer = zip(*found[position], strict=True)
        ratios = [own / other for other, own in found[position]]
        cells = [f"{workload.rows:,}", workload.batch_size, workload.ps, workload.workers, workload.optimizer]
        cells += ["synchronous" if synchronous else "asynchronous"]
        cells += [_spread(classic, 0), _spread(trainer, 0), _spread(ratios, 1)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def cases(
    optimizers: Sequence[str] = OPTIMIZERS,
    rows: Sequence[int] = (500_000,),
    batch_sizes: Sequence[int] = (100,),
    ps: int = 1,
    workers: int = 2,
    steps: int = 5000,
) -> list[tuple[Workload, bool]]:
    """All combinations. A synchronous run takes a third of the steps, and one with larger batches fewer."""
    return [
        (
            Workload(optimizer, many, size, ps, workers, steps * 100 // max(size, 100) // (3 if synchronous else 1)),
            synchronous,
        )
        for many in rows
        for size in batch_sizes
        for optimizer in optimizers
        for synchronous in (False, True)
    ]


def main() -> None:
    """Print a line for each run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--optimizers", nargs="+", default=OPTIMIZERS)
    parser.add_argument("--rows", nargs="+", type=int, default=[500_000])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[100])
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5000, help="global steps of batches of 100 (5000)")
    given = vars(parser.parse_args())
    rounds = given.pop("rounds")
    print(compare(cases(**given), rounds))


def _spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


if __name__ == "__main__":
    main()
