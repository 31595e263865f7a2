"""How fast the trainer is, and how fast it learns, beside the classic code, strategies, and no communication at all.

    python -m benchmarks                        everything, into docs/performance.md: an hour on two cores
    python -m benchmarks --short                every row once, a few steps, printed alone: what it prints means little
    python -m benchmarks --sections long busy   some sections of it
    python -m benchmarks --reference FILE       beside another program with the flags of classic_mnist_replica.py
    python -m benchmarks --render FILE          the report again, of the results of an earlier run, also of one cut off

Programs that are compared run by turns, each in processes of its own, so that a drift of the machine's speed meets all.
Each run's outcome is kept at once in a JSON file in benchmarks/results, so Ctrl-C loses nothing but the run under way.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from benchmarks import plan, programs, report, results
from benchmarks.plan import SECTIONS, Extent
from benchmarks.processes import FailedError
from benchmarks.work import Run, Work

DOCS = Path(__file__).parents[1] / "docs"
PLOT = DOCS / "performance.svg"


def main() -> int:
    """Measure and report; 0, or 1 where a run failed, or 130 after Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, default=programs.CLASSIC, help="the classic program to compare with")
    parser.add_argument("--pairs", type=int, default=5, help="turns with 1 ps and 2 workers (default: 5)")
    parser.add_argument("--other_pairs", type=int, default=2, help="turns of everything else (default: 2)")
    parser.add_argument("--steps", type=int, default=3000, help="global steps of a run, a third if synchronous (3000)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of the section on learning (default: 3)")
    parser.add_argument("--accuracy_seeds", type=int, default=10, help="runs of the section on accuracy (default: 10)")
    parser.add_argument("--long_steps", type=int, default=40_000, help="of a long run, half if synchronous (40000)")
    parser.add_argument("--long_seeds", type=int, default=3, help="long runs of each way to train (default: 3)")
    parser.add_argument("--busy_steps", type=int, default=4000, help="of a run in the section on busy machines (4000)")
    parser.add_argument("--busy_seeds", type=int, default=10, help="runs of the section on busy machines (default: 10)")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="default: all")
    parser.add_argument("--short", action="store_true", help="one turn of 300 steps, and no change to the documents")
    parser.add_argument("--render", type=Path, metavar="FILE", help="measure nothing, report on a file of results")
    arguments = parser.parse_args()
    if arguments.render:
        machine, runs = results.read(arguments.render)
        publish(machine, runs)
        return 0
    extent = Extent(**{field.name: getattr(arguments, field.name) for field in fields(Extent)})
    if arguments.short:
        extent = plan.SHORT
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, ends what was started
    found = results.Results()
    try:
        complete = measure(found, extent, arguments.reference.resolve(), arguments.sections)
    except KeyboardInterrupt:
        print(f"\nstopped; the report on what was measured: python -m benchmarks --render {found.path}")
        return 130
    print(f"\n{report.render(found.machine, found.runs)}\n\nresults: {found.path}")
    if not arguments.short and tuple(arguments.sections) == SECTIONS:
        publish(found.machine, found.runs)
    return 0 if complete else 1


def measure(found: results.Results, extent: Extent, reference: Path, sections: Sequence[str]) -> bool:
    """Run all that is planned, saying how far it is; whether every run gave a result."""
    planned = list(plan.plan(extent, reference, sections))
    began, complete = time.monotonic(), True
    with tempfile.TemporaryDirectory() as folder:
        data = programs.prepare(Path(folder))
        for number, (section, turn, (name, work, program)) in enumerate(planned, start=1):
            try:
                outcome = program(data)
            except FailedError as error:
                said, complete = f"FAILED: {error}", False
            else:
                found.add(Run(section, name, turn, work, outcome))
                said = f"{outcome.rate:8.1f} steps/s"
                said += "" if outcome.accuracy is None else f", test accuracy {outcome.accuracy:.4f}"
            minutes = (time.monotonic() - began) / 60
            print(f"{minutes:5.1f} min {number:3}/{len(planned)}  {describe(work)}  {name}: {said}", flush=True)
    return complete


def describe(work: Work) -> str:
    """A work in a line of progress."""
    return f"{work.mode:12} {work.ps} ps {work.workers} workers batch {work.batch_size:3} hidden {work.hidden_units:3}"


def publish(machine: dict[str, str | int], runs: list[Run]) -> None:
    """Write the report into the documents."""
    report.draw(runs, PLOT)
    report.insert(DOCS / "performance.md", f"{report.render(machine, runs)}\n\n![ratios]({PLOT.name})")
    print(f"written: {DOCS / 'performance.md'}, {PLOT}")


if __name__ == "__main__":
    sys.exit(main())
