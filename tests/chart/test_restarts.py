"""The pod templates change, and so the pods restart, only if the configuration that the tasks read changes."""

from typing import Any

import pytest

from tests.chart.chart import Object, render
from trainer.cluster.spec import ROLES

MAX_REPLICAS = {"worker.maxReplicas": 4}


def templates(values: dict[str, Any]) -> dict[str, Object]:
    """The pod templates of the roles' StatefulSets."""
    return {role: pod for role, pod in render(values).pods().items() if role in ROLES}


def checksums(values: dict[str, Any]) -> set[str]:
    """The checksums of the mounted configuration, from the pods' annotations."""
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
def test_a_changed_configuration_restarts_every_task(change: dict[str, Any]) -> None:
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
        {"trainingDirectory.keep": False},
    ],
    ids=str,
)
def test_a_change_that_tasks_do_not_read_restarts_no_task(change: dict[str, Any]) -> None:
    assert templates({**MAX_REPLICAS, **change}) == templates(MAX_REPLICAS)


def test_an_added_evaluator_restarts_no_other_task() -> None:
    """Without a supervisor. With one, it is another run, which continues from the last checkpoint."""
    unsupervised = {"supervisor.enabled": False}
    with_it = templates({**unsupervised, "evaluator.replicas": 1})
    del with_it["evaluator"]
    assert with_it == templates(unsupervised)
