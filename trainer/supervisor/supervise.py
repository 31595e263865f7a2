"""The life of a run inside Kubernetes: start its tasks, watch them, and end with the run's own result.

`trainer supervise` is one small Job for each run. `supervise` is its life, from top to bottom. It remembers nothing:
what it must know when it is started again is in the cluster: the pods, and the notes in the ConfigMap STEM-run.
What Kubernetes' objects mean is the business of this package's other files.
"""

import dataclasses
import queue
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trainer.supervisor import notes, pods, policy, tensorboard
from trainer.supervisor.kubernetes_api import Change, Changes, KubernetesApi
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.names import Names
from trainer.supervisor.notes import Notes
from trainer.supervisor.pods import Pod
from trainer.supervisor.policy import Outcome
from trainer.supervisor.reporter import Reporter
from trainer.supervisor.run import Run
from trainer.telemetry import result
from trainer.telemetry.metrics import serve

BETWEEN_REMINDERS = 60.0
LAST_LINES = 200
"""Of a failed task's log."""
TERMINATION_MESSAGE = Path("/dev/termination-log")
NOTHING: Change = ("", None)


class StoppedError(Exception):
    """We end before the run does, in this sentence's words: it goes on, and another supervisor looks after it."""


def supervise(run: Run, api: KubernetesApi, say: Callable[[str], None]) -> Outcome:
    """Bring the run to its end, clean up after it, and return its verdict.

    Raises:
        StoppedError: SIGTERM or SIGINT came, or a later supervisor has taken the run over.
        ConfigurationError: the port of the metrics cannot be listened on.
        lightkube.ApiError: the API server refuses what a run needs.
    """
    changes: Changes = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: changes.put(("STOP", None)))
    known = notes.parse(api.read_notes())
    metrics = RunMetrics(run, known if known.hash == run.hash else Notes())
    if run.metrics_port is not None:
        serve(metrics, run.metrics_port)
    if known.hash == run.hash and known.over:
        outcome = Outcome(known.state == "Succeeded", known.reason)
        say("this run was over before")
    else:
        api.follow(changes)
        known = _begin(run, api, known, changes, say)
        known, outcome, there = _watch(run, api, known, changes, say, metrics)
        if outcome.succeeded and (leader := there.get(run.leader)):
            outcome = _with_result(run, api, outcome, leader)
        for pod in (there[name] for name in outcome.failed if name in there):
            for line in api.last_words(pod.own_name, pod.role, LAST_LINES):
                say(f"| {pod.name}: {line}")
        state = "Succeeded" if outcome.succeeded else "Failed"
        known = metrics.notes = dataclasses.replace(known, state=state, reason=outcome.reason)
        _write(run, api, known)
    _clean_up(run, api, known, say)
    _tell(api, outcome, say)
    return outcome


def _write(run: Run, api: KubernetesApi, known: Notes, takes_over: bool = False) -> None:
    def change(data: Mapping[str, str]) -> dict[str, str | None]:
        # At an upgrade two supervisors overlap for a moment; the later one alone has a say.
        if not takes_over and notes.parse(data).job != run.job_uid:
            raise StoppedError("another supervisor has taken the run over")
        return notes.to_data(known, data)

    api.change_notes(change)


def _begin(
    run: Run,
    api: KubernetesApi,
    known: Notes,
    changes: Changes,
    say: Callable[[str], None],
) -> Notes:
    """Start the run, unless a supervisor before us has; its notes."""
    if known.hash == run.hash and known.job == run.job_uid and known.state == "Running":
        say("going on with the run that is under way")
        return known
    interrupted = known.state == "Starting"
    known = dataclasses.replace(known, job=run.job_uid, state="Starting")
    _write(run, api, known, takes_over=True)
    there = [pods.observe(pod) for pod in api.pods()]
    if any(pod.run != run.hash for pod in there):
        # Revisions never mix: what was there before is gone when this run begins.
        say("the run has changed: ending the tasks of the one before")
        _empty(run, api, changes, say)
    if known.hash != run.hash:
        known = Notes(hash=run.hash, job=run.job_uid, leader=known.leader)
    scales = {role: api.scale(role) for role in run.roles}
    # Kubernetes gives 1 where the chart leaves the scale to us: at an installation, and when a run is resumed. That may
    # be all that a run under way has as well, but then its leader's pod is the one we know.
    anew = all(scale <= 1 for scale in scales.values()) and all(pod.uid != known.leader or pod.leaving for pod in there)
    begins = interrupted or not known.started or anew
    if begins:
        known = dataclasses.replace(known, started=time.time(), running=0.0)
        attempt = f" (attempt {run.attempt})" if run.attempt > 1 else ""
        say("starting " + ", ".join(f"{values.replicas} {role}" for role, values in run.roles.items()) + attempt)
    else:
        say("going on with the run that is under way")
    for role, values in run.roles.items():
        # Under way, a scale that somebody else has set, as by `kubectl scale`, is left alone. A changed client is
        # another Job, which is made suspended.
        if begins or values.job or known.replicas.get(role) != values.replicas:
            api.set_scale(role, values.replicas)
    replicas = {role: values.replicas for role, values in run.roles.items()}
    known = dataclasses.replace(known, state="Running", replicas=replicas)
    _write(run, api, known)
    return known


