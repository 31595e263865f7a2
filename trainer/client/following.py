"""Follows a run to its end: why its supervisor does not start yet, and then what the supervisor logs.

The supervisor itself says what tasks wait for, the progress, and how the run ends.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainer.client import runs
from trainer.client.cluster import Cluster, UnreachableError
from trainer.client.runs import COMPONENT, INSTANCE, OF_CHART, Run
from trainer.errors import ConfigurationError

POLL_SECONDS = 0.5
IMAGE_SECONDS = 60.0
"""How long the image of the supervisor may be refused. A registry may have a moment."""
OUTAGE_SECONDS = 300.0
"""How long the cluster may be out of reach."""
HOPELESS = ("ErrImageNeverPull", "InvalidImageName")
BACK_OFF = "ImagePullBackOff"
REFUSED = (*HOPELESS, BACK_OFF, "ErrImagePull", "RegistryUnavailable")
"""Reasons for which the container of a pod waits, about its image."""

Say = Callable[[str], None]


def follow(cluster: Cluster, name: str, say: Say) -> Run:
    """Follow a run until it has ended, or is suspended, and return it. `say` gets each line.

    Raises:
        ConfigurationError: there is no such run, its image cannot be pulled, or what `Cluster.kubectl` raises.
    """
    shown = _Shown(say)
    seen = time.monotonic()
    while True:
        try:
            run = runs.find(cluster, name)
            seen = time.monotonic()
            pod = _pod(cluster, run)
            if pod and _has_begun(pod):
                since = [f"--since-time={shown.last}"] if shown.last else []
                with cluster.logs(pod["metadata"]["name"], "--follow", "--timestamps", *since, quiet=True) as lines:
                    for line in lines:
                        shown.log(line)
                run = runs.find(cluster, name)
            elif not run.has_ended:
                shown.reason(_reason(cluster, run, pod))
                _check_image(pod, shown.since)
            if run.has_ended and not shown.last:  # the supervisor's pod is gone
                say(run.outcome)
            if run.has_ended or run.state == "Suspended":
                return run
        except UnreachableError as error:
            if time.monotonic() - seen > OUTAGE_SECONDS:
                raise
            shown.reason(f"{error} Trying again.")
        time.sleep(POLL_SECONDS)


class _Shown:
    """What was shown so far, so that nothing is shown twice."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._reason = ""
        self.since = time.monotonic()
        """When the present reason came up."""
        self.last = ""
        """The time of the last line of the log, as Kubernetes writes it."""

    def reason(self, text: str) -> None:
        if text and text != self._reason:
            self._reason, self.since = text, time.monotonic()
            self._say(text)

    def log(self, line: str) -> None:
        stamp, _, text = line.partition(" ")
        if stamp > self.last:
            self.last = stamp
            self._say(text)


def _pod(cluster: Cluster, run: Run) -> dict[str, Any] | None:
    """The newest pod of the supervisor."""
    pods = cluster.items("pods", {"batch.kubernetes.io/job-name": run.job})
    return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)


def _container(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the container of a pod."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0].get("state") or {})


def _has_begun(pod: Mapping[str, Any]) -> bool:
    return bool(_container(pod).keys() & {"running", "terminated"})


def _reason(cluster: Cluster, run: Run, pod: Mapping[str, Any] | None) -> str:
    """Why the supervisor does not run; empty if nothing is wrong."""
    if pod is None:
        return _last_warning(cluster, run.job)
    conditions = {each["type"]: each for each in pod["status"].get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"the supervisor waits for a node: {scheduled.get('message', scheduled.get('reason', ''))}"
    waiting = _container(pod).get("waiting", {})
    if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing", BACK_OFF):  # it repeats the error before
        return ""
    return f"the supervisor waits: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")


def _last_warning(cluster: Cluster, job: str) -> str:
    """The last warning about a Job without a pod, such as that of an exceeded quota."""
    selector = f"--field-selector=involvedObject.name={job},type=Warning"
    found = ""
    with contextlib.suppress(UnreachableError):
        found = cluster.kubectl("get", "events", selector, "--output=jsonpath={range .items[*]}{.message}{'\\n'}{end}")
    lines = found.splitlines()
    return f"the supervisor has no pod: {lines[-1]}" if lines else ""


def _check_image(pod: Mapping[str, Any] | None, since: float) -> None:
    """Raise an error if the supervisor's image will not come."""
    waiting = _container(pod).get("waiting", {}) if pod else {}
    reason = waiting.get("reason")
    if pod and (reason in HOPELESS or (reason in REFUSED and time.monotonic() - since > IMAGE_SECONDS)):
        image = pod["spec"]["containers"][0]["image"]
        raise ConfigurationError(
            f"the nodes cannot pull the image {image} ({reason}): push it to a registry and name that with --registry, "
            "or load it onto the nodes; the run stays installed, and starts as soon as the image is there."
        )


def wait_for_stage(cluster: Cluster, name: str, stage: str, seconds: float, say: Say) -> str:
    """Wait for the pod of a stage; return its name, or nothing if the stage is done.

    Raises:
        ConfigurationError: the run has ended, or the pod does not run after so many seconds.
    """
    shown = _Shown(say)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run = runs.find(cluster, name)
        if run.has_ended:
            raise ConfigurationError(f"the run {name} has ended before its files were copied: {run.outcome}.")
        for pod in cluster.items("pods", OF_CHART | {INSTANCE: name, COMPONENT: "stage"}):
            if f"-stage-{stage}-" in pod["metadata"]["name"]:
                if "running" in _container(pod):
                    return str(pod["metadata"]["name"])
                if pod["status"].get("phase") == "Succeeded":
                    return ""
                shown.reason(_reason(cluster, run, pod).replace("the supervisor", f"stage {stage}", 1))
        supervisor = _pod(cluster, run)
        if supervisor is None or not _has_begun(supervisor):
            shown.reason(_reason(cluster, run, supervisor))
            _check_image(supervisor, shown.since)
        time.sleep(POLL_SECONDS)
    raise ConfigurationError(
        f"the pod that takes the files of the run {name} does not run after {seconds:.0f} s; see why with trainer "
        f"follow {name}, and delete the run with trainer delete {name}."
    )
