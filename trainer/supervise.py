"""The life of a run inside Kubernetes: start its tasks, watch them, and end with the run's own result.

`trainer supervise` is one small Job for each run. `supervise` is its life, from top to bottom. It remembers nothing:
what it must know when it is started again is in the cluster: the pods, and the notes in the ConfigMap STEM-run.
What Kubernetes' objects mean is `trainer.supervision`'s business.
"""

import dataclasses
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lightkube.resources.core_v1 import Event

from trainer.progress import Progress, parse
from trainer.supervision import judge, notes, pods
from trainer.supervision.cluster import Change, Changes, Cluster
from trainer.supervision.judge import Verdict
from trainer.supervision.notes import Notes
from trainer.supervision.pending import explain
from trainer.supervision.pods import Pod
from trainer.supervision.run import Run

PATIENCE = 10.0
"""Seconds that a task may take to start before we say what it waits for."""
BETWEEN_REMINDERS = 60.0
BETWEEN_PROGRESS = 10.0
LAST_LINES = 200
"""Of a failed task's log."""
TERMINATION_MESSAGE = Path("/dev/termination-log")
NOTHING: Change = ("", None)


class StoppedError(Exception):
    """We are told to end before the run does: it goes on, and another supervisor takes it up."""


def supervise(run: Run, cluster: Cluster, say: Callable[[str], None]) -> Verdict:
    """Bring the run to its end, clean up after it, and return its verdict.

    Raises:
        StoppedError: SIGTERM or SIGINT came.
        lightkube.ApiError: the API server refuses what a run needs.
    """
    changes: Changes = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: changes.put(("STOP", None)))
    known = notes.parse(cluster.read_notes())
    if known.hash == run.hash and known.over:
        verdict = Verdict(known.state == "Succeeded", known.reason)
        say("this run was over before")
    else:
        cluster.follow(changes)
        known = _begin(run, cluster, known, changes, say)
        known, verdict, there = _watch(run, cluster, known, changes, say)
        for pod in (there[name] for name in verdict.failed if name in there):
            for line in cluster.last_words(pod.own_name, pod.role, LAST_LINES):
                say(f"| {pod.name}: {line}")
        state = "Succeeded" if verdict.succeeded else "Failed"
        _write(cluster, dataclasses.replace(known, state=state, reason=verdict.reason))
    _clean_up(run, cluster, known, say)
    _tell(cluster, verdict, say)
    return verdict


def _write(cluster: Cluster, known: Notes) -> None:
    cluster.write_notes(notes.to_data(known, cluster.read_notes()))


def _begin(
    run: Run,
    cluster: Cluster,
    known: Notes,
    changes: Changes,
    say: Callable[[str], None],
) -> Notes:
    """Start the run, unless a supervisor before us has; its notes."""
    if known.hash == run.hash and known.job == run.job:
        say("going on with the run that is under way")
        return known
    if known.hash and known.hash != run.hash:
        # Revisions never mix: what the last run started is gone before this one begins.
        say("the run has changed: ending the tasks of the one before")
        _empty(run, cluster, changes, say)
        known = Notes()
    for role, values in run.roles.items():
        cluster.set_scale(role, values.replicas)
    attempt = f" (attempt {run.attempt})" if run.attempt > 1 else ""
    say("starting " + ", ".join(f"{values.replicas} {role}" for role, values in run.roles.items()) + attempt)
    known = dataclasses.replace(known, hash=run.hash, job=run.job, state="Running", started=time.time())
    _write(cluster, known)
    return known


def _empty(run: Run, cluster: Cluster, changes: Changes, say: Callable[[str], None]) -> None:
    """Scale every role to 0 and wait until no task's pod is left."""
    for role in run.roles:
        cluster.set_scale(role, 0)
    there: dict[str, Pod] = {}
    began = said = time.monotonic()
    while True:
        change = _next(changes, 5)
        if change and change[0] != "EVENT":
            there = pods.apply(there, *change)
            if not there:
                return
        if time.monotonic() - said > BETWEEN_REMINDERS:
            said = time.monotonic()
            say(f"waiting for {', '.join(sorted(there))} to end, for {said - began:.0f} s")


def _next(changes: Changes, seconds: float) -> Change | None:
    try:
        change = changes.get(timeout=seconds)
    except queue.Empty:
        return None
    if change[0] == "STOP":
        raise StoppedError
    return change


def _watch(
    run: Run,
    cluster: Cluster,
    known: Notes,
    changes: Changes,
    say: Callable[[str], None],
) -> tuple[Notes, Verdict, Mapping[str, Pod]]:
    """Follow the run until it has a verdict; its notes, that, and the pods then."""
    there: dict[str, Pod] = {}
    absent: dict[str, float] = {}
    scale = {role: cluster.scale(role) for role in run.roles}
    reporter = _Reporter(run, cluster, say)
    try:
        while True:
            change = _next(changes, 2)
            kind, found = change or NOTHING
            if kind == "EVENT":
                reporter.hear(found)
            elif kind:
                there = pods.apply(there, kind, found)
                if kind in ("ADDED", "DELETED", "LIST"):  # as after `kubectl scale`
                    scale = {role: cluster.scale(role) for role in run.roles}
                noted = judge.take_note(run, known, there.values(), time.time())
                if noted != known:
                    _write(cluster, noted)
                reporter.compare(known, noted, there)
                known = noted
            now = time.time()
            absent = {name: absent.get(name, now) for name, _ in judge.expected(run, scale) if name not in there}
            reporter.remind(known, there, absent, scale, now)
            verdict = judge.judge(run, known, there, scale, now) or judge.judge_start(
                run, known, there, absent, scale, now, reporter.heard
            )
            if verdict:
                return known, verdict, there
    finally:
        reporter.close()


