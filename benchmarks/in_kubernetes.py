"""Compare the trainer's rate in Kubernetes with its rate outside, on the same machine; the target is a ratio of 0.9.

    make cluster-up && export KUBECONFIG=…      a throw-away Kubernetes on this machine, with the trainer's image
    python -m benchmarks.in_kubernetes [--rounds 20] [--steps 8000]

The comparison is valid only if the node of the cluster is this machine. Both sides run the same workload, 1 ps and 2
workers, once asynchronous and once synchronous in each round. The order of the sides alternates between rounds. The
machine's speed drifts within a minute, so a single ratio varies by a tenth and more. Therefore the benchmark runs many
short rounds and reports the geometric mean of their ratios, which favours neither side, with its standard error.

In the cluster, the chart runs without TensorBoard, which would take CPU time from the run, and without CPU requests,
because processes outside have none: with CPU requests, Linux recomputes the weight of a pod whenever one of its threads
sleeps or wakes. The rate comes from the chief's log. Each run has its own namespace. helm and kubectl must be on PATH,
and the nodes must have the image of the same code. If a run fails, its round is reported and left out.
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
from benchmarks.processes import FailedError
from benchmarks.report import mean_and_error

CHART = Path(__file__).parents[1] / "charts" / "distributed-tensorflow"
TARGET = 0.9
TIMEOUT = 400
"""Seconds after which a run counts as hung."""


def main() -> int:
    """Run all rounds and print the table; returns 0, 1 if a ratio misses the target, or 2 without a cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="runs on each side and in each mode (default: 20)")
    parser.add_argument("--steps", type=int, default=8000, help="global steps of each run (default: 8000)")
    arguments = parser.parse_args()
    if not os.environ.get("KUBECONFIG"):
        print("KUBECONFIG is not set: `make cluster-up` starts a cluster and prints its KUBECONFIG", file=sys.stderr)
        return 2
    if min(arguments.rounds, arguments.steps) < 1:
        parser.error("--rounds and --steps must be at least 1")
    ratios: dict[str, list[float]] = {mode: [] for mode in MODES}
    print(f"{'mode':13} {'round':>5} {'outside':>9} {'inside':>9} {'ratio':>6}   (global steps/s)")
    for number in range(1, arguments.rounds + 1):
        for mode in MODES:
            sides = [run_outside, run_inside]
            order = sides if number % 2 else sides[::-1]
            try:
                rates = {run: run(arguments.steps, mode == "synchronous") for run in order}
            except (FailedError, subprocess.SubprocessError) as error:
                print(f"{mode:13} {number:5} failed: {error}", flush=True)
                continue
            outside, inside = rates[run_outside], rates[run_inside]
            ratios[mode].append(inside / outside)
            print(f"{mode:13} {number:5} {outside:9.1f} {inside:9.1f} {inside / outside:6.2f}", flush=True)
    reached = [_reaches_target(mode, ratios[mode]) for mode in MODES]
    return 0 if all(reached) else 1


def _reaches_target(mode: str, ratios: Sequence[float]) -> bool:
    """Print the summary of a mode's rounds; returns whether their mean reaches the target."""
    if not ratios:
        print(f"{mode}: no round succeeded")
        return False
    mean, error = mean_and_error([math.log(ratio) for ratio in ratios])
    ratio = math.exp(mean)
    print(
        f"{mode}: {ratio:.3f} ± {ratio * error:.3f} of the rate outside, mean of {len(ratios)} rounds "
        f"({min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}); at least {TARGET}: "
        f"{'reached' if ratio >= TARGET else 'missed'}"
    )
    return ratio >= TARGET


def run_outside(steps: int, sync: bool) -> float:
    """Run `trainer launch` on this machine; returns global steps per second."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainer", "launch", "--ps", "1", "--workers", "2", "--json"]
        command += [f"--train_steps={steps}", f"--sync_replicas={sync}", f"--train_dir={folder}"]
        return float(json.loads(subprocess.check_output(command, text=True, timeout=TIMEOUT))["steps_per_second"])


def run_inside(steps: int, sync: bool) -> float:
    """Run the same workload in the cluster; returns global steps per second, as the chief's last line reports them.

    Raises:
        FailedError: helm or kubectl fails, the run does not complete, or the chief reports no rate.
    """
    values = {
        "train": {"train_steps": steps, "sync_replicas": sync},
        "ps": {"replicas": 1},
        "worker": {"replicas": 2},
        "tensorboard": {"enabled": False},
        "run": {"cleanPodPolicy": "None"},  # keeps the chief's pod and its log
        "common": {"resources": {"requests": {"cpu": None}}},
    }
    with tempfile.TemporaryDirectory() as folder, _namespace() as namespace:
        file = Path(folder, "values.yaml")
        file.write_text(json.dumps(values))
        _run("helm", f"--namespace={namespace}", "install", "benchmark", str(CHART), f"--values={file}")
        kubectl = ["kubectl", f"--namespace={namespace}"]
        supervisor = "--selector=app.kubernetes.io/component=supervisor"
        _run(*kubectl, "wait", "--for=condition=complete", "job", supervisor, f"--timeout={TIMEOUT}s")
        # The StatefulSet may have restarted the chief's container after the run: then the log is the previous one's.
        logs = [*kubectl, "logs", "benchmark-worker-0"]
        log = subprocess.run([*logs, "--previous"], capture_output=True, text=True).stdout + _run(*logs)
    found = re.search(r" done: .*\(([\d.]+) steps/s\)", log)
    if not found:
        raise FailedError(f"the chief's log has no rate:\n{log[-2000:]}")
    return float(found[1])


def _run(*command: str) -> str:
    """Run a command and return its standard output."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def _namespace() -> Iterator[str]:
    """Create a namespace, and delete it at the end so that the next run has the machine for itself."""
    name = f"benchmark-{secrets.token_hex(3)}"
    _run("kubectl", "create", "namespace", name)
    try:
        yield name
    finally:
        _run("kubectl", "delete", "namespace", name, "--wait=true")


if __name__ == "__main__":
    sys.exit(main())
