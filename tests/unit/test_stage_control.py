"""What the supervisor does with the Jobs of stages: those of the chart, and those that it creates for watched data."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.test_stages import WAITS, a_stage, with_stages
from tests.unit.test_supervision import NOW
from trainer.supervisor import stages
from trainer.supervisor.actor import Actor
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import Notes, StageNotes
from trainer.supervisor.observed import Observed
from trainer.supervisor.run import DataWatch, Run, Stage
from trainer.supervisor.stages import StageJob

STARTED: Mapping[str, Any] = {"prepare": StageNotes("running", "", NOW)}


class Api(KubernetesApi):
    """Keeps the calls that change Jobs."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.calls: list[str] = []

    def create_stage_job(self, stage: Stage) -> None:
        self.calls.append("create")

    def delete_job(self, name: str) -> None:
        self.calls.append("delete")

    def provide_stage_account(self, job: str, uid: str) -> bool:
        self.calls.append("account")
        return True

    def try_to_suspend(self, job: str, suspend: bool) -> None:
        self.calls.append("suspend" if suspend else "resume")

    def try_to_end_stage(self, job: str) -> None:
        self.calls.append("end")


def calls(run: Run, *jobs: StageJob | None, notes: Mapping[str, Any] = STARTED) -> list[str]:
    """What follows from the Jobs that are observed one after another, while the stage runs."""
    api, observed = Api(run), Observed()
    none: Any = None
    actor = Actor(run, api, none, none, none, none)
    for index, job in enumerate(jobs):
        known = Notes(state="Preparing", stages=notes)
        needed = stages.needed(run, known, {"prepare": job} if job else {}, observed.done.accounts)
        actor.act(needed, known, observed, NOW + index)
    return api.calls


def test_a_job_of_the_chart_gets_its_account_and_is_resumed() -> None:
    run = with_stages([a_stage("prepare")])
    begun = dataclasses.replace(WAITS, suspended=False)
    assert calls(run, WAITS, WAITS, begun) == ["account", "resume"]
    replaced = dataclasses.replace(begun, uid="2", has_pods=True)  # as after kubectl delete job and helm upgrade
    assert calls(run, begun, replaced) == ["account", "suspend", "account"]


@pytest.mark.parametrize("state", ["skipped", "done"])
def test_the_job_of_a_stage_that_does_not_run_again_is_complete(state: str) -> None:
    """Otherwise `helm upgrade --wait-for-jobs` waits for it until its timeout."""
    run, past = with_stages([a_stage("prepare")]), StageNotes(state, "1")  # type: ignore[arg-type]
    ended = dataclasses.replace(WAITS, complete=True)
    assert calls(run, WAITS, WAITS, ended, notes={"prepare": past}) == ["end"]
    assert calls(run, ended, notes={"prepare": past}) == []


@pytest.fixture
def watched() -> Run:
    stage = a_stage("prepare", manifest={"metadata": {}}, template="t1")
    run = with_stages([stage], data_watch=DataWatch(uri="a", tag="", interval_seconds=1))
    return run.on_version("4")


def test_a_job_for_another_version_or_template_is_deleted_and_created_anew(watched: Run) -> None:
    own = dataclasses.replace(WAITS, suspended=False, made_for="t1.v4")
    for other in ("t1.v3", "t0.v4"):
        old = dataclasses.replace(own, made_for=other, complete=True)
        assert calls(watched, old, old, None, None, own, own) == ["delete", "create"]
    assert calls(watched, own, dataclasses.replace(own, complete=True)) == []


def test_a_job_that_the_supervisor_has_created_is_resumed_after_a_suspension(watched: Run) -> None:
    assert calls(watched, dataclasses.replace(WAITS, made_for="t1.v4")) == ["resume"]
