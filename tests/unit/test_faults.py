"""What a record of a run says a fault cost."""

import pytest

from benchmarks.faults import faults
from benchmarks.faults.cluster import Line
from benchmarks.faults.measure import cost
from benchmarks.faults.observation import Record, Sample, step_of
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


def test_a_fault_of_no_task_is_over_when_every_replica_steps_after_it() -> None:
    samples = [*steps("worker-0", (101, 300), (131, 310)), *steps("worker-1", (102, 305), (134, 330))]
    found = cost(Record(samples=samples), WORKLOAD, faults.KUBELET, [], 100, 130)
    assert (found.back, found.back_after_end) == (34, 4)


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
