"""Asynchronous replication: what the parameters are after so many steps."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer import replica
from trainer.cluster import Cluster
from trainer.config import Settings
from trainer.model import Parameter
from trainer.models import mlp
from trainer.replica import Replica
from trainer.tensorflow import tf1

from .conftest import Batch, Servers

SETTINGS = Settings(learning_rate=0.01)
Values = Callable[[Replica, Any], dict[str, npt.NDArray[Any]]]


class Linear:
    """A model whose gradient is written down in a line."""

    def parameters(self, image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
        return {"weights": Parameter((*image_shape, classes), 0.1), "biases": Parameter((classes,))}

    def logits(self, parameters: Mapping[str, Any], images: Any) -> Any:
        return images @ parameters["weights"] + parameters["biases"]


def linear(cluster: Cluster | None) -> Replica:
    return replica.build(SETTINGS, cluster, Linear(), Linear().parameters((784,), 10, 0), (784,), 0, "this run")


def by_hand(start: Mapping[str, npt.NDArray[Any]], batches: list[Batch]) -> dict[str, npt.NDArray[Any]]:
    """Adam (Kingma and Ba, 2015, in the form that ends its section 2) on the cross entropy's gradient."""
    values = {name: start[name].astype(np.float64) for name in ("weights", "biases")}
    first = {name: np.zeros_like(value) for name, value in values.items()}
    second = {name: np.zeros_like(value) for name, value in values.items()}
    for step, (images, labels) in enumerate(batches, start=1):
        powers = np.exp(images @ values["weights"] + values["biases"])
        error = (powers / powers.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(labels)
        for name, gradient in (("weights", images.T @ error), ("biases", error.sum(axis=0))):
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            rate = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            values[name] = values[name] - rate * first[name] / (np.sqrt(second[name]) + 1e-8)
    return values


def take(found: Replica, session: Any, batch: Batch) -> int:
    return int(session.run(found.replication.step, {found.images: batch[0], found.labels: batch[1]}))


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        assert np.allclose(found[name], value, rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize("place", ["alone", "in a cluster"])
def test_one_replica_is_plain_adam(
    place: str, servers: Servers, make_batch: Callable[[int], Batch], values: Values
) -> None:
    cluster = None if place == "alone" else servers.member(0, workers=1)
    found = linear(cluster)
    batches = [make_batch(number) for number in range(5)]
    with tf1.Session(graph=found.graph) if cluster is None else servers.session(found.graph) as session:
        session.run(found.initialize)
        start = values(found, session)
        assert [take(found, session, batch) for batch in batches] == [1, 2, 3, 4, 5]
        end = values(found, session)
    assert_close(end, by_hand(start, batches))
    assert not np.allclose(end["weights"], start["weights"], atol=1e-2)  # it did move


def test_replicas_that_take_turns_learn_as_one_would_from_their_batches_in_turn(
    servers: Servers, make_batch: Callable[[int], Batch], values: Values
) -> None:
    first, second = linear(servers.member(0)), linear(servers.member(1))
    batches = [make_batch(number) for number in range(4)]
    with servers.session(first.graph, 0) as one, servers.session(second.graph, 1) as other:
        one.run(first.initialize)
        start = values(first, one)
        turns = [(first, one), (second, other)] * 2
        steps = [take(found, session, batch) for (found, session), batch in zip(turns, batches, strict=True)]
        end = values(first, one)
    assert steps == [1, 2, 3, 4]
    assert_close(end, by_hand(start, batches))


def test_loss_and_accuracy_are_those_before_the_steps_own_update(make_batch: Callable[[int], Batch]) -> None:
    found = replica.build(Settings(learning_rate=0.1), None, mlp, mlp.parameters((784,), 10, 20), (784,), 0, "this run")
    images, labels = make_batch(0)
    feed = {found.images: images, found.labels: labels}
    ways = found.replication
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        before = session.run([ways.loss, ways.accuracy], feed)
        _, *during = session.run([ways.step, ways.loss, ways.accuracy], feed)
        after = session.run(ways.loss, feed)
    assert during == pytest.approx(before)
    assert after != pytest.approx(before[0])