class _Reporter:
    """Says what happens, each thing once, and what is awaited again now and then."""

    def __init__(self, run: Run, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._run, self._cluster, self._say = run, cluster, say
        self._heard: dict[str, str] = {}
        self._uids: dict[str, str] = {}
        self._said: dict[str, tuple[str, float]] = {}
        self._progress: Progress | None = None
        self._progress_said = 0.0
        self._following = ""

    def hear(self, event: Event) -> None:
        """Remember the last warning about each pod or its maker: it says what no status does, as of a volume."""
        if event.reason in ("FailedMount", "FailedAttachVolume", "FailedCreate", "FailedCreatePodSandBox"):
            about = event.involvedObject.name or ""
            jobs = (role.job for role in self._run.roles.values() if role.job and about.startswith(role.job))
            self._heard[next(jobs, about)] = f"{event.reason}: {event.message}"

    def heard(self, name: str, role: str) -> str:
        """The last warning about a pod, or about the StatefulSet or Job that should make it."""
        maker = self._run.roles[role].job or self._run.stateful_set(role)
        return self._heard.get(name) or self._heard.get(maker, "")

    def compare(self, before: Notes, after: Notes, there: Mapping[str, Pod]) -> None:
        """Say what has changed."""
        for name, code in after.finished.items():
            if name not in before.finished:
                self._say(f"{name} is done" if code == 0 else f"{name} failed with code {code}")
        if after.restarts != before.restarts and after.restarts > 0:
            limit = "" if self._run.backoff_limit is None else f" of {self._run.backoff_limit}"
            for pod in there.values():
                if pod.ended and after.seen.get(pod.uid, 0) > before.seen.get(pod.uid, 0):
                    self._say(f"{pod.name} ended with {pod.ended} and starts again (restart {after.restarts}{limit})")
        for name, pod in there.items():
            if self._uids.setdefault(name, pod.uid) != pod.uid:
                self._uids[name] = pod.uid
                if name not in after.finished:
                    self._say(
                        f"{name} was replaced: its node was drained or lost, or it was deleted; this is not counted"
                    )
        leader = there.get(self._run.leader)
        if leader and leader.running and leader.name not in after.finished:
            self._follow(leader)

    def _follow(self, leader: Pod) -> None:
        life = f"{leader.uid}/{leader.starts_again}"
        if life != self._following:
            self._following = life
            threading.Thread(target=self._read, args=(leader, life), daemon=True).start()

    def _read(self, leader: Pod, life: str) -> None:
        for line in self._cluster.follow_log(leader.own_name, leader.role):
            if self._following != life:
                return
            self._progress = parse(line) or self._progress

    def remind(
        self,
        known: Notes,
        there: Mapping[str, Pod],
        absent: Mapping[str, float],
        scale: Mapping[str, int],
        now: float,
    ) -> None:
        """Say what is awaited and how far the run is, unless that was said just now."""
        for name, role in judge.expected(self._run, scale):
            pod = there.get(name)
            if name in known.finished or (pod and judge.has_started(pod) and not pod.complaint):
                continue
            if now - (pod.created if pod else absent[name]) < PATIENCE:
                continue
            why = explain(role, (pod.complaint if pod else "") or self.heard(name, role))
            said, at = self._said.get(name, ("", 0.0))
            if why != said or now - at > BETWEEN_REMINDERS:
                self._said[name] = (why, now)
                self._say(f"{name} does not run: {why}")
        if self._progress and now - self._progress_said >= BETWEEN_PROGRESS:
            self._tell_progress(now)

    def _tell_progress(self, now: float) -> None:
        progress, self._progress, self._progress_said = self._progress, None, now
        if progress:
            left = progress.seconds_left
            self._say(f"{progress}" + (f", {_duration(left)} left" if left else ""))

    def close(self) -> None:
        """Say the last progress, and follow nothing any more."""
        self._following = ""
        self._tell_progress(time.time())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _clean_up(run: Run, cluster: Cluster, known: Notes, say: Callable[[str], None]) -> None:
    """Free what the tasks hold, as run.cleanPodPolicy says."""
    freed = []
    for role, values in run.roles.items():
        tasks = {f"{run.stem}-{role}-{index}" for index in range(cluster.scale(role))}
        if values.job and all(known.finished.get(task) == 0 for task in tasks):
            continue  # its Job ends by itself, holds nothing, and shows its log
        if tasks and (
            run.clean_pod_policy == "All" or (run.clean_pod_policy == "Running" and not tasks <= set(known.finished))
        ):
            cluster.set_scale(role, 0)
            freed.append(role)
    if freed:
        say(f"freed {', '.join(freed)} (run.cleanPodPolicy is {run.clean_pod_policy})")


def _tell(cluster: Cluster, verdict: Verdict, say: Callable[[str], None]) -> None:
    """Leave the verdict where people look: the termination message, an event, the last line."""
    word = "succeeded" if verdict.succeeded else "failed"
    sentence = f"the run {word}: {verdict.reason}"
    if TERMINATION_MESSAGE.exists():
        TERMINATION_MESSAGE.write_text(sentence)
    cluster.say_event(*("Normal", "RunSucceeded") if verdict.succeeded else ("Warning", "RunFailed"), sentence)
    say(sentence)
