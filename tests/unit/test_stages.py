"""The stages of a run: which one runs, which are skipped, and what a run is that has only stages left."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from lightkube.resources.batch_v1 import Job

from tests.unit.test_supervision import NOW, SCALE, STARTED, a_pod, a_run
from trainer.supervisor import lifecycle, notes, scales, stages
from trainer.supervisor.notes import Notes, StageNotes
from trainer.supervisor.policy import Outcome
from trainer.supervisor.run import DataWatch, Run, Stage, Stages
from trainer.supervisor.stages import StageJob

WAITS = StageJob(uid="1", suspended=True, has_pods=False, complete=False, failure="")
COMPLETE = dataclasses.replace(WAITS, complete=True)
FAILED = dataclasses.replace(WAITS, failure="Pod has failed")


def a_stage(name: str, digest: str = "1", **more: Any) -> Stage:
    return Stage(name=name, digest=digest, job=f"mnist-stage-{name}-{digest}", **more)


TWO = [a_stage("fetch"), a_stage("prepare")]


def with_stages(before: Sequence[Stage] = (), after: Sequence[Stage] = (), **more: Any) -> Run:
    return a_run(stages=Stages(before=[*before], after=[*after]), **more)


def states(progress: stages.Progress) -> dict[str, str]:
    return {name: each.state for name, each in progress.notes.items()}


def test_stages_run_one_after_another() -> None:
    begun = stages.advance(TWO, {}, {"fetch": WAITS, "prepare": WAITS}, NOW)
    assert (begun.current, states(begun)) == (TWO[0], {"fetch": "running"})
    assert begun.sentences == ["stage fetch starts"]
    again = stages.advance(TWO, begun.notes, {"fetch": WAITS, "prepare": WAITS}, NOW + 1)
    assert (again.current, again.sentences) == (TWO[0], [])
    second = stages.advance(TWO, again.notes, {"fetch": COMPLETE, "prepare": WAITS}, NOW + 7)
    assert second.current == TWO[1]
    assert second.sentences == ["stage fetch is done after 7 s", "stage prepare starts"]
    last = stages.advance(TWO, second.notes, {"fetch": COMPLETE, "prepare": COMPLETE}, NOW + 9)
    assert (last.current, last.failed) == (None, None)
    assert {each.digest for each in last.notes.values()} == {"1"}


def test_a_failed_stage_stops_those_after_it() -> None:
    found = stages.advance(TWO, {}, {"fetch": FAILED, "prepare": WAITS}, NOW)
    assert (found.failed, found.current) == (TWO[0], None)
    assert found.sentences == ["stage fetch failed: Pod has failed"]


def test_a_stage_with_the_digest_of_its_last_success_is_skipped() -> None:
    before = Notes(stages={"fetch": StageNotes("done", "1"), "prepare": StageNotes("failed", "0")})
    found = stages.advance(TWO, stages.renew(TWO, before), {}, NOW)
    assert states(found) == {"fetch": "skipped", "prepare": "running"}
    assert "stage fetch is skipped" in found.sentences[0]


def test_a_stage_that_always_runs_is_not_skipped_and_neither_is_what_follows() -> None:
    chain = [a_stage("fetch"), a_stage("look", always=True), a_stage("prepare")]
    before = Notes(stages={stage.name: StageNotes("done", "1") for stage in chain})
    found = stages.advance(chain, stages.renew(chain, before), {}, NOW)
    assert (found.current, states(found)["fetch"]) == (chain[1], "skipped")
    assert found.notes["prepare"] == StageNotes()


def test_a_job_whose_success_was_not_noted_counts() -> None:
    """The supervisor may die between the end of a Job and its notes."""
    found = stages.advance(TWO, {"fetch": StageNotes("running", "", NOW)}, {"fetch": COMPLETE}, NOW + 3)
    assert states(found) == {"fetch": "done", "prepare": "running"}


def test_a_new_run_begins_with_its_stages_and_its_tasks_wait() -> None:
    run = with_stages(TWO)
    begun = lifecycle.begin(run, Notes(), [a_pod("mnist-ps-0")], NOW)
    assert begun.state == "Preparing"
    assert scales.wanted(run, begun, {}, NOW) == {"worker": 0, "ps": 0}
    assert notes.run_of_tasks(begun, waits=True) == ""
    assert notes.run_of_tasks(dataclasses.replace(begun, state="Starting"), waits=True) == "abc"
    assert notes.run_of_tasks(begun, waits=False) == "abc"


def test_tasks_of_an_earlier_run_end_before_the_stages() -> None:
    run = with_stages(TWO, hash="new")
    begun = lifecycle.begin(run, STARTED, [a_pod("mnist-ps-0")], NOW)
    assert begun.state == "Stopping"
    assert lifecycle.advance(run, begun, {}, {"worker": 0, "ps": 0}, NOW).state == "Preparing"


def test_a_supervisor_goes_on_with_the_stage_of_the_one_before_it() -> None:
    run = with_stages(TWO)
    begun = lifecycle.begin(run, Notes(), [], NOW)
    running = dataclasses.replace(begun, stages=stages.advance(TWO, begun.stages, {}, NOW).notes)
    assert lifecycle.begin(run, running, [], NOW + 9) == running
    assert stages.current(run, running) == TWO[0]


INFER = a_stage("infer")
ENDED = Outcome(True, "mnist-worker-0 ended with code 0")


def trained(run: Run, **more: Any) -> Notes:
    done = lifecycle.end(run, dataclasses.replace(STARTED, after=run.after), ENDED, NOW)
    return dataclasses.replace(done, **more)


def test_after_the_training_only_its_stages_are_left() -> None:
    run = with_stages([], [INFER])
    finishing = trained(run)
    assert finishing.state == "Finishing"
    assert scales.wanted(run, finishing, {}, NOW) == {"worker": 0, "ps": 0}
    assert scales.wanted(dataclasses.replace(run, clean_pod_policy="None"), finishing, {}, NOW) == {}
    assert lifecycle.begin(run, finishing, [], NOW) == finishing


def test_a_change_of_a_stage_after_the_training_runs_this_stage_alone() -> None:
    old = with_stages([a_stage("prepare")], [a_stage("evaluate"), INFER])
    done = {name: StageNotes("done", "1") for name in ("prepare", "evaluate", "infer")}
    over = trained(old, state="Succeeded", stages=done)
    assert lifecycle.is_over(old, over)
    changed = with_stages([a_stage("prepare")], [a_stage("evaluate"), a_stage("infer", "2")])
    begun = lifecycle.begin(changed, over, [], NOW)
    assert (begun.state, begun.training) == ("Finishing", "mnist-worker-0 ended with code 0")
    found = stages.advance(changed.stages.after, begun.stages, {}, NOW)
    assert states(found) == {"prepare": "done", "evaluate": "skipped", "infer": "running"}


def test_a_changed_stage_runs_although_the_last_one_does_not_depend_on_it() -> None:
    publish = a_stage("publish")
    over = trained(with_stages([], [INFER, publish]), state="Failed", stages={"infer": StageNotes("failed")})
    begun = lifecycle.begin(with_stages([], [a_stage("infer", "2"), publish]), over, [], NOW)
    assert (begun.state, begun.stages["infer"]) == ("Finishing", StageNotes())


def test_a_change_of_a_stage_before_the_training_is_another_run() -> None:
    old = with_stages([a_stage("prepare")], [INFER])
    over = trained(
        old, state="Succeeded", stages={"prepare": StageNotes("done", "1"), "infer": StageNotes("done", "1")}
    )
    changed = with_stages([a_stage("prepare", "2")], [a_stage("infer", "2")], hash="new", definition="new")
    begun = lifecycle.begin(changed, over, [], NOW)
    assert (begun.state, begun.trained) == ("Preparing", "")


def test_stages_that_are_added_to_a_run_of_an_earlier_version_run() -> None:
    over = dataclasses.replace(STARTED, state="Succeeded", reason="so")
    begun = lifecycle.begin(with_stages([], [INFER]), over, [], NOW)
    assert (begun.state, begun.training) == ("Finishing", "so")
    assert lifecycle.is_over(a_run(), over)


@pytest.mark.parametrize(("state", "expected"), [("Failed", "Finishing"), ("Succeeded", "Preparing")])
def test_another_attempt_after_a_failed_stage_does_not_train_again(state: Any, expected: str) -> None:
    run = with_stages([a_stage("prepare")], [INFER])
    over = trained(run, state=state, stages={"prepare": StageNotes("done", "1"), "infer": StageNotes("failed")})
    again = dataclasses.replace(run, hash="2", attempt=2)
    assert lifecycle.begin(run, over, [], NOW).has_ended
    begun = lifecycle.begin(again, over, [], NOW)
    assert begun.state == expected
    assert begun.stages["infer"] == StageNotes()


def test_stages_run_again_for_each_version_of_the_data() -> None:
    run = with_stages([a_stage("prepare")], [INFER], data_watch=DataWatch(uri="a", tag="", interval_seconds=1))
    done = {name: StageNotes("done", "1.v1") for name in ("prepare", "infer")}
    over = trained(run.on_version("1"), state="Succeeded", data_version="1", definition="def.v1", stages=done)
    assert lifecycle.is_over(run.on_version("1"), over)
    begun = lifecycle.begin(run.on_version("2"), over, [], NOW)
    assert (begun.state, begun.trained, begun.data_version) == ("Preparing", "", "2")
    found = stages.advance(run.on_version("2").stages.before, begun.stages, {}, NOW)
    assert states(found) == {"prepare": "running", "infer": "waiting"}


def test_a_suspended_stage_begins_again() -> None:
    run = with_stages(TWO)
    suspended = dataclasses.replace(
        STARTED, state="Suspended", stages={"fetch": StageNotes("done", "1"), "prepare": StageNotes("running", "", 5.0)}
    )
    resumed = lifecycle.begin(run, suspended, [], NOW)
    assert resumed.state == "Preparing"
    assert stages.current(run, suspended) is None
    assert states(stages.advance(TWO, resumed.stages, {}, NOW)) == {"fetch": "skipped", "prepare": "running"}
    assert resumed.scales == SCALE


def test_a_jobs_status_is_that_of_its_conditions() -> None:
    def job(**status: Any) -> StageJob:
        content = {"metadata": {"uid": "u"}, "spec": {"suspend": True, "template": {}}, "status": status}
        return stages.observe(msgspec.convert(content, Job))

    assert job(active=1) == StageJob("u", suspended=True, has_pods=True, complete=False, failure="")
    assert job(conditions=[{"type": "Complete", "status": "True"}]).complete
    assert not job(conditions=[{"type": "Complete", "status": "False"}]).complete
    failed = job(conditions=[{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}])
    assert failed.failure == "too long"
