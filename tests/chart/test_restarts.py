"""Pods restart when what they read has changed, and only then: their template says so."""

from typing import Any

import pytest

from tests.chart.chart import Object, render
from trainer.cluster.spec import ROLES

ROOM = {"worker.maxReplicas": 4}


def templates(values: dict[str, Any]) -> dict[str, Object]:
    """The pods of the roles, as their StatefulSets make them."""
    return {role: pod for role, pod in render(values).pods().items() if role in ROLES}


def checksums(values: dict[str, Any]) -> set[str]:
    """What the pods' annotations say of the configuration that they mount."""
    return {pod["metadata"]["annotations"]["checksum/config"] for pod in templates(values).values()}


@pytest.mark.parametrize(
    "change",
    [
        {"train.learning_rate": 0.5},
        {"worker.replicas": 3},
        {"worker.maxReplicas": 3},
        {"ps.replicas": 2},
        {"chief.replicas": 1},
        {"port": 3333},
        {"trainingDirectory.path": "/t"},
        {"data.enabled": True},
    ],
    ids=str,
)
def test_another_configuration_restarts_every_task(change: dict[str, Any]) -> None:
    (before,) = checksums({})
    (after,) = checksums(change)
    assert before != after


@pytest.mark.parametrize(
    "change",
    [
        {"worker.replicas": 3},
        {"worker.replicas": 4},
        {"tensorboard.enabled": False},
        {"tensorboard.pathPrefix": "/mnist"},
        {"tensorboard.resources.requests.cpu": "1"},
        {"metrics.from": [{"podSelector": {}}]},
        {"networkPolicy.enabled": False},
        {"worker.podDisruptionBudget.enabled": False},
        {"trainingDirectory.keep": True},
    ],
    ids=str,
)
def test_tasks_do_not_notice_what_is_not_theirs(change: dict[str, Any]) -> None:
    assert templates({**ROOM, **change}) == templates(ROOM)


def test_an_evaluator_comes_without_the_others_noticing() -> None:
    """To the supervisor it is another run, which goes on from the last checkpoint."""
    unsupervised = {"supervisor.enabled": False}
    with_it = templates({**unsupervised, "evaluator.replicas": 1})
    del with_it["evaluator"]
    assert with_it == templates(unsupervised)
