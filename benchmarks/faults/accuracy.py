"""What a model learns in a run whose tasks are killed, and in a quiet one: the same seeds, steps and tasks.

    python -m benchmarks.faults.accuracy --seeds 10          twenty minutes or so; then docs/faults.md

Each run of `trainer launch` has 2 workers and 2 parameter servers, and steps that last. In a disturbed one each task is
killed (SIGKILL) in turn, parameter servers twice. Seeds are interleaved with what is compared.
"""

import argparse
import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.faults import page
from benchmarks.faults.cluster import FaultError
from benchmarks.faults.faults import KILL
from benchmarks.faults.observation import Observation
from benchmarks.faults.run import disturb, start, wait_for_end, wait_for_training
from benchmarks.faults.workload import Workload
from benchmarks.report import row
from benchmarks.results import describe_machine, measured_on

STEPS = 2400
PAUSE_SECONDS = 1.5
"""Between a recovery and the next fault."""
RUNS = {
    "the packaged network, asynchronous": Workload("asynchronous", ps=2, train_steps=STEPS),
    "the packaged network, synchronous": Workload("synchronous", ps=2, train_steps=STEPS // 2),
    "a table, asynchronous": Workload("asynchronous", ps=2, train_steps=STEPS, has_table=True),
}
VICTIMS = ("ps-1", "worker-1", "ps-0", "worker-0", "ps-1", "ps-0")


def main() -> int:
    """Measure; returns 0, or 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="how many seeds (default: 10)")
    seeds = range(parser.parse_args().seeds)
    scores: dict[tuple[str, bool], list[float]] = {}
    lost: dict[str, int] = dict.fromkeys(RUNS, 0)
    try:
        for seed, (name, workload), is_struck in itertools.product(seeds, RUNS.items(), (False, True)):
            score, again = train(workload, seed, VICTIMS if is_struck else ())
            scores.setdefault((name, is_struck), []).append(score)
            lost[name] += again
            print(f"{name}, seed {seed}, {'killed' if is_struck else 'quiet'}: {score:.4f}, {again} again", flush=True)
    except FaultError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    text = render(scores, lost, len(seeds))
    print(text)
    page.write("accuracy", f"{measured_on(describe_machine())}\n\n{text}")
    return 0


def train(workload: Workload, seed: int, victims: Sequence[str]) -> tuple[float, int]:
    """Train, and kill these tasks one after the other; return the score at the end, and the steps taken again.

    Raises:
        FaultError: the run failed, or it ended before all of them were killed.
    """
    again = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(start("processes", replace(workload, seed=seed), Path(folder))) as cluster,
        Observation(cluster) as seen,
    ):
        wait_for_training(cluster, seen)
        for victim in victims:
            found = disturb(cluster, seen, KILL, [victim])
            if found.back is None:
                raise FaultError(f"the run ended before {victim} was back")
            again += found.lost
            time.sleep(PAUSE_SECONDS)
        if not wait_for_end(cluster, seen) or cluster.exit_code():
            raise FaultError(f"the run hangs, or it ended with code {cluster.exit_code()}")
        result = cluster.result()
    return float(result["test_auc" if workload.has_table else "test_accuracy"]), again


def render(scores: dict[tuple[str, bool], list[float]], lost: dict[str, int], seeds: int) -> str:
    """The table as Markdown: means, and the differences of the same seeds with their standard error."""
    lines = [row(["model", "seeds", "quiet", "each task killed", "difference", "steps taken again"]), row(["---"] * 6)]
    for name, workload in RUNS.items():
        quiet, struck = scores[name, False], scores[name, True]
        differences = [after - before for before, after in zip(quiet, struck, strict=True)]
        error = statistics.stdev(differences) / seeds**0.5 if seeds > 1 else 0.0
        difference = f"{statistics.mean(differences):+.4f} ± {error:.4f}"
        means = [f"{statistics.mean(values):.4f}" for values in (quiet, struck)]
        lines.append(row([name, seeds, *means, difference, f"{lost[name] / (workload.steps * seeds):.1%}"]))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
