"""A soak: one run under random faults, which a seed decides, for some minutes; ends with a table and a verdict.

    python -m benchmarks.faults.soak --minutes 30 --seed 1                       processes on this machine
    python -m benchmarks.faults.soak --minutes 30 --seed 1 --place cluster       a release in the throw-away cluster
    python -m benchmarks.faults.soak --hours 8                                   a fault each minute; docs/faults.md

After each fault it waits until every replica steps again. The parameters of the run are its ledger: how often each
example was taken (`ledger_model.py`). It ends with code 1 if no fault was injected, something hung, a step fell below a
saved checkpoint, the run failed, an example was skipped, more were taken again than the open leases of what was lost,
or the memory of a task grew. A long soak spares the first task of each role but the evaluator. The
memory, files and threads of these must not grow after the first hour, and it writes its curves into docs/faults.md.
"""

import argparse
import contextlib
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import trainer
from benchmarks.faults import faults, soak_page
from benchmarks.faults.cluster import PLACES, Cluster, FaultError, Place
from benchmarks.faults.faults import Fault
from benchmarks.faults.measure import Cost
from benchmarks.faults.observation import Observation
from benchmarks.faults.resources import Held, growth, look, survivors, written
from benchmarks.faults.run import HUNG_SECONDS, disturb, keep_logs, last_lines, start, wait_for_end, wait_for_training
from benchmarks.faults.workload import BATCH, MODES, Workload
from benchmarks.report import row
from benchmarks.results import FOLDER
from trainer.data.leases import MOST_STEPS

STOP = Fault("stopped (SIGSTOP)", faults.STOP.inject, 10)
CUT_OFF = Fault("cut off from the network", faults.CUT_OFF.inject, 10)
FAULTS: dict[Place, tuple[Fault, ...]] = {
    "processes": (faults.KILL, faults.KILL, faults.TERMINATE, STOP, faults.CUT_CHECKPOINT),
    "cluster": (faults.KILL, faults.DELETE, faults.TERMINATE, STOP, CUT_OFF),
}
PAUSE_SECONDS, LONG_PAUSE_SECONDS = (3.0, 12.0), (50.0, 60.0)
"""The range of random pauses between a recovery and the next fault."""
LAST_SHARE = 0.9
"""No fault is injected in the last tenth of the steps."""
EPOCHS = 3
LONG_STEP_SECONDS = 0.1
"""How long a step of a long soak takes. It has an epoch a minute: a step has a gradient for the whole ledger."""
GROWTH_FACTOR, GROWTH_MIB = 1.15, 48.0
"""How much larger the memory of a kind of task may be at the end than at the begin, by factor and in addition."""
SETTLING_SECONDS = 3600.0
"""A long soak looks at growth after this time."""
MOST_AN_HOUR = {"memory": 1.0, "files": 1.0, "threads": 1.0}
"""How much the tasks that a long soak spares may grow in an hour after that: MiB, and numbers."""


@dataclass
class Soak:
    """What a soak has seen so far."""

    spared: Sequence[str] = ()
    """The tasks that no fault hits."""
    costs: list[tuple[Fault, Sequence[str], Cost]] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    written: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """Times, and the MiB in each folder of the training directory."""
    problems: list[str] = field(default_factory=list)


