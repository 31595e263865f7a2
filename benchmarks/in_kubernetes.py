"""The trainer's rate inside Kubernetes beside its rate on this machine, by turns; at least 0.9 of it is wanted.

    make cluster-up && export KUBECONFIG=…      a throw-away Kubernetes on this machine, with the trainer's image
    python -m benchmarks.in_kubernetes [--turns 20] [--steps 8000]

It compares what is comparable only where the cluster's node is this machine. The work is the same on both sides, 1 ps
and 2 workers, once asynchronous and once synchronous in each turn. One ratio scatters by a tenth and more, as the
machine's speed drifts within a minute: so there are many short turns, and the mean of their ratios (the geometric one,
which prefers neither side) with its standard error. Who comes first changes from turn to turn. Inside, the chart is
installed without TensorBoard, which would take CPU time from the run, and without requests for CPUs, which processes
outside do not have either: Linux then weighs each pod anew whenever one of its threads sleeps or wakes. The rate is
read from the chief's log; each run has a namespace of its own. helm and kubectl must be on PATH, and on the nodes the
image of the same code. A turn of which a run fails says so, and is left out.
"""

import argparse
import json
import math
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.plan import MODES
from benchmarks.report import mean_and_error
from tests.e2e.releases import Release

WANTED = 0.9
PATIENCE = 400.0
"""Seconds after which a run on this machine is taken for hanging; inside, `Release.finish` has a bound of its own."""


def main() -> int:
    """Run the turns and print the table; 0, 1 where a ratio is too small, 2 without a cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="runs on each side and in each mode (default: 20)")
    parser.add_argument("--steps", type=int, default=8000, help="global steps of each run (default: 8000)")
    arguments = parser.parse_args()
    if not os.environ.get("KUBECONFIG"):
        print("KUBECONFIG is not set: make cluster-up starts a Kubernetes here and says where it is", file=sys.stderr)
        return 2
    if min(arguments.turns, arguments.steps) < 1:
        parser.error("--turns and --steps: at least 1 is needed")
    ratios: dict[str, list[float]] = {mode: [] for mode in MODES}
    print(f"{'mode':13} {'turn':>4} {'outside':>9} {'inside':>9} {'ratio':>6}   (global steps/s)")
    for turn in range(1, arguments.turns + 1):
        for mode in MODES:
            sides = [run_here, run_inside]
            order = sides if turn % 2 else sides[::-1]
            try:
                rates = {run: run(arguments.steps, mode == "synchronous") for run in order}
            except (AssertionError, subprocess.SubprocessError) as error:
                print(f"{mode:13} {turn:4} failed: {error}", flush=True)
                continue
            outside, inside = rates[run_here], rates[run_inside]
            ratios[mode].append(inside / outside)
            print(f"{mode:13} {turn:4} {outside:9.1f} {inside:9.1f} {inside / outside:6.2f}", flush=True)
    reached = [_verdict(mode, ratios[mode]) for mode in MODES]
    return 0 if all(reached) else 1


def _verdict(mode: str, ratios: Sequence[float]) -> bool:
    """Print what the turns say together; whether that is enough."""
    if not ratios:
        print(f"{mode}: no turn succeeded")
        return False
    mean, error = mean_and_error([math.log(ratio) for ratio in ratios])
    ratio = math.exp(mean)
    print(
        f"{mode}: {ratio:.3f} ± {ratio * error:.3f} of the rate outside, in the mean of {len(ratios)} turns "
        f"({min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}); at least {WANTED} is "
        f"wanted: {'reached' if ratio >= WANTED else 'NOT reached'}"
    )
    return ratio >= WANTED


def run_here(steps: int, sync: bool) -> float:
    """Global steps per second of `trainer launch` on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainer", "launch", "--ps", "1", "--workers", "2", "--json"]
        command += [f"--train_steps={steps}", f"--sync_replicas={sync}", f"--train_dir={folder}"]
        return float(json.loads(subprocess.check_output(command, text=True, timeout=PATIENCE))["steps_per_second"])


def run_inside(steps: int, sync: bool) -> float:
    """Global steps per second of the same in the cluster, as the chief says at its end."""
    values = {
        "train": {"train_steps": steps, "sync_replicas": sync},
        "ps": {"replicas": 1},
        "worker": {"replicas": 2},
        "tensorboard": {"enabled": False},
        "run": {"cleanPodPolicy": "None"},  # so that the chief's log is still there
        "common": {"resources": {"requests": {"cpu": None}}},
    }
    with tempfile.TemporaryDirectory() as folder, _namespace() as namespace:
        release = Release("benchmark", namespace, Path(folder))
        release.install(values)
        release.finish()
        said = release.log("benchmark-worker-0")
    found = re.search(r" done: .*\(([\d.]+) steps/s\)", said)
    assert found, f"the chief did not say how fast it was: {said}"
    return float(found[1])


@contextmanager
def _namespace() -> Iterator[str]:
    """A new namespace, gone at the end, so that the next run has the machine for itself."""
    name = f"benchmark-{secrets.token_hex(3)}"
    subprocess.run(["kubectl", "create", "namespace", name], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["kubectl", "delete", "namespace", name, "--wait=true"], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
