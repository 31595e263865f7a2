"""The matrix of faults: what a record of a run says a fault cost, the plan, the results and the table."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.faults import faults, report, results
from benchmarks.faults.cluster import Line
from benchmarks.faults.measure import Cost, cost
from benchmarks.faults.observation import Record, Sample, step_of
from benchmarks.faults.plan import plan
from benchmarks.faults.run import Row
from benchmarks.faults.workload import Workload

WORKLOAD = Workload("asynchronous", ps=1, workers=2)


def steps(task: str, *pairs: tuple[float, int]) -> list[Sample]:
    return [Sample(time, task, step) for time, step in pairs]


def test_a_lost_worker_is_back_with_the_first_step_of_its_new_session() -> None:
    seen = Record(
        lines=[
            Line(102, "supervisor", "worker 1: starting again (SIGKILL)"),
            Line(105, "worker-1", "12:00:05 worker 1: at step 400 of 9000"),
        ],
        samples=[
            *steps("worker-0", (99, 300), (100.5, 310), (101.5, 320), (105, 400)),
            *steps("worker-1", (100.2, 305), (106, 420)),
        ],
        saved=steps("", (98, 290)),
    )
    found = cost(seen, WORKLOAD, faults.KILL, ["worker-1"], 100, 100)
    assert found.back == 6
    assert found.pause == 3.5
    assert found.lost == 0
    assert found.said == "supervisor: worker 1: starting again (SIGKILL)"
    assert not found.problems


def test_a_lost_server_is_back_when_every_replica_steps_again_and_costs_the_steps_since_the_checkpoint() -> None:
    seen = Record(
        lines=[Line(101, "supervisor", "mnist-ps-0 was replaced"), Line(110, "ps-0", "ps 0: serving on :2222")],
        samples=[
            *steps("worker-0", (99, 350), (112, 310)),
            *steps("worker-1", (99.5, 340), (113, 330)),
        ],
        saved=steps("", (98, 300)),
        restored=steps("worker-0", (111, 300)),
    )
    found = cost(seen, WORKLOAD, faults.DELETE, ["ps-0"], 100, 100)
    assert (found.back, found.pause, found.lost, found.problems) == (13, 12, 50, [])


def test_a_terminated_evaluator_is_back_when_its_next_process_starts() -> None:
    workload = Workload("asynchronous", ps=1, workers=2, evaluator=True)
    ending = Line(100.1, "evaluator-0", "12:00:00 evaluator 0: SIGTERM: ending")
    started = Line(102, "evaluator-0", '12:00:02 evaluator 0: trainer 0.1.0 #trainer {"started": {}, "time": 102}')
    assert cost(Record(lines=[ending]), workload, faults.TERMINATE, ["evaluator-0"], 100, 100).back is None
    assert cost(Record(lines=[ending, started]), workload, faults.TERMINATE, ["evaluator-0"], 100, 100).back == 2


def test_a_deleted_supervisor_is_back_when_its_next_container_logs() -> None:
    earlier = Line(90, "supervisor", "the workers step", "old.log")
    ending = Line(100.3, "supervisor", "SIGTERM: ending", "old.log")
    following = Line(109, "supervisor", "continues the run", "new.log")
    assert cost(Record(lines=[earlier, ending]), WORKLOAD, faults.DELETE, ["supervisor"], 100, 100).back is None
    found = cost(Record(lines=[earlier, ending, following]), WORKLOAD, faults.DELETE, ["supervisor"], 100, 100)
    assert found.back == 9


def test_the_way_back_from_a_fault_that_lasts_is_also_counted_from_its_end() -> None:
    samples = [*steps("worker-0", (161, 310)), *steps("worker-1", (163, 330))]
    found = cost(Record(samples=samples), WORKLOAD, faults.CUT_OFF, ["worker-1"], 100, 160)
    assert (found.back, found.back_after_end) == (63, 3)
    assert found.problems == ["no log names what happened"], "61 s of silence"


@pytest.mark.parametrize(
    ("restored", "problem"),
    [(300, ""), (200, "step 200 was restored, but step 300 was saved")],
)
def test_a_step_below_the_last_checkpoint_is_a_problem(restored: int, problem: str) -> None:
    seen = Record(
        lines=[Line(101, "supervisor", "ps 0: starting again")],
        samples=steps("worker-0", (112, restored + 5)),
        saved=steps("", (90, 200), (98, 300)),
        restored=steps("worker-0", (111, restored)),
    )
    problems = cost(seen, WORKLOAD, faults.KILL, ["ps-0"], 100, 100).problems
    assert (problem in problems) if problem else not problems
    damaged = cost(seen, WORKLOAD, faults.CUT_CHECKPOINT, ["ps-0"], 100, 100)
    assert not damaged.problems, "if the newest checkpoint is damaged, the previous one is the last"


def test_checkpoints_are_known_by_their_names() -> None:
    assert step_of("/training/model.ckpt-120") == 120
    assert step_of("model.ckpt-7.index") == 7
    assert step_of("model.ckpt-7.data-00000-of-00001") is None


def test_the_plan_names_each_case_once_and_has_every_fault() -> None:
    cases = plan()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    declared = {each for each in vars(faults).values() if isinstance(each, faults.Fault)}
    assert {case.fault for case in cases if case.fault} == declared
    for case in cases:
        assert set(case.targets) <= {*case.workload.tasks, "supervisor", "tensorboard"}, case.name


def test_results_are_read_as_they_were_written_and_the_latest_counts(tmp_path: Path) -> None:
    file = tmp_path / "results" / "faults.jsonl"
    case = plan()[6]
    results.add(file, case.name, None, "no cluster")
    row = Row(case.name, 70.5, 1, 0.98, Cost(4.2, 5.1, None, 120, "supervisor: ps 0", []), [])
    results.add(file, case.name, row)
    assert results.read(file)[case.name].row == row


def test_the_table_has_a_row_for_each_case_and_says_what_was_not_run(tmp_path: Path) -> None:
    cases, file = plan(), tmp_path / "faults.jsonl"
    quiet = next(case for case in cases if case.fault is None)
    bad = next(case for case in cases if case.fault and case.workload == quiet.workload and case.place == quiet.place)
    results.add(file, quiet.name, Row(quiet.name, 50, 0, 0.98, None, []))
    results.add(file, bad.name, Row(bad.name, 70, 1, 0.95, Cost(4.2, 5.1, None, 120, "", []), []))
    results.add(file, cases[4].name, None, "no cluster")
    text = report.render(cases, results.read(file))
    assert text.count("| not run") == len(cases) - 2
    assert "not run: no cluster" in text
    assert "| 4 s | 5 s | 120 | 1 | 0.9500 | the accuracy is below 0.9700 |" in text
    assert "**Target, asynchronous: -3.00 points of accuracy" in text


def test_the_document_keeps_the_rows_of_cases_without_a_result(tmp_path: Path) -> None:
    cases, file, document = plan(), tmp_path / "faults.jsonl", tmp_path / "faults.md"
    shutil.copy(report.DOCUMENT, document)
    before = document.read_text().splitlines()
    case = next(case for case in cases if case.fault)
    results.add(file, case.name, Row(case.name, 70, 1, 0.97, Cost(44.2, 55.1, None, 123, "", []), []))
    results.add(file, cases[-1].name, None, "no cluster")
    for _ in range(2):
        report.publish(cases, results.read(file), document)
        after = document.read_text().splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new and old.startswith("| ")]
        ((_, new),) = changed
        assert "| 44 s | 55 s | 123 | 1 | 0.9700 | good |" in new
    assert f" {len(cases) - 1} rows were measured before" in document.read_text()
    targets = [line.partition("mean of")[2] for line in before if line.startswith("**Target")]
    assert [line.partition("mean of")[2] for line in after if line.startswith("**Target")] == targets


def test_the_document_has_every_case() -> None:
    document = report.DOCUMENT.read_text()
    for case in plan():
        assert f"| {case.workload.mode} | {case.workload} |" in document
        assert json.dumps(case.fault.name if case.fault else "none").strip('"') in document
