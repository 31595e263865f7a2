"""The program of the `helm test` pod: every task answers, or the run has succeeded or is suspended; TensorBoard works.

It reads its settings from the environment, changes nothing, and exits with code 1 and one sentence if a check fails. It
first connects to each task until that has answered once. If the tasks are gone because the run has ended, the kubelet
takes up to a minute to update the supervisor's notes in a running pod.
"""

import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT = 150
"""Seconds for what takes time: the first curve, the start of a task, the update of the supervisor's notes."""


def main() -> None:
    """Check the tasks, then TensorBoard."""
    tensorboard = os.environ["TENSORBOARD_URL"]
    packaged = os.environ["PACKAGED"] == "true"
    if notes().get("state") == "Suspended":
        print("the run is suspended")
        return
    unanswered = addresses()
    retry(lambda: run_error(unanswered, packaged))
    if tensorboard:
        retry(lambda: tensorboard_error(tensorboard, packaged))


def addresses() -> list[str]:
    """HOST:PORT of every task that exists now, without workers that may be added later."""
    cluster = json.loads(Path("/etc/distributed-tensorflow/cluster.json").read_text())
    expected = json.loads(os.environ["REPLICAS"])
    return [address for role, hosts in cluster.items() for address in hosts[: expected[role]]]


def retry(check: Callable[[], str]) -> None:
    """Repeat a check until it returns no error, or exit with the error after the timeout."""
    deadline = time.monotonic() + TIMEOUT
    while error := check():
        if time.monotonic() > deadline:
            sys.exit(error)
        time.sleep(1)


def tensorboard_error(url: str, packaged: bool) -> str:
    """Empty if TensorBoard shows the run's curves, or, for a program of the user's own, if it answers."""
    try:
        with urllib.request.urlopen(url + "/data/runs", timeout=10) as answer:  # noqa: S310 - it is this release's
            runs = json.load(answer)
    except (OSError, ValueError) as error:
        return f"TensorBoard does not answer at {url}: {error}"
    if packaged and "train" not in runs:
        return f"TensorBoard answers at {url}, but it has no curve of this run yet, only {runs}"
    print(f"TensorBoard serves {', '.join(runs) or 'no run yet'}")
    return ""


def notes() -> dict[str, Any]:
    """The supervisor's notes; empty before the first, or without a supervisor."""
    file = Path(os.environ.get("RUN_NOTES", ""))
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def success(packaged: bool) -> str:
    """How the run succeeded; empty if it has not ended, or if a program of the user's own wrote no result."""
    if "RUN_NOTES" in os.environ:
        run = notes()
        if run.get("hash") != os.environ["RUN_HASH"]:
            return ""
        if run["state"] == "Failed":
            sys.exit(f"the run failed: {run['reason']}")
        return str(run["reason"]) if run["state"] == "Succeeded" else ""
    result = Path(os.environ["RESULT"])
    if not packaged or not result.exists():
        return ""
    score = json.loads(result.read_text())
    measure = "accuracy" if "test_accuracy" in score else "loss"
    is_done = score.get("state", "done") == "done"
    return f"{score['global_step']} steps, test {measure} {score['test_' + measure]}" if is_done else ""


def run_error(unanswered: list[str], packaged: bool) -> str:
    """Empty if the run has succeeded or every task has answered; of the user's own program, if every name resolves.

    Removes from `unanswered` each task that answers.
    """
    if how := success(packaged):
        print(f"the run succeeded: {how}")
        return ""
    while unanswered:
        host, _, port = unanswered[0].rpartition(":")
        try:
            if packaged:
                socket.create_connection((host, int(port)), timeout=5).close()
            else:
                socket.getaddrinfo(host, None)
        except OSError as error:
            pod = host.partition(".")[0]
            return f"{unanswered[0]} does not answer ({error}), and the run has not ended: `kubectl describe pod {pod}`"
        del unanswered[0]
    print("every task answers" if packaged else "every task's name resolves")
    return ""


main()