def main() -> int:
    """Run a soak; returns 0 or 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long faults are injected (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults (default: 0)")
    parser.add_argument("--mode", choices=MODES, default="asynchronous", help="how replicas train")
    parser.add_argument("--place", choices=PLACES, default="processes", help="where the run is")
    parser.add_argument("--hours", type=float, help="a long soak: a fault each minute, curves in docs/faults.md")
    parser.add_argument("--image_tag", default=trainer.__version__, help="tag of the images on the cluster's node")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    servers = 0 if arguments.mode == "allreduce" else 2
    minutes = arguments.minutes if arguments.hours is None else 60 * arguments.hours
    seconds = round(60 * minutes)
    workload = Workload(arguments.mode, servers, chief=True, evaluator=True, seconds=seconds, epochs=EPOCHS)
    if arguments.hours is not None:
        workload = replace(workload, step_seconds=LONG_STEP_SECONDS, epochs=max(EPOCHS, round(minutes)))
    print(f"soak of {minutes:g} min with seed {arguments.seed}: {workload.mode}, {workload}", flush=True)
    try:
        choice = random.Random(arguments.seed)  # noqa: S311
        found = soak(workload, arguments.place, choice, arguments.image_tag, is_long=arguments.hours is not None)
    except FaultError as error:
        print(f"the soak did not start: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped before the verdict", file=sys.stderr)
        return 130
    return 1 if found.problems else 0


def soak(workload: Workload, place: Place, choice: random.Random, tag: str, *, is_long: bool) -> Soak:
    """Train under random faults to the end of the run, and print the table; returns what was seen."""
    found = Soak([task for task in (workload.leader, "ps-0", "worker-0") if is_long and task in workload.tasks])
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(start(place, workload, Path(folder), tag)) as cluster,
    ):
        with Observation(cluster) as seen:
            wait_for_training(cluster, seen)
            deadline = time.monotonic() + workload.seconds
            while time.monotonic() < deadline and seen.step < LAST_SHARE * workload.steps and not found.problems:
                if cluster.exit_code() is not None:
                    break
                time.sleep(choice.uniform(*(LONG_PAUSE_SECONDS if is_long else PAUSE_SECONDS)))
                held = look(cluster)
                found.held += held
                found.written.append((time.time(), written(cluster.directory)))
                if is_long:
                    keep(held)
                _disturb(cluster, seen, found, choice, place)
            _end(cluster, seen, found)
            if found.problems:
                keep_logs(f"soak {place} {workload.mode}", seen)
        text = table(found, seen, cluster)
        print(f"\n{text}")
    if is_long and not found.problems and workload.seconds > SETTLING_SECONDS:
        soak_page.publish(found.held, text)
    return found


def keep(held: Sequence[Held]) -> None:
    """Add what tasks hold to a file beside the results: a soak that somebody ends is not lost."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "soak.jsonl").open("a") as file:
        file.writelines(json.dumps(asdict(each)) + "\n" for each in held)


def _disturb(cluster: Cluster, seen: Observation, found: Soak, choice: random.Random, place: Place) -> None:
    """Inject a random fault into one or two tasks, and wait until every replica steps again."""
    workload = cluster.workload
    fault = choice.choice([each for each in FAULTS[place] if not (each.damages and found.spared)])
    hit = [task for task in workload.tasks if task not in found.spared]
    targets = sorted(choice.sample(hit, choice.choice((1, 1, 2))))
    if fault.damages:
        targets = [*workload.servers, workload.leader]
    try:
        measured = disturb(cluster, seen, fault, targets)
    except FaultError as error:
        print(f"not injected: {error}", flush=True)
        return
    found.costs.append((fault, targets, measured))
    found.problems += [f"{fault.name} of {', '.join(targets)}: {problem}" for problem in measured.problems]
    seconds = "never" if measured.back is None else f"{measured.back:.1f} s"
    print(
        f"step {seen.step:6}  {fault.name}: {', '.join(targets)}: pause {measured.pause:.1f} s, back after {seconds}, "
        f"{measured.lost} steps taken again",
        flush=True,
    )


def _end(cluster: Cluster, seen: Observation, found: Soak) -> None:
    """Wait for the end of the run, and judge it."""
    workload = cluster.workload
    if not found.costs:
        found.problems.append("no fault was injected")
    if not found.problems:
        print(f"step {seen.step:6}  no more faults; waiting for step {workload.steps}", flush=True)
        if not wait_for_end(cluster, seen):
            found.problems.append(f"no step within {HUNG_SECONDS:g} s after step {seen.step}")
    result, code = cluster.result(), cluster.exit_code()
    if code:
        found.problems.append(f"the run ended with code {code}: {last_lines(seen)}")
    if code == 0 and result.get("global_step", 0) < workload.steps:
        found.problems.append(f"the run ended at step {result.get('global_step')} of {workload.steps}")
    skipped, repeated = _ledger(result, workload)
    if code == 0 and (skipped or repeated > _may_repeat(found, seen, workload)):
        found.problems.append(f"the ledger: {skipped} skipped, {repeated} repeated")
    for role, (begin, end) in _begin_and_end(found).items():
        if end > GROWTH_FACTOR * begin + GROWTH_MIB:
            found.problems.append(f"the memory of {role} grew from {begin:.0f} to {end:.0f} MiB")
    all_growth = _growth(found)
    if found.spared and workload.seconds > SETTLING_SECONDS and not all_growth:
        found.problems.append("no task has lived since the first hour: whether tasks grow is not known")
    for task, name, grown in all_growth:
        if grown > MOST_AN_HOUR[name]:
            found.problems.append(f"the {name} of {task} grow by {grown:.1f} an hour")


