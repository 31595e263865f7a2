"""What the supervisor says while it follows a run: each thing once, and what is awaited again now and then."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from lightkube.resources.core_v1 import Event

from trainer.supervisor.diagnosis import diagnose
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import Notes
from trainer.supervisor.pods import Pod
from trainer.supervisor.policy import Awaited
from trainer.supervisor.run import Run
from trainer.telemetry.progress import Progress, parse

PATIENCE = 10.0
"""Seconds that a task may take to start before we say what it waits for."""
BETWEEN_REMINDERS = 60.0
BETWEEN_PROGRESS = 10.0


class Reporter:
    """Tells the story of one run to `say`; follows the leader's log, by a thread, for its progress."""

    def __init__(self, run: Run, api: KubernetesApi, say: Callable[[str], None]) -> None:
        self._run, self._cluster, self._say = run, api, say
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

    def why(self, task: Awaited) -> str:
        """Why it does not run: by its pod, else by the last warning about that, or about its StatefulSet or Job."""
        maker = self._run.roles[task.role].job or self._run.stateful_set(task.role)
        warned = self._heard.get(task.name) or self._heard.get(maker, "")
        return diagnose(task.role, task.problem or warned)

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
        if after.running and not before.running:
            self._say(f"every task has started, {_duration(after.running - after.started)} after the run")
        leader = there.get(self._run.leader)
        if leader and leader.running and leader.name not in after.finished:
            self._follow(leader)
        else:
            self._following = ""

    def _follow(self, leader: Pod) -> None:
        life = f"{leader.uid}/{leader.starts_again}"
        if life != self._following:
            self._following = life
            threading.Thread(target=self._read, args=(leader, life), daemon=True).start()

    def _read(self, leader: Pod, life: str) -> None:
        while self._following == life:
            for line in self._cluster.follow_log(leader.own_name, leader.role):
                if self._following != life:
                    return
                self._progress = parse(line) or self._progress
            time.sleep(1)  # the API server went away, or the end of the container is not known yet

    def remind(self, awaited: Sequence[Awaited], now: float) -> None:
        """Say what is awaited and how far the run is, unless that was said just now; of many alike one is named."""
        alike: dict[str, list[str]] = {}
        for task in awaited:
            why = self.why(task)
            said, at = self._said.get(task.name, ("", 0.0))
            if now - task.since >= PATIENCE and (why != said or now - at > BETWEEN_REMINDERS):
                self._said[task.name] = (why, now)
                alike.setdefault(why, []).append(task.name)
        for why, (first, *others) in alike.items():
            self._say(f"waiting for {first}: {why}" + (f" (and {len(others)} more)" if others else ""))
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
