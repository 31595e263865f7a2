"""The last line of the supervisor's log: the outcome, with the result from the leader's log."""

import json
from datetime import datetime, timezone

import pytest

from tests.unit.test_supervision import a_pod, a_run
from trainer.supervisor import ending
from trainer.supervisor.notes import Notes
from trainer.supervisor.policy import Outcome
from trainer.supervisor.task_logs import TaskLogs, cause_in
from trainer.telemetry import report

SUCCEEDED = Outcome(True, "mnist-worker-0 ended with code 0")
LEADER = a_pod("mnist-worker-0", 0)
CONTENT = {"result": {"state": "done", "test_accuracy": 0.9861, "global_step": 2000}}
STARTED = datetime(2026, 11, 26, 20, 0, tzinfo=timezone.utc).timestamp()
RESULT = f"20:24:05 worker 0: done{report.MARK}{json.dumps(CONTENT)}"
EXPECTED = "mnist-worker-0 ended with code 0; test accuracy 0.9861"
PARKED = (
    "task: ended with code 0 and is parked; its log: kubectl logs --previous mnist-worker-0"
    ' #trainer {"parked": {"exit_code": 0}}'
)


class Logs(TaskLogs):
    """The leader's two logs; None for one that is gone."""

    def __init__(self, current: str | None, previous: str | None) -> None:
        self._logs = {"false": current, "true": previous}

    def _read(self, pod: str, role: str, lines: int, previous: str) -> str | None:
        return self._logs[previous]


def reason(current: str | None, previous: str | None, command: str | None = None, queued: float = 0.0) -> str:
    the_run, notes = a_run(result_command=command), Notes(started=STARTED, begun=STARTED - queued)
    return ending.with_result(the_run, Logs(current, previous), SUCCEEDED, LEADER, notes).reason


def test_the_sentence_has_the_accuracy_and_the_command_that_shows_the_result() -> None:
    assert reason(RESULT, None, "kubectl exec …") == f"{EXPECTED}: kubectl exec …"
    assert reason(RESULT, None) == EXPECTED


def test_the_sentence_has_the_goodput_since_the_run_began_to_wait_for_its_queue() -> None:
    seconds = {"scheduling": 0.0, "starting": 5.0, "training": 90.0, "again": 0.0, "waiting": 0.0, "saving": 0.0}
    written = "2026-11-26T20:01:40+00:00"  # 100 s after the start, of which the chief's process has lived 95
    found = CONTENT["result"] | {"updated": written, "goodput_seconds": seconds}
    line = f"done{report.MARK}{json.dumps({'result': found})}"
    shown = "goodput 90.0 %: training 90.0 s, scheduling 5.0 s, starting 5.0 s"
    assert reason(line, None, "kubectl exec …") == f"{EXPECTED}; {shown}: kubectl exec …"
    assert "goodput 75.0 %: training 90.0 s, scheduling 25.0 s" in reason(line, None, queued=20.0)


def test_the_sentence_says_that_a_callback_has_ended_the_run_early() -> None:
    early = "a callback ended the run at step 2000 of 5000"
    found = CONTENT["result"] | {"stopped_before": 5000}
    line = f"done{report.MARK}{json.dumps({'result': found})}"
    assert reason(line, None) == f"mnist-worker-0 ended with code 0; {early}; test accuracy 0.9861"
    old = f"done{report.MARK}{json.dumps({'result': found | {'updated': '2026-11-26T19:59:59+00:00'}})}"
    assert reason(old, None).startswith(
        "nothing was trained, because the run had ended before; raise train.train_steps"
    )


def test_a_result_from_before_the_run_says_that_nothing_was_trained() -> None:
    for updated, is_old in (("2026-11-26T19:59:59+00:00", True), ("2026-11-26T20:00:01+00:00", False), ("?", False)):
        line = f"done{report.MARK}{json.dumps({'result': CONTENT['result'] | {'updated': updated}})}"
        assert reason(line, None).startswith("nothing was trained, because all steps were done before") == is_old
        assert reason(line, None).endswith(EXPECTED)


ENDED = f'ends with code 1{report.MARK}{{"ended": {{"code": 1, "reason": "InvalidArgumentError: too large"}}}}'
BEGUN = f'trainer 0.1.0{report.MARK}{{"started": {{"version": "0.1.0"}}}}'
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()"]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([*TRACEBACK, "ValueError: no such column", "the last words"], "ValueError: no such column"),
        (
            [*TRACEBACK, "KeyError: 1", "", *TRACEBACK, "tf.errors.NotFoundError: 2", " more"],
            "tf.errors.NotFoundError: 2",
        ),
        ([*TRACEBACK, "KeyboardInterrupt"], "KeyboardInterrupt"),
        (["ValueError: a word of the program"], ""),
        (
            [f'ends with code 2{report.MARK}{{"ended": {{"code": 2, "reason": "train_dir: it is full."}}}}'],
            "train_dir: it is full",
        ),
        ([], ""),
        ([ENDED, *TRACEBACK, "InvalidArgumentError: Graph execution error:"], "InvalidArgumentError: too large"),
        ([ENDED, BEGUN, *TRACEBACK, "ValueError: no"], "ValueError: no"),
    ],
)
def test_the_cause_of_a_failure_is_that_of_the_program(lines: list[str], cause: str) -> None:
    assert cause_in(lines) == cause


def test_the_result_is_found_before_and_after_the_container_is_parked() -> None:
    assert reason(f"{RESULT}\n", None) == EXPECTED
    assert reason(PARKED, f"{RESULT}\n") == EXPECTED


def test_the_result_is_found_after_the_leader_was_restarted() -> None:
    assert reason(RESULT, "20:20:00 worker 0: lost a parameter server") == EXPECTED


def test_the_sentence_has_no_accuracy_without_a_result() -> None:
    for log in (None, "", "my own program is done", RESULT.replace("0.9861", "[]"), RESULT.replace("test_", "")):
        assert reason(log, None, "kubectl exec …") == SUCCEEDED.reason