def _empty(run: Run, api: KubernetesApi, changes: Changes, say: Callable[[str], None]) -> None:
    """Scale every role to 0 and wait until no task's pod is left."""
    for role in run.roles:
        api.set_scale(role, 0)
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
        raise StoppedError("told to end")
    if change[0] == "BROKEN":
        raise RuntimeError("the cluster can no longer be followed") from change[1]
    return change


def _watch(
    run: Run,
    api: KubernetesApi,
    known: Notes,
    changes: Changes,
    say: Callable[[str], None],
    metrics: RunMetrics,
) -> tuple[Notes, Outcome, Mapping[str, Pod]]:
    """Follow the run until it has a verdict; its notes, that, and the pods then."""
    there: dict[str, Pod] = {}
    absent: dict[str, float] = {}
    scale = {role: api.scale(role) for role in run.roles}
    boards: int | None = None
    names = Names(run)
    reporter = Reporter(run, api, say)
    try:
        while True:
            change = _next(changes, 2)
            kind, found = change or NOTHING
            if kind == "EVENT":
                reporter.hear(found)
            elif kind:
                there = _recall(api, known, pods.apply(there, kind, found))
                if kind in ("ADDED", "DELETED", "LIST"):  # as after `kubectl scale`
                    scale = {role: api.scale(role) for role in run.roles}
            now = time.time()
            expected = policy.expected(run, scale)
            absent = {name: absent.get(name, now) for name, _ in expected if name not in there}
            names.ask(there.values())

            noted = policy.observe_pods(run, known, there.values(), now)
            awaited = policy.awaited(run, noted, there, absent, expected, names.unknown())
            if expected and not noted.running and all(task.started for task in awaited):
                noted = dataclasses.replace(noted, running=now)
            if noted != known:
                _write(run, api, noted)
            reporter.compare(known, noted, there)
            known = metrics.notes = noted

            wanted = tensorboard.scale(run, there.get(run.leader))
            if wanted is not None and wanted != boards:
                boards = wanted
                api.set_tensorboard(wanted)

            reporter.remind(awaited, now)
            outcome = policy.outcome(run, known, there, scale, now) or policy.start_outcome(
                run, awaited, now, reporter.why
            )
            if outcome:
                return known, outcome, there
    finally:
        reporter.close()


def _with_result(run: Run, api: KubernetesApi, outcome: Outcome, leader: Pod) -> Outcome:
    """The verdict with the result that the leader's log ends with, and the command that shows it, if there is one."""
    # Not `last_words`: of a leader that was restarted in the run it may give the container that ended before the last.
    lines = api.last_lines(leader.own_name, leader.role, LAST_LINES)
    found = next(filter(None, map(result.parse, reversed(lines))), None)
    if found is None:
        return outcome
    command = f": {run.result_command}" if run.result_command else ""
    return dataclasses.replace(outcome, reason=f"{outcome.reason}; {result.describe(found)}{command}")


def _recall(api: KubernetesApi, known: Notes, there: Mapping[str, Pod]) -> dict[str, Pod]:
    """The pods, with the ends of tasks that Kubernetes has forgotten and that those tasks still say."""
    return {
        name: pods.recall(pod, api.last_line(pod.own_name, pod.role), time.time())
        if pods.is_forgotten(pod) and name not in known.finished
        else pod
        for name, pod in there.items()
    }


def _clean_up(run: Run, api: KubernetesApi, known: Notes, say: Callable[[str], None]) -> None:
    """Free what the tasks hold, as run.cleanPodPolicy says."""
    freed = []
    for role, values in run.roles.items():
        tasks = {f"{run.stem}-{role}-{index}" for index in range(api.scale(role))}
        if values.job and all(known.finished.get(task) == 0 for task in tasks):
            continue  # its Job ends by itself, holds nothing, and shows its log
        if tasks and (
            run.clean_pod_policy == "All" or (run.clean_pod_policy == "Running" and not tasks <= set(known.finished))
        ):
            api.set_scale(role, 0)
            freed.append(role)
    if run.holds_tensorboard and known.leader:
        api.set_tensorboard(1)
    if freed:
        say(f"freed {', '.join(freed)} (run.cleanPodPolicy is {run.clean_pod_policy})")


def _tell(api: KubernetesApi, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Leave the verdict where people look: the termination message, an event, the last line."""
    word = "succeeded" if outcome.succeeded else "failed"
    sentence = f"the run {word}: {outcome.reason}"
    if TERMINATION_MESSAGE.exists():
        TERMINATION_MESSAGE.write_text(sentence)
    api.say_event(*("Normal", "RunSucceeded") if outcome.succeeded else ("Warning", "RunFailed"), sentence)
    say(sentence)
