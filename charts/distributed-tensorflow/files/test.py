"""What `helm test` runs in a pod: every task answers, or the run has succeeded, and TensorBoard serves it.

Reads what it must know from the environment, changes nothing, and ends with 1 and a sentence for what is wrong.
The tasks are asked first, and each until it has answered once: when they have gone because the run has ended, it takes
the kubelet a minute to bring the supervisor's word of it into a pod that is there already.
"""

import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

PATIENCE = 150
"""Seconds for things that come by themselves: the first curve, a task that is being started, word of the run's end."""


def main() -> None:
    """Ask the tasks, then TensorBoard."""
    tensorboard = os.environ["TENSORBOARD_URL"]
    packaged = os.environ["PACKAGED"] == "true"
    unheard = addresses()
    insist(lambda: run_complaint(unheard, packaged))
    if tensorboard:
        insist(lambda: tensorboard_complaint(tensorboard, packaged))


def addresses() -> list[str]:
    """HOST:PORT of every task that there is now; of workers that may come later none."""
    cluster = json.loads(Path("/etc/distributed-tensorflow/cluster.json").read_text())
    expected = json.loads(os.environ["REPLICAS"])
    return [address for role, hosts in cluster.items() for address in hosts[: expected[role]]]


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


def success(packaged: bool) -> str:
    """How the run succeeded; empty where it has not ended, or a program of one's own has left no word of it."""
    if "RUN_NOTES" in os.environ:
        noted = Path(os.environ["RUN_NOTES"])
        run = json.loads(noted.read_text()) if noted.exists() else {}
        if run.get("hash") != os.environ["RUN_HASH"]:
            return ""
        if run["state"] == "Failed":
            sys.exit(f"the run failed: {run['reason']}")
        return str(run["reason"]) if run["state"] == "Succeeded" else ""
    result = Path(os.environ["RESULT"])
    if not packaged or not result.exists():
        return ""
    score = json.loads(result.read_text())
    ended = score.get("state", "done") == "done" and score["global_step"] >= int(os.environ["TRAIN_STEPS"])
    return f"{score['global_step']} steps, test accuracy {score['test_accuracy']}" if ended else ""


def run_complaint(unheard: list[str], packaged: bool) -> str:
    """Empty where the run has succeeded, or every task has answered (of a program of one's own: has its name).

    Who answers is taken off `unheard`.
    """
    if how := success(packaged):
        print(f"the run succeeded: {how}")
        return ""
    while unheard:
        host, _, port = unheard[0].rpartition(":")
        try:
            if packaged:
                socket.create_connection((host, int(port)), timeout=5).close()
            else:
                socket.getaddrinfo(host, None)
        except OSError as error:
            return f"{unheard[0]} does not answer ({error}), and the run has not ended: look at its pod"
        del unheard[0]
    print("every task answers" if packaged else "every task has its name")
    return ""


main()
