"""Follows a run to its end: why its supervisor does not start yet, and then what the supervisor logs.

The supervisor itself says what tasks wait for, the progress, and how the run ends.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainer.client import runs
from trainer.client.cluster import Cluster, UnreachableError
from trainer.client.runs import COMPONENT, INSTANCE, OF_CHART, Run
from trainer.errors import ConfigurationError

POLL_SECONDS = 1.0
IMAGE_SECONDS = 60.0
"""How long the image of the supervisor may be refused, or its Job be absent."""
OUTAGE_SECONDS = 300.0
"""How long the cluster may be out of reach."""
PERMANENT = ("ErrImageNeverPull", "InvalidImageName")
BACK_OFF = "ImagePullBackOff"
REFUSED = (*PERMANENT, BACK_OFF, "ErrImagePull", "RegistryUnavailable")
"""Reasons for which the container of a pod waits, about its image."""
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[-+]\d\d:\d\d)")
"""The time before a line of a log, as Kubernetes writes it."""

POD_NAME = re.compile(r'"[^"]*-[a-z0-9]{5}"')

Say = Callable[[str], None]


def follow(cluster: Cluster, name: str, say: Say = lambda line: None) -> Run:
    """Follow a run until it has ended, or is suspended, and return it. `say` gets each line.

    Raises:
        ConfigurationError: there is no such run, its image cannot be pulled, it has no supervisor, or what
            `Cluster.kubectl` raises.
    """
    shown = _Shown(say)
    seen = time.monotonic()
    while True:
        try:
            run = runs.find(cluster, name)
            seen = time.monotonic()
            pod = _pod(cluster, run.job)
            if pod and _has_begun(pod):
                _show_log(cluster, pod["metadata"]["name"], shown)
                run = runs.find(cluster, name)
            elif not run.has_ended:
                shown.reason(_reason(cluster, run, pod))
                _check(run, pod, shown.since)
            if run.has_ended or run.state == "Suspended":
                if not shown.has_lines:  # the supervisor's pod is gone
                    say(run.outcome)
                return run
        except UnreachableError as error:
            if time.monotonic() - seen > OUTAGE_SECONDS:
                raise
            shown.reason(f"{error} Trying again.")
        time.sleep(POLL_SECONDS)


class _Shown:
    """What was shown so far, so that nothing is shown twice when the log of a pod is read again."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._reason = ""
        self.since = time.monotonic()
        """When the present reason came up."""
        self.has_lines = False
        self._pod = ""
        self._last, self._count = "", 0
        """The time of the last line of the pod's log, and how many lines have it."""
        self._again = 0
        """How many lines with this time the present reading has given."""

    def reason(self, text: str) -> None:
        same = POD_NAME.sub("", text)  # each try to make a pod has another one
        if same and same != self._reason:
            self._reason, self.since = same, time.monotonic()
            self._say(text)

    def begin(self, pod: str) -> list[str]:
        """Begin to read the log of a pod; return the options for that."""
        if pod != self._pod:
            self._pod, self._last, self._count = pod, "", 0
        self._again = 0
        return [f"--since-time={self._last}"] if self._last else []

    def log(self, line: str) -> None:
        stamp, _, text = line.partition(" ")
        if not STAMP.fullmatch(stamp):  # such as an error of the kubelet
            self._say(line)
            return
        if stamp < self._last:
            return
        if stamp == self._last:
            self._again += 1
            if self._again <= self._count:
                return
            self._count += 1
        else:
            self._last, self._count, self._again = stamp, 1, 1
        self.has_lines = True
        self._say(text)


def _show_log(cluster: Cluster, pod: str, shown: _Shown) -> None:
    try:
        with cluster.logs(pod, "--follow", "--timestamps", *shown.begin(pod)) as lines:
            for line in lines:
                shown.log(line)
    except UnreachableError:
        raise
    except ConfigurationError as error:
        if "orbidden" in str(error):
            raise
        shown.reason(str(error))  # such as that of a pod which is just gone


def _pod(cluster: Cluster, job: str) -> dict[str, Any] | None:
    """The newest pod of a Job."""
    pods = cluster.items("pods", {"batch.kubernetes.io/job-name": job})
    return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)


def _container(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the container of a pod."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0].get("state") or {})


def _has_begun(pod: Mapping[str, Any]) -> bool:
    return bool(_container(pod).keys() & {"running", "terminated"})


def _reason(cluster: Cluster, run: Run, pod: Mapping[str, Any] | None) -> str:
    """Why the supervisor does not run; empty if nothing is wrong."""
    if not run.has_job:
        return f"the supervisor's Job {run.job} does not exist"
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
    found = cluster.kubectl("get", "events", selector, "--output=jsonpath={range .items[*]}{.message}{'\\n'}{end}")
    lines = found.splitlines()
    return f"the supervisor has no pod: {lines[-1]}" if lines else ""


def _check(run: Run, pod: Mapping[str, Any] | None, since: float) -> None:
    """Raise an error if the supervisor will not come."""
    is_long = time.monotonic() - since > IMAGE_SECONDS
    if not run.has_job and is_long:
        raise ConfigurationError(
            f"the run {run.name} has no supervisor, because its Job {run.job} was deleted; delete the run, or let helm "
            "upgrade make the Job again."
        )
    reason = _container(pod).get("waiting", {}).get("reason") if pod else None
    if pod and (reason in PERMANENT or (reason in REFUSED and is_long)):
        image = pod["spec"]["containers"][0]["image"]
        raise ConfigurationError(
            f"the nodes cannot pull the image {image} ({reason}): push it to a registry and name that with --registry, "
            "or load it onto the nodes; the run stays installed, and starts as soon as the image is there."
        )


def wait_for_stage(cluster: Cluster, name: str, prefix: str, seconds: float, say: Say) -> str:
    """Wait for the pod of a stage whose Job has this prefix; return its name, or nothing if the stage is done.

    Raises:
        ConfigurationError: the run has ended, or the pod does not run after so many seconds.
    """
    shown = _Shown(say)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            run = runs.find(cluster, name)
            if run.has_ended:
                raise ConfigurationError(f"the run {name} has ended before its files were copied: {run.outcome}.")
            for pod in cluster.items("pods", OF_CHART | {INSTANCE: name, COMPONENT: "stage"}):
                if pod["metadata"]["name"].startswith(prefix):
                    if "running" in _container(pod):
                        return str(pod["metadata"]["name"])
                    if pod["status"].get("phase") == "Succeeded":
                        return ""
                    shown.reason(_reason(cluster, run, pod).replace("the supervisor", "the pod for the files", 1))
            supervisor = _pod(cluster, run.job)
            if supervisor is None or not _has_begun(supervisor):
                shown.reason(_reason(cluster, run, supervisor))
                _check(run, supervisor, shown.since)
        except UnreachableError as error:
            shown.reason(f"{error} Trying again.")
        time.sleep(POLL_SECONDS)
    raise ConfigurationError(f"the pod for the files of the run {name} does not run after {seconds:.0f} s.")
