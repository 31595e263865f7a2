"""The supervisor's last sentence: the verdict, with the result that the leader's log ends with."""

from tests.unit.test_supervision import a_pod, a_run
from trainer.supervisor import supervise
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.policy import Outcome
from trainer.telemetry import result

SUCCEEDED = Outcome(True, "mnist-worker-0 ended with code 0")
LEADER = a_pod("mnist-worker-0", 0)
RESULT = "20:24:05 worker 0: " + result.to_line({"state": "done", "test_accuracy": 0.9861, "global_step": 2000})
TOLD = "mnist-worker-0 ended with code 0; test accuracy 0.9861"
PARKED = "task: ended with code 0 and rests; what it said: kubectl logs --previous mnist-worker-0"


class Logs(KubernetesApi):
    """A cluster of which only the leader's two logs are known; None where one is gone."""

    def __init__(self, now: str | None, before: str | None) -> None:
        self._said = {"false": now, "true": before}

    def _log(self, pod: str, role: str, lines: int, previous: str) -> str | None:
        return self._said[previous]


def reason(now: str | None, before: str | None, command: str | None = None) -> str:
    the_run = a_run(result_command=command)
    return supervise._with_result(the_run, Logs(now, before), SUCCEEDED, LEADER).reason


def test_the_sentence_has_the_accuracy_and_the_command_that_shows_the_result() -> None:
    assert reason(RESULT, None, "kubectl exec …") == f"{TOLD}: kubectl exec …"
    assert reason(RESULT, None) == TOLD


def test_the_result_is_found_before_and_after_the_container_was_started_again_to_rest() -> None:
    assert reason(f"{RESULT}\n", None) == TOLD
    assert reason(PARKED, f"{RESULT}\n") == TOLD


def test_the_result_is_found_where_the_leader_was_restarted_before() -> None:
    assert reason(RESULT, "20:20:00 worker 0: lost a parameter server") == TOLD


def test_the_sentence_stays_where_there_is_no_result() -> None:
    for now in (None, "", "my own program is done", 'result {"test_accuracy": null}', 'result {"accuracy": 1}'):
        assert reason(now, None, "kubectl exec …") == SUCCEEDED.reason
