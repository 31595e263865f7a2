"""The trainer's rate inside Kubernetes beside its rate on this machine, by turns; at least 0.9 of it is wanted.

    make cluster-up && export KUBECONFIG=…      a throw-away Kubernetes on this machine, with the trainer's image
    python -m benchmarks.in_kubernetes [--pairs 3] [--steps 10000]

It compares what is comparable only where the cluster's node is this machine. The work is the same on both sides, 1 ps
and 2 workers, once asynchronous and once synchronous in each turn. Inside, the chart is installed without TensorBoard,
which would take CPU time from the run, and the rate is read from the chief's log; each run has a namespace of its own.
helm and kubectl must be on PATH, and the image on the nodes.
"""

import argparse
import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.releases import Release

WANTED = 0.9
PATIENCE = 400.0
"""Seconds after which a run on this machine is taken for hanging; inside, `Release.finish` has a bound of its own."""


def main() -> int:
    """Run the pairs and print the table; 0, 1 where a ratio is too small, 2 without a cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="runs on each side and in each mode (default: 3)")
    parser.add_argument("--steps", type=int, default=10000, help="global steps of each run (default: 10000)")
    arguments = parser.parse_args()
    if not os.environ.get("KUBECONFIG"):
        print("KUBECONFIG is not set: make cluster-up starts a Kubernetes here and says where it is", file=sys.stderr)
        return 2
    print(f"{'mode':13} {'pair':>4} {'outside':>9} {'inside':>9} {'ratio':>6}   (global steps/s)")
    reached = True
    for sync in (False, True):
        mode, pairs = "synchronous" if sync else "asynchronous", []
        for number in range(1, arguments.pairs + 1):
            outside, inside = run_here(arguments.steps, sync), run_inside(arguments.steps, sync)
            pairs.append((outside, inside))
            print(f"{mode:13} {number:4} {outside:9.1f} {inside:9.1f} {inside / outside:6.2f}", flush=True)
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        ratio = statistics.median(inside / outside for outside, inside in pairs)
        print(f"{mode:13} med. {medians[0]:9.1f} {medians[1]:9.1f} {ratio:6.2f}   (wanted: {WANTED})", flush=True)
        reached = reached and ratio >= WANTED
    return 0 if reached else 1


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
    }
    with tempfile.TemporaryDirectory() as folder, _namespace() as namespace:
        release = Release("benchmark", namespace, Path(folder))
        release.install(values)
        release.finish()
        said = release.log("benchmark-worker-0")
    found = re.search(r" done: .*\(([\d.]+) steps/s\)", said)
    if not found:
        sys.exit(f"{said}\nthe chief did not say how fast it was")
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
