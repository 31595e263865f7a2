"""Goodput under faults: how much of the time of a run counts when a task fails every so often.

    python -m benchmarks.faults.goodput                           the points without a result; then docs/faults.md
    python -m benchmarks.faults.goodput --short                   one point of each curve, in ten minutes
    python -m benchmarks.faults.goodput --only allreduce 15       the points whose names have all of these words
    python -m benchmarks.faults.goodput --render                  write docs/faults.md from the results so far

A point is a run in a mode with a fault of each kind in turn, one each so many seconds. Its goodput is that of the time
from the first fault to the last interval's end, by the run's own account (`goodput_seconds` in result.json): the start
and the end of a run do not depend on faults. Points of the place `cluster` are runs in the throw-away cluster of
`make cluster-up` on this machine: they need root, helm and kubectl. Those of rare faults disturb that cluster as a
whole, and start a second node in it. Each outcome goes to benchmarks/results at once: Ctrl-C loses only one run.
"""

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import trainer
from benchmarks.faults import curve
from benchmarks.faults.cluster import Cluster, FaultError
from benchmarks.faults.faults import FULL
from benchmarks.faults.observation import Observation
from benchmarks.faults.points import INTERVALS, Outcome, Point, Struck, points
from benchmarks.faults.run import disturb, keep_logs, small_volume, start, wait_for_training
from benchmarks.results import FOLDER
from hack.cluster.paths import KUBECONFIG
from hack.cluster.waiting import until
from trainer.telemetry.goodput import Seconds, read

FILE = FOLDER / "goodput.jsonl"
RECORD_SECONDS = 120.0
"""How long the chief may take to write its next record."""
PHASE_SECONDS = 4.0
"""A record is written with a checkpoint: the next fault comes up to this time later, as it would at any time."""


def main() -> int:
    """Measure; returns 0, 1 if a run did not do what it must, or 130 after Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="words of the names of the points")
    parser.add_argument(
        "--short", action="store_true", help="one point of each curve of processes; keep docs/faults.md"
    )
    parser.add_argument("--again", action="store_true", help="measure points again that have a result")
    parser.add_argument("--render", action="store_true", help="write docs/faults.md from the results so far")
    parser.add_argument("--image_tag", default=trainer.__version__, help="tag of the images on the cluster's node")
    arguments = parser.parse_args()
    chosen = [point for point in points() if set(point.name.split()).issuperset(arguments.only)]
    if arguments.short:
        chosen = [each for each in chosen if each.place == "processes" and each.interval == min(INTERVALS)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        most = 1 if arguments.short else max(INTERVALS.values())
        file = FILE.with_stem("goodput-short") if arguments.short else FILE
        known = set() if arguments.again or arguments.short else set(stored())
        left = [point for point in chosen if point.name not in known]
        good = arguments.render or measure(left, arguments.image_tag, most, file)
    except KeyboardInterrupt:
        print("\nstopped; the points so far are kept", file=sys.stderr)
        return 130
    if not arguments.short:
        curve.publish(list(stored().values()))
    return 0 if good else 1


def stored() -> dict[str, Outcome]:
    """The latest outcome of each point, by its name."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return {outcome.point.name: outcome for outcome in map(Outcome.from_json, map(json.loads, lines))}


def measure(chosen: Sequence[Point], tag: str, most: int, results: Path) -> bool:
    """Measure points with each kind of fault at most so often, and add each to the file of results at once.

    Returns:
        Whether the runs did what they must.
    """
    good = True
    for point in chosen:
        if point.place == "cluster" and not KUBECONFIG.exists():
            print(f"{point.name}: left out, because there is no cluster; `make cluster-up` starts one", flush=True)
            continue
        print(f"{point.name}: {point.workload}", flush=True)
        try:
            outcome = strike(point, tag, most)
        except FaultError as error:
            print(f"{point.name}: not measured: {error}", flush=True)
            good = False
            continue
        results.parent.mkdir(exist_ok=True)
        with results.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        good = good and not outcome.problems
        print(f"{point.name}: {curve.sentence(outcome)}", flush=True)
    return good


def strike(point: Point, tag: str, most: int) -> Outcome:
    """Train, and inject the faults in turn, each at most so often.

    Raises:
        FaultError: the run did not start, or it failed.
    """
    struck: list[Struck] = []
    problems: list[str] = []
    choice = random.Random(0)  # noqa: S311
    needs_volume = any(fault is FULL for fault, _ in point.kinds)
    with (
        tempfile.TemporaryDirectory() as folder,
        small_volume(Path(folder, "run")) if needs_volume else contextlib.nullcontext(),
        contextlib.closing(start(point.place, point.workload, Path(folder), tag)) as cluster,
        Observation(cluster) as seen,
    ):
        wait_for_training(cluster, seen)
        until(lambda: bool(seen.saved), RECORD_SECONDS)
        first = before = record(cluster)
        due = time.monotonic()
        for fault, targets in point.kinds * min(most, point.rounds):
            due = max(due + point.interval, time.monotonic())
            time.sleep(choice.uniform(0, PHASE_SECONDS))
            cost = disturb(cluster, seen, fault, targets)
            time.sleep(max(0.0, due - time.monotonic()))
            after = record(cluster)
            spent = between(before.seconds, after.seconds)
            wasted = spent.total - spent.training
            hits = "all tasks" if targets == point.workload.tasks else ", ".join(targets) or "–"
            struck.append(Struck(fault.name, hits, cost.pause, cost.back, cost.lost, wasted))
            problems += [f"{fault.name} of {hits}: {problem}" for problem in cost.problems]
            back = "never back" if cost.back is None else f"back after {cost.back:.1f} s"
            what = f"{fault.name}: {hits}: {back}, {cost.lost} steps taken again, {wasted:.1f} s lost"
            print(f"  {what}", flush=True)
            before = after
        if problems:
            keep_logs(f"goodput {point.name}", seen)
    return Outcome(point, between(first.seconds, before.seconds), before.step - first.step, struck, problems)


@dataclass(frozen=True)
class Record:
    """The account of a run at a time."""

    seconds: Seconds
    step: int
    """The highest global step."""


def record(cluster: Cluster) -> Record:
    """The account of the run, once the chief has written it from now on.

    Raises:
        FaultError: it does not, or the run has ended.
    """
    old = cluster.result().get("updated")
    if not until(
        lambda: cluster.result().get("updated", old) != old or cluster.exit_code() is not None, RECORD_SECONDS
    ):
        raise FaultError(f"no record of the run within {RECORD_SECONDS:g} s")
    found = cluster.result()
    seconds = read(found)
    if cluster.exit_code() is not None or seconds is None:
        raise FaultError("the run has ended")
    return Record(seconds, int(found["furthest_step"]))


def between(before: Seconds, after: Seconds) -> Seconds:
    """What the time between two records went into."""
    earlier = asdict(before)
    return Seconds(**{part: value - earlier[part] for part, value in asdict(after).items()})


if __name__ == "__main__":
    sys.exit(main())