def _growth(found: Soak) -> list[tuple[str, str, float]]:
    """Of each process that has lived since the first hour: its task, what it holds, and its growth in an hour."""
    if not found.spared or not found.held:
        return []
    alive = survivors(found.held, found.held[0].time + SETTLING_SECONDS)
    return [
        (task, name, growth((each.time, getattr(each, name)) for each in samples))
        for task, samples in alive.items()
        for name in MOST_AN_HOUR
    ]


def _ledger(result: Mapping[str, Any], workload: Workload) -> tuple[int, int]:
    """How many examples of all epochs were skipped, and how many were taken more than once."""
    skipped, repeated = (result.get(f"test_{name}", 1.0) for name in ("skipped", "repeated"))
    return round(skipped * workload.examples), round(repeated * workload.examples)


def _may_repeat(found: Soak, seen: Observation, workload: Workload) -> int:
    """The examples of a lease for each replica that was lost, and of all replicas for each restored checkpoint."""
    lost = sum(task in workload.replicas for _, targets, _ in found.costs for task in targets)
    return MOST_STEPS * BATCH * (lost + len(seen.restored) * len(workload.replicas))


def _begin_and_end(found: Soak) -> dict[str, tuple[float, float]]:
    """The median memory of each role in the first and the last third of its samples, in MiB."""
    by_role: dict[str, list[float]] = {}
    for each in found.held:
        by_role.setdefault(each.task.rpartition("-")[0] or each.task, []).append(each.memory)
    thirds = {role: max(1, len(values) // 3) for role, values in by_role.items()}
    return {
        role: (statistics.median(values[: thirds[role]]), statistics.median(values[-thirds[role] :]))
        for role, values in by_role.items()
    }


def table(found: Soak, seen: Observation, cluster: Cluster) -> str:
    """Render what a soak has seen, and the verdict."""
    lines = [row(["fault", "times", "recovered", "longest pause, s", "longest way back, s", "steps taken again"])]
    lines.append(row(["---"] * 6))
    for name in dict.fromkeys(fault.name for fault, _, _ in found.costs):
        mine = [each for fault, _, each in found.costs if fault.name == name]
        backs = [each.back for each in mine if each.back is not None]
        pause, back = max(each.pause for each in mine), max(backs, default=0)
        lines.append(row([name, len(mine), len(backs), f"{pause:.1f}", f"{back:.1f}", sum(each.lost for each in mine)]))
    lines += ["", row(["memory of", "begin, MiB", "end, MiB"]), row(["---"] * 3)]
    lines += [row([role, f"{begin:.0f}", f"{end:.0f}"]) for role, (begin, end) in _begin_and_end(found).items()]
    if grown := _growth(found):
        lines += ["", row(["task", "holds", "more in an hour"]), row(["---"] * 3)]
        lines += [row([task, name, f"{more:+.2f}{' MiB' if name == 'memory' else ''}"]) for task, name, more in grown]
    if found.spared and len(found.written) > 1:
        lines += ["", row(["written to", "MiB", "more in an hour"]), row(["---"] * 3)]
        for name, size in found.written[-1][1].items():
            more = growth((moment, sizes.get(name, 0.0)) for moment, sizes in found.written)
            lines.append(row([name, f"{size:.1f}", f"{more:+.1f}"]))
    result, workload = cluster.result(), cluster.workload
    skipped, repeated = _ledger(result, workload)
    lines += [
        "",
        f"{workload.examples:,} examples, {workload.epochs} epochs, {result.get('global_step')} global steps: ",
    ]
    lines[-1] += (
        f"skipped {skipped:,}, repeated {repeated:,} (at most {_may_repeat(found, seen, workload):,} by open leases)"
    )
    lines += [f"PROBLEM: {problem}" for problem in found.problems] or ["verdict: nothing lost, nothing hung, no growth"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
