"""What `helm test` runs in a pod: TensorBoard serves the run, and the tasks answer, or the run has succeeded.

Reads its three words from the environment, changes nothing, and ends with 1 and a sentence for what is wrong.
"""

import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

PATIENCE = 90
"""Seconds for things that come by themselves: the first curve, a task that is being started."""


def main() -> None:
    """Ask TensorBoard, then the tasks."""
    tensorboard = os.environ["TENSORBOARD_URL"]
    packaged = os.environ["PACKAGED"] == "true"
    if tensorboard:
        insist(lambda: tensorboard_complaint(tensorboard, packaged))
    insist(lambda: run_complaint(packaged))


def insist(complaint: Callable[[], str]) -> None:
    """Ask again until there is no complaint, or patience is at an end."""
    deadline = time.monotonic() + PATIENCE
    while problem := complaint():
        if time.monotonic() > deadline:
            sys.exit(problem)
        time.sleep(1)


def tensorboard_complaint(url: str, packaged: bool) -> str:
    """Empty where TensorBoard knows the run's curves (of a program of one's own: where it answers)."""
    try:
        with urllib.request.urlopen(url + "/data/runs", timeout=10) as answer:  # noqa: S310 - it is this release's
            runs = json.load(answer)
    except (OSError, ValueError) as error:
        return f"TensorBoard does not answer at {url}: {error}"
    if packaged and "train" not in runs:
        return f"TensorBoard answers at {url}, but it has no curve of this run yet; it knows {runs}"
    print(f"TensorBoard serves {', '.join(runs) or 'no run yet'}")
    return ""


def run_complaint(packaged: bool) -> str:
    """Empty where the run has succeeded, or every task answers.

    A program of one's own may have ended without our knowing: its tasks must have their names.
    """
    result = Path(os.environ["TRAINING_DIRECTORY"]) / "result.json"
    if packaged and result.exists():
        score = json.loads(result.read_text())
        if score["global_step"] >= int(os.environ["TRAIN_STEPS"]):
            print(f"the run succeeded: {score['global_step']} steps, test accuracy {score['test_accuracy']}")
            return ""
    cluster = json.loads(Path("/etc/distributed-tensorflow/cluster.json").read_text())
    expected = json.loads(os.environ["REPLICAS"])
    for role, hosts in cluster.items():
        for address in hosts[: expected[role]]:
            host, _, port = address.rpartition(":")
            try:
                if packaged:
                    socket.create_connection((host, int(port)), timeout=5).close()
                else:
                    socket.getaddrinfo(host, None)
            except OSError as error:
                return f"{address} does not answer ({error}), and the run has not ended: look at its pod"
    print("every task answers" if packaged else "every task has its name")
    return ""


main()
