"""Measure the trainer's speed and learning against the classic code, TensorFlow's strategies and no communication.

    python -m benchmarks                        run everything and update docs/performance.md: an hour on two cores
    python -m benchmarks --short                check that every row runs: a few steps each, results mean little
    python -m benchmarks --sections long busy   run some sections
    python -m benchmarks --sections tables      models with large embeddings alone, which is not part of everything
    python -m benchmarks --sections network     links of 1, 10 and 25 Gbit/s between the tasks, likewise
    python -m benchmarks --reference FILE       compare with another program that has classic_mnist_replica.py's flags
    python -m benchmarks --render FILE          write the report from a file of results, complete or not

Programs run in interleaved rounds, each in its own processes, so that drift of the machine's speed affects all alike.
Each outcome goes to a JSON file in benchmarks/results at once: Ctrl-C loses only the current run.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from benchmarks import network, plan, programs, report, results, tables
from benchmarks.plan import SECTIONS, Extent
from benchmarks.processes import FailedError
from benchmarks.workload import Run, Workload

DOCS = Path(__file__).parents[1] / "docs"
PLOT = DOCS / "performance.svg"
TABLES, NETWORK = "tables", "network"
"""The sections with a report of their own."""


def main() -> int:
    """Measure and report; returns 0, 1 if a run failed, or 130 after Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, default=programs.CLASSIC, help="the classic program to compare with")
    parser.add_argument("--pairs", type=int, default=5, help="rounds with 1 ps and 2 workers (default: 5)")
    parser.add_argument("--other_pairs", type=int, default=2, help="rounds of everything else (default: 2)")
    parser.add_argument("--steps", type=int, default=3000, help="global steps of a run, a third if synchronous (3000)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds in section learning (default: 3)")
    parser.add_argument("--accuracy_seeds", type=int, default=10, help="seeds in section accuracy (default: 10)")
    parser.add_argument(
        "--long_steps", type=int, default=40_000, help="steps of a long run, half if synchronous (40000)"
    )
    parser.add_argument("--long_seeds", type=int, default=3, help="seeds in section long (default: 3)")
    parser.add_argument("--busy_steps", type=int, default=4000, help="steps of a run in section busy (4000)")
    parser.add_argument("--busy_seeds", type=int, default=10, help="seeds in section busy (default: 10)")
    parser.add_argument(
        "--sections", nargs="+", choices=(*SECTIONS, TABLES, NETWORK), default=SECTIONS, help="sections to run"
    )
    parser.add_argument("--short", action="store_true", help="one round of 300 steps; keep docs/performance.md")
    parser.add_argument("--render", type=Path, metavar="FILE", help="write the report from a file of results")
    arguments = parser.parse_args()
    if arguments.render:
        machine, runs = results.read(arguments.render)
        publish(machine, runs)
        return 0
    if alone := {TABLES, NETWORK} & set(arguments.sections):
        if len(arguments.sections) > 1:
            parser.error(f"--sections {alone.pop()} has a report of its own; run the other sections by another command")
        short = arguments.short
        if NETWORK in alone:
            return network.main(["--short"] if short else [])
        print(tables.compare(tables.cases(steps=300 if short else 5000), 1 if short else arguments.pairs))
        return 0
    extent = Extent(**{field.name: getattr(arguments, field.name) for field in fields(Extent)})
    if arguments.short:
        extent = plan.SHORT
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also stops the started processes
    collected = results.Results()
    try:
        complete = measure(collected, extent, arguments.reference.resolve(), arguments.sections)
    except KeyboardInterrupt:
        print(f"\nstopped; to report on the runs so far: python -m benchmarks --render {collected.path}")
        return 130
    print(f"\n{report.render(collected.machine, collected.runs)}\n\nresults: {collected.path}")
    if not arguments.short and tuple(arguments.sections) == SECTIONS:
        publish(collected.machine, collected.runs)
    return 0 if complete else 1


def measure(collected: results.Results, extent: Extent, reference: Path, sections: Sequence[str]) -> bool:
    """Run the whole plan and print progress; returns whether every run succeeded."""
    planned = list(plan.plan(extent, reference, sections))
    started_at, complete = time.monotonic(), True
    with tempfile.TemporaryDirectory() as folder:
        data = programs.prepare(Path(folder))
        for number, (section, round_number, (name, workload, program)) in enumerate(planned, start=1):
            try:
                outcome = program(data)
            except FailedError as error:
                status, complete = f"FAILED: {error}", False
            else:
                collected.add(Run(section, name, round_number, workload, outcome))
                status = f"{outcome.rate:8.1f} steps/s"
                status += "" if outcome.accuracy is None else f", test accuracy {outcome.accuracy:.4f}"
            minutes = (time.monotonic() - started_at) / 60
            print(f"{minutes:5.1f} min {number:3}/{len(planned)}  {describe(workload)}  {name}: {status}", flush=True)
    return complete


def describe(workload: Workload) -> str:
    """Describe a workload for a line of progress."""
    cluster = f"{workload.ps} ps {workload.workers} workers"
    return f"{workload.mode:12} {cluster} batch {workload.batch_size:3} hidden {workload.hidden_units:3}"


def publish(machine: dict[str, str | int], runs: list[Run]) -> None:
    """Write the report and the plot into docs/."""
    report.draw(runs, PLOT)
    report.insert(DOCS / "performance.md", f"{report.render(machine, runs)}\n\n![ratios]({PLOT.name})")
    print(f"written: {DOCS / 'performance.md'}, {PLOT}")


if __name__ == "__main__":
    sys.exit(main())
