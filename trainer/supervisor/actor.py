"""Makes the calls of actions, each once, and again if it is not observed in time; reports what it has done."""

import logging
from collections.abc import Iterable

from trainer.supervisor import ending
from trainer.supervisor.actions import (
    Action,
    ChangeStageJob,
    ChangeWorkload,
    OpenGate,
    ProvideAccount,
    PublishCheckpoint,
    RemovePod,
    Sent,
    SetConditions,
    SetScale,
)
from trainer.supervisor.connection import UNAVAILABLE
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.kueue_api import KueueApi, UnreadableError
from trainer.supervisor.notes import Notes
from trainer.supervisor.notes_writer import NotesWriter
from trainer.supervisor.observed import Observed
from trainer.supervisor.reporter import ANNOTATIONS, Reporter, checkpoint_annotation
from trainer.supervisor.run import Run
from trainer.supervisor.scales import ELASTIC, TENSORBOARD
from trainer.supervisor.task_logs import TaskLogs

logger = logging.getLogger(__name__)

REPLACED_LINES = 20
"""The lines of a task's log that the supervisor copies before it replaces the pod, which has the log."""


class Actor:
    """The calls of one supervisor for one run."""

    def __init__(
        self, run: Run, api: KubernetesApi, kueue: KueueApi, logs: TaskLogs, reporter: Reporter, writer: NotesWriter
    ) -> None:
        self._run, self._api, self._kueue, self._logs = run, api, kueue, logs
        self._reporter, self._writer = reporter, writer
        self._sent = Sent()

    def act(self, actions: Iterable[Action], notes: Notes, observed: Observed, now: float) -> None:
        """Make the calls of these actions that are due.

        Args:
            actions: What the notes need.
            notes: The notes, as they are written.
            observed: What the actions follow from; what is done is added to it.
            now: Seconds since 1970.
        """
        due = [action for action in actions if self._sent.is_due(action, now)]
        gates = [action for action in due if isinstance(action, OpenGate)]
        if gates:
            self._kueue.open_gates((gate.pod, gate.placement) for gate in gates)
        freed, outdated = [], []
        for action in due:
            match action:
                case SetScale():
                    if self._set_scale(action, notes, observed):
                        freed.append(action.what)
                case RemovePod(_, "outdated", pod):
                    if self._api.replace_pod(pod.pod_name, pod.uid):
                        outdated.append(pod.name)
                case RemovePod():
                    self._remove(action, notes, observed)
                case ProvideAccount():
                    self._provide_account(action, observed, now)
                case ChangeStageJob():
                    self._change_job(action)
                case ChangeWorkload():
                    self._change_workload(action, observed)
                case SetConditions(_, workload, conditions, frees_quota):
                    self._kueue.set_conditions(workload, conditions, frees_quota=frees_quota)
                case PublishCheckpoint():
                    self._publish(action, observed, now)
        if freed:
            logger.info(f"freed {', '.join(freed)} (run.cleanPodPolicy is {self._run.clean_pod_policy})")
        if outdated:
            self._reporter.report_outdated(outdated)

    def _set_scale(self, action: SetScale, notes: Notes, observed: Observed) -> bool:
        """Set a scale; return whether that frees the resources of a role after the training."""
        component, scale = action.what, action.scale
        if not self._api.try_scale(component, scale) or component == TENSORBOARD:
            return False
        if notes.state == "Running":
            was = f"had the scale {observed.scales.get(component)} instead of {scale}"
            logger.info(f"{component} {was}: set it again{self._hint(component, observed)}")
        return notes.state == "Finishing" or notes.has_ended

    def _hint(self, component: str, observed: Observed) -> str:
        """Why a number of workers is not kept."""
        addresses, limits = self._run.roles[component].addresses, self._run.elastic
        if component == ELASTIC and self._run.is_queued:
            return "; Kueue has admitted that many"
        if component == ELASTIC and limits:
            return f"; run.elastic is {limits.min} to {limits.max}"
        if addresses is None or observed.scales.get(component, 0) <= addresses:
            return ""
        return f"; the cluster has addresses for {addresses}, which worker.maxReplicas sets"

    def _remove(self, action: RemovePod, notes: Notes, observed: Observed) -> None:
        pod = action.pod
        if action.why == "lost":
            if self._api.delete_pod(pod.pod_name):
                limit = self._run.node_loss_seconds
                logger.info(f"{pod.name} did not end on {pod.node} within run.nodeLossSeconds ({limit} s): removed it")
            return
        lines = self._logs.tail(pod.pod_name, pod.role, REPLACED_LINES)
        self._writer.write(notes)  # first: the new pod does not show the restart
        if self._api.replace_pod(pod.pod_name, pod.uid):
            observed.done.replaced.add(pod.uid)
            self._reporter.report_replacement(pod)
            ending.print_log(pod.name, lines)

    def _provide_account(self, action: ProvideAccount, observed: Observed, now: float) -> None:
        board, stage, is_there = self._run.tensorboard, action.stage, False
        if stage:
            is_there = self._api.provide_stage_account(stage.job, action.what)
        elif board and board.service_account:
            is_there = self._api.provide_tensorboard_account(board.service_account, board.annotations)
        if not is_there:
            return
        observed.done.accounts.add(action.what)
        if action.then and self._sent.is_due(action.then, now):
            self._change_job(action.then)

    def _change_job(self, action: ChangeStageJob) -> None:
        match action.change:
            case "create":
                self._api.create_stage_job(action.stage)
            case "delete":
                self._api.delete_job(action.what)
            case "end":
                self._api.try_to_end_stage(action.what)
            case "suspend" | "resume":
                self._api.try_to_suspend(action.what, action.change == "suspend")

    def _change_workload(self, action: ChangeWorkload, observed: Observed) -> None:
        if action.change == "delete":
            self._kueue.delete()
            return
        observed.done.unreadable = ""
        try:
            self._kueue.create()
        except UnreadableError as error:
            observed.done.unreadable = str(error)
        except UNAVAILABLE:
            return  # the next passes try again

    def _publish(self, action: PublishCheckpoint, observed: Observed, now: float) -> None:
        observed.done.published, observed.done.published_at = action.saved, now
        annotations = {f"{ANNOTATIONS}/{key}": value for key, value in checkpoint_annotation(action.saved).items()}
        self._kueue.annotate(annotations)
        if action.pod:
            self._kueue.annotate_pod(action.pod, annotations)
