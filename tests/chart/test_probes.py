"""How often a task is asked whether it is ready: each question takes CPU time from its training."""

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
def test_a_task_is_asked_often_only_until_it_is_ready(role: str) -> None:
    found = probes({}, role)
    assert set(found) == {"startupProbe", "readinessProbe"}
    assert found["startupProbe"]["exec"] == found["readinessProbe"]["exec"]
    assert found["startupProbe"]["periodSeconds"] < found["readinessProbe"]["periodSeconds"]


def test_no_task_is_ended_because_its_port_is_not_open() -> None:
    limit = probes({}, "worker")["startupProbe"]
    assert limit["failureThreshold"] * limit["periodSeconds"] > 365 * 24 * 3600


def test_nothing_listens_in_an_evaluator() -> None:
    assert probes({}, "evaluator") == {}


def test_a_readiness_probe_of_ones_own_is_the_only_one() -> None:
    assert probes({"common.readinessProbe": OWN}, "worker") == {"readinessProbe": OWN}


@pytest.mark.parametrize("kind", ["livenessProbe", "startupProbe"])
def test_another_probe_of_ones_own_waits_for_no_port(kind: str) -> None:
    found = probes({f"common.{kind}": OWN}, "worker")
    assert set(found) == {kind, "readinessProbe"}
    assert found[kind] == OWN
    assert "ready.sh" in found["readinessProbe"]["exec"]["command"][1]
