"""Measure recommenders by the trainer, and by others on the same machine.

    python -m benchmarks.recommenders                    run everything and update docs/recommenders.md: an hour
    python -m benchmarks.recommenders --short            check that every program runs; results mean little
    python -m benchmarks.recommenders --sections rates   run some sections
    python -m benchmarks.recommenders --render FILE      write the report from a file of results, complete or not
    CRITEO_DIR=… python -m benchmarks.recommenders       also learn from Criteo's train.txt, in that folder

Each outcome goes to a JSON file in benchmarks/results at once: Ctrl-C loses only the current run.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.processes import FailedError
from benchmarks.recommenders import criteo, plan, profile, programs, report
from benchmarks.recommenders.data import Examples
from benchmarks.recommenders.plan import PROFILE, SECTIONS, Extent, Planned, Run
from benchmarks.recommenders.work import Given
from benchmarks.report import insert
from benchmarks.results import Results, read_as

DOCS = Path(__file__).parents[2] / "docs"
PAGE, CHART = DOCS / "recommenders.md", DOCS / "recommenders.svg"


def main(words: Sequence[str] | None = None) -> int:
    """Measure and report; returns 0, 1 if a run failed, 2 for wrong input, or 130 after Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of DLRM's rates (default: 3)")
    parser.add_argument("--other_rounds", type=int, default=2, help="rounds of other rates (default: 2)")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections to run")
    parser.add_argument("--programs", nargs="+", choices=programs.PROGRAMS, help="programs to run (default: all)")
    parser.add_argument(
        "--short", action="store_true", help="each program once, a few steps; keep docs/recommenders.md"
    )
    parser.add_argument("--render", type=Path, metavar="FILE", help="write the report from a file of results")
    arguments = parser.parse_args(words)
    if arguments.render:
        machine, runs = read_as(arguments.render, Run.from_json)
        publish(machine, runs)
        return 0
    file = None
    if folder := os.environ.get("CRITEO_DIR"):
        try:
            file = criteo.find(Path(folder))
        except criteo.CriteoError as error:
            parser.exit(2, f"{error}\n")
    extent = Extent(arguments.rounds, arguments.other_rounds)
    extent = replace(plan.SHORT if arguments.short else extent, has_criteo=file is not None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also stops the started processes
    collected = Results("recommenders-")
    try:
        complete = measure(collected, extent, arguments.sections, arguments.programs or list(programs.PROGRAMS), file)
    except criteo.CriteoError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:
        print(f"\nstopped; to report on the runs so far: python -m benchmarks.recommenders --render {collected.path}")
        return 130
    print(f"\n{report.render(collected.machine, collected.runs)}\n\nresults: {collected.path}")
    if not arguments.short and tuple(arguments.sections) == SECTIONS and not arguments.programs:
        publish(collected.machine, collected.runs)
    return 0 if complete else 1


def measure(
    collected: Results, extent: Extent, sections: Sequence[str], names: Sequence[str], criteo_file: Path | None
) -> bool:
    """Run the whole plan and print progress; returns whether every run succeeded.

    Raises:
        CriteoError: Criteo's file is not as it should be.
    """
    planned = [each for each in plan.plan(extent, sections) if each.program in names]
    total, complete, started_at = len(planned), True, time.monotonic()
    print(f"{total} runs, about {plan.minutes(planned, extent):.0f} minutes on two quiet cores", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        examples = Examples(Path(folder), extent.counts, criteo_file)
        for number, each in enumerate(planned, start=1):
            try:
                run = _run(each, examples)
            except FailedError as error:
                status, complete = f"FAILED: {error}", False
            else:
                collected.add(run)
                status = str(run.outcome)
            minutes = (time.monotonic() - started_at) / 60
            print(f"{minutes:5.1f} min {number:3}/{total}  {each}: {status}", flush=True)
    return complete


def _run(planned: Planned, examples: Examples) -> Run:
    folder = examples.folder_of(planned.work.data)
    program = profile.run if planned.section == PROFILE else programs.PROGRAMS[planned.program]
    with tempfile.TemporaryDirectory() as snapshots:
        outcome = program(Given(planned.work, folder, Path(snapshots)))
    return Run(planned, outcome, examples.about(planned.work.data).best)


def publish(machine: dict[str, str | int], runs: Sequence[Run]) -> None:
    """Write the report and the chart into docs/."""
    report.draw(runs, CHART)
    insert(PAGE, f"{report.render(machine, runs)}\n\n![rates and AUC]({CHART.name})")
    print(f"written: {PAGE}, {CHART}")


if __name__ == "__main__":
    sys.exit(main())
