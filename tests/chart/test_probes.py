"""The probes of tasks and their periods. Each probe takes CPU time from training."""

from typing import Any

import pytest

from tests.chart.chart import render
from trainer.cluster.spec import ROLES

ALL_ROLES = {"chief.replicas": 1, "evaluator.replicas": 1}
OWN = {"tcpSocket": {"port": 1}}


def probes(values: dict[str, Any], role: str) -> dict[str, Any]:
    """The probes of a role's container, by kind."""
    (container,) = render({**ALL_ROLES, **values}).pods()[role]["spec"]["containers"]
    return {key: value for key, value in container.items() if key.endswith("Probe")}


@pytest.mark.parametrize("role", [role for role in ROLES if role != "evaluator"])
def test_the_startup_probe_runs_more_often_than_the_readiness_probe(role: str) -> None:
    found = probes({}, role)
    assert set(found) == {"startupProbe", "readinessProbe"}
    assert found["startupProbe"]["exec"] == found["readinessProbe"]["exec"]
    assert found["startupProbe"]["periodSeconds"] < found["readinessProbe"]["periodSeconds"]


def test_the_startup_probe_does_not_fail_for_a_year() -> None:
    limit = probes({}, "worker")["startupProbe"]
    assert limit["failureThreshold"] * limit["periodSeconds"] > 365 * 24 * 3600


def test_an_evaluator_has_no_probe() -> None:
    assert probes({}, "evaluator") == {}


@pytest.mark.parametrize(
    "values",
    [{}, {"common.image": {"repository": "mine"}, "common.command": ["run"]}],
    ids=["packaged", "own program"],
)
def test_a_worker_without_other_tasks_needs_no_port(values: dict[str, Any]) -> None:
    """It is a single process, to which no other task connects. If it fails for good, it is not ready."""
    alone = {"ps.replicas": 0, "chief.replicas": 0, "worker.replicas": 1, **values}
    script = ["sh", "/etc/distributed-tensorflow/ready.sh"]
    assert [each["exec"]["command"] for each in probes(alone, "worker").values()] == [script, script]
    with_ps = {**alone, "ps.replicas": 1, "train.strategy": "ps"}
    assert [each["exec"]["command"] for each in probes(with_ps, "worker").values()] == [[*script, "2222"]] * 2


def test_a_custom_readiness_probe_replaces_both_probes() -> None:
    assert probes({"common.readinessProbe": OWN}, "worker") == {"readinessProbe": OWN}


@pytest.mark.parametrize("kind", ["livenessProbe", "startupProbe"])
def test_another_custom_probe_replaces_only_the_startup_probe(kind: str) -> None:
    found = probes({f"common.{kind}": OWN}, "worker")
    assert set(found) == {kind, "readinessProbe"}
    assert found[kind] == OWN
    assert "ready.sh" in found["readinessProbe"]["exec"]["command"][1]
