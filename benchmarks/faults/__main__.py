"""Inject faults into runs, measure what each costs, and judge whether the run did what it must.

    python -m benchmarks.faults                        run the cases without a result; update docs/faults.md (hours)
    python -m benchmarks.faults --again                run all of them again
    python -m benchmarks.faults --list                 print the names of the cases
    python -m benchmarks.faults --only 'kill -9' ps-0  run the cases whose name has all these parts
    python -m benchmarks.faults --short                one case of each fault; keep docs/faults.md
    python -m benchmarks.faults --render               write docs/faults.md from the results so far

Cases of the place `cluster` need the throw-away cluster of `make cluster-up` on this machine, root, helm and kubectl;
without it they are left out. Some disturb the whole cluster: use it for nothing else meanwhile. Each outcome goes to
benchmarks/results/faults.jsonl at once: Ctrl-C loses only the current run.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import trainer
from benchmarks.faults import report, results
from benchmarks.faults.cluster import FaultError
from benchmarks.faults.plan import PLACES, Case, plan
from benchmarks.faults.run import run
from hack.cluster.paths import KUBECONFIG


def main() -> int:
    """Run the matrix; returns 0, 1 if a run did not do what it must, or 130 after Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts of the names of the cases to run")
    parser.add_argument("--place", choices=PLACES, help="run only cases in this place")
    parser.add_argument("--again", action="store_true", help="run cases again that have a result")
    parser.add_argument("--short", action="store_true", help="one case of each fault; keep docs/faults.md")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--render", action="store_true", help="write docs/faults.md from the results so far")
    parser.add_argument("--image_tag", default=trainer.__version__, help="tag of the images on the cluster's node")
    parser.add_argument("--results", type=Path, default=results.FILE, help="file of the results")
    arguments = parser.parse_args()
    cases = plan()
    chosen = [
        case
        for case in cases
        if all(part in case.name for part in arguments.only) and arguments.place in (None, case.place)
    ]
    if arguments.short:
        chosen = list({(case.place, case.fault and case.fault.name): case for case in reversed(chosen)}.values())[::-1]
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if arguments.render:
        report.publish(cases, results.read(arguments.results))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also ends the run
    try:
        good = measure(chosen, arguments.results, arguments.image_tag, again=arguments.again)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on with the next case")
        return 130
    entries = results.read(arguments.results)
    print(report.render(chosen, entries))
    if not arguments.short:
        report.publish(cases, entries)
        print(f"written: {report.DOCUMENT}")
    return 0 if good else 1


def measure(cases: Sequence[Case], path: Path, tag: str, *, again: bool) -> bool:
    """Run these cases, and print progress; returns whether every run did what it must."""
    started, good = time.monotonic(), True
    for number, case in enumerate(cases, start=1):
        known = results.read(path).get(case.name)
        if known and known.row and not again:
            continue
        head = f"{(time.monotonic() - started) / 60:5.1f} min {number:3}/{len(cases)}  {case.name}"
        if case.place == "cluster" and os.environ.get("KUBECONFIG") != str(KUBECONFIG):
            results.add(path, case.name, None, "KUBECONFIG is not that of the throw-away cluster")
            print(f"{head}: not run, KUBECONFIG is not {KUBECONFIG}", flush=True)
            continue
        try:
            row = run(case, tag)
        except FaultError as error:
            results.add(path, case.name, None, str(error).splitlines()[0])
            print(f"{head}: NOT RUN: {error}", flush=True)
            good = False
            continue
        results.add(path, case.name, row)
        verdict = report.verdict(case, row, results.read(path), cases)
        good &= verdict == "good"
        cost = row.cost
        figures = f"pause {cost.pause:.1f} s, back {cost.back}, lost {cost.lost}, {cost.said!r}" if cost else ""
        print(f"{head}: {row.seconds:.0f} s, {figures}, accuracy {row.accuracy}: {verdict}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
