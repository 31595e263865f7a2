"""How a run has ended, as the logs of its tasks say; the last lines of these logs in the supervisor's own."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence

from trainer.supervisor import pods, stages
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import Notes
from trainer.supervisor.pods import Pod
from trainer.supervisor.policy import Outcome
from trainer.supervisor.run import Run, Stage
from trainer.supervisor.task_logs import TaskLogs, cause_in
from trainer.telemetry import goodput, report, result

logger = logging.getLogger(__name__)

LOG_LINES = 200
"""The lines of a failed task's log that the supervisor copies into its own."""


def of_training(run: Run, logs: TaskLogs, outcome: Outcome, tasks: Mapping[str, Pod], notes: Notes) -> Outcome:
    """The outcome with the result or the cause that the logs have; the last lines of the logs are copied.

    Args:
        run: The run.
        logs: The logs of tasks.
        outcome: The outcome, as the pods show it.
        tasks: The pods of the run, by task.
        notes: When the run began.
    """
    outcome = with_result(run, logs, outcome, tasks.get(run.leader), notes)
    cause = ""
    for name, pod in sorted(tasks.items()):
        count = LOG_LINES if name in outcome.failed else run.last_lines
        lines = logs.tail(pod.pod_name, pod.role, count) if count else []
        print_log(name, lines)
        if name in outcome.failed:
            cause = cause or cause_in(lines)
    return with_remedy(outcome, cause)


def with_remedy(outcome: Outcome, cause: str = "") -> Outcome:
    """The outcome; if the run has failed, with what a task's own log says, and how to try it again."""
    if outcome.succeeded:
        return outcome
    reason = f"{outcome.reason}{cause and f': {cause}'}; upgrade with a remedy, or raise run.attempt to try again"
    return dataclasses.replace(outcome, reason=reason)


def with_result(run: Run, logs: TaskLogs, outcome: Outcome, leader: Pod | None, notes: Notes) -> Outcome:
    """The outcome with the result at the end of the leader's log, if any, and the command that prints it.

    If the result was written before the tasks were started, nothing was trained.
    """
    if not outcome.succeeded or leader is None:
        return outcome
    # Not `tail`: if the leader restarted during the run, that may return the log before the last one.
    lines = logs.tail_both(leader.pod_name, leader.role, LOG_LINES)
    found = next(filter(None, map(result.parse, reversed(lines))), None)
    if found is None:
        return outcome
    command = f": {run.result_command}" if run.result_command else ""
    early_end = result.early_end(found)
    written = result.written(found) or notes.started
    seconds = goodput.read(found) if written >= notes.started else None
    if seconds is not None:  # not from the start of the leader's process on
        before = written - seconds.total - (notes.begun or notes.started)
        seconds = dataclasses.replace(seconds, scheduling=seconds.scheduling + max(0.0, before))
    sentences = (outcome.reason, early_end, result.describe(found), goodput.describe(seconds))
    reason = f"{'; '.join(filter(None, sentences))}{command}"
    if written < notes.started:
        why = "the run had ended" if early_end else "all steps were done"
        remedy = "raise train.train_steps, or use another trainingDirectory.subPath and raise run.attempt"
        reason = f"nothing was trained, because {why} before; {remedy}; {reason}"
    return dataclasses.replace(outcome, reason=reason)


def of_stage(api: KubernetesApi, logs: TaskLogs, outcome: Outcome, stage: Stage) -> Outcome:
    """The outcome with how a failed stage has ended; the last lines of its log are copied."""
    found = api.stage_pods(stage.job)
    if not found:
        return outcome
    pod = pods.observe(found[-1])
    lines = logs.tail(pod.pod_name, stages.CONTAINER, LOG_LINES)
    print_log(stage.name, lines)
    if not pod.terminated:
        return outcome
    cause = cause_in(lines)
    ended = f"stage {stage.name} failed with {pod.ending}{cause and f': {cause}'}"
    return dataclasses.replace(outcome, reason=ended)


def print_log(name: str, lines: Sequence[str]) -> None:
    """Copy lines of a task or a stage into the supervisor's log."""
    for line in lines:
        logger.info(f"| {name}: {report.split(line)[0]}")
