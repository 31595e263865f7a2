"""What differs between the cluster and what the notes want: the actions that are needed. Pure."""

from collections.abc import Iterator

from trainer.supervisor import admission, lifecycle, policy, scales, stages
from trainer.supervisor.actions import Action, ProvideAccount, RemovePod, SetScale
from trainer.supervisor.notes import Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.run import Run
from trainer.supervisor.scales import TENSORBOARD

LEAVE_SECONDS = 60.0
"""How long the end of TensorBoard on the leader's node is waited for."""


def needed(run: Run, notes: Notes, observed: Observed, now: float) -> Iterator[Action]:
    """The actions that make the cluster what the notes want, in their order. `now` in seconds since 1970."""
    yield from admission.needed(run, notes, observed, now)
    yield from stages.needed(run, notes, observed.jobs, observed.done.accounts)
    wanted = _wanted(run, notes, observed, now)
    if wanted.get(TENSORBOARD) and _lacks_account(run, observed):
        yield ProvideAccount(TENSORBOARD)
    for component, scale in wanted.items():
        if observed.scales.get(component) not in (None, scale):
            yield SetScale(component, scale)
    yield from _removals(run, notes, observed, now)


def is_settled(run: Run, notes: Notes, observed: Observed, now: float) -> bool:
    """Whether the run has ended and is cleaned up, or is suspended and all of its tasks are gone."""
    if not admission.is_settled(run, notes, observed.workload):
        return False
    if notes.state == "Suspended":
        return lifecycle.are_gone(observed.pods.values())
    wanted = _wanted(run, notes, observed, now)
    return notes.has_ended and not (
        any(observed.scales.get(component) not in (None, scale) for component, scale in wanted.items())
        or _leaves_node(run, notes, observed, now)
        or (wanted.get(TENSORBOARD) and _lacks_account(run, observed))
        or any(job.may_start for job in observed.jobs.values())
    )


def _wanted(run: Run, notes: Notes, observed: Observed, now: float) -> dict[str, int]:
    """The scale that each object should have now, by component."""
    wanted = scales.wanted(run, notes, observed.pods, now)
    return wanted | {TENSORBOARD: 0} if _leaves_node(run, notes, observed, now) else wanted


def _leaves_node(run: Run, notes: Notes, observed: Observed, now: float) -> bool:
    """Whether TensorBoard is ending on the leader's node, to start on another one."""
    waits = notes.has_ended and not observed.tensorboard_left and now - notes.ended <= LEAVE_SECONDS
    return waits and bool(run.tensorboard and run.tensorboard.leaves_node and notes.leader)


def _lacks_account(run: Run, observed: Observed) -> bool:
    """Whether TensorBoard has a service account of the supervisor's, and it is not known to exist."""
    has_own = bool(run.tensorboard and run.tensorboard.service_account)
    return has_own and TENSORBOARD not in observed.done.accounts


def _removals(run: Run, notes: Notes, observed: Observed, now: float) -> Iterator[RemovePod]:
    """The pods of lost nodes, those with outdated settings, and those of tasks that restart sooner in a new pod."""
    limit = run.node_loss_seconds
    for pod in observed.unsteady.values():
        if limit is not None and pod.deadline is not None and now - pod.deadline > limit:
            yield RemovePod(pod.uid, "lost", pod)
    if notes.state not in lifecycle.TRAINING:
        return
    for pod in observed.unsteady.values():
        # Kueue has admitted what the pods of a queued run ask for.
        is_changeable = not run.is_queued and not pod.terminating
        if is_changeable and policy.is_outdated(run, pod, observed.templates.get(pod.role), now):
            yield RemovePod(pod.uid, "outdated", pod)
    for pod in observed.unsteady_tasks.values():
        template = observed.templates.get(pod.role)
        if template and template.run_hash != run.hash:  # an upgrade has failed half-way: the new pod would be its run's
            continue
        if pod.uid not in observed.done.replaced and policy.is_replaceable(run, notes, pod, now):
            yield RemovePod(pod.uid, "restarts", pod)
