"""Asynchronous replication: the parameters after a number of steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.models import Parameter, mlp
from trainer.models.ops_model import OpsModel
from trainer.shards import parameters
from trainer.tensorflow import tf1

from .conftest import EXAMPLES, MLP, PARAMETERS, SIZE, Alone, Save, Servers, Values, pick

ValuesOf = Callable[[Replica, Any], Values]


class Linear:
    """A linear model, whose gradient is a single expression."""

    def parameters(self, image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
        return {"weights": Parameter((*image_shape, classes), 0.1), "biases": Parameter((classes,))}

    def logits(self, parameters: Mapping[str, Any], images: Any) -> Any:
        return images @ parameters["weights"] + parameters["biases"]


def linear(cluster: Cluster | None, steps_per_execution: int = 1) -> Replica:
    settings = Settings(learning_rate=0.01, batch_size=SIZE, steps_per_execution=steps_per_execution)
    return replica.build(
        settings, cluster, OpsModel("linear", Linear(), 0), Linear().parameters((784,), 10, 0), EXAMPLES, 0, "this run"
    )


def reference_amsgrad(start: Mapping[str, npt.NDArray[Any]], batches: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
    """AMSGrad (Reddi, Kale and Kumar, 2018) on the cross entropy, in the form of Adam at the end of section 2."""
    values = {name: start[name].astype(np.float64) for name in ("weights", "biases")}
    first = {name: np.zeros_like(value) for name, value in values.items()}
    second = {name: np.zeros_like(value) for name, value in values.items()}
    largest = {name: np.zeros_like(value) for name, value in values.items()}
    for step, number in enumerate(batches, start=1):
        images, labels = EXAMPLES.inputs[pick(number)], EXAMPLES.targets[pick(number)]
        powers = np.exp(images @ values["weights"] + values["biases"])
        error = (powers / powers.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(labels)
        for name, gradient in (("weights", images.T @ error), ("biases", error.sum(axis=0))):
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            rate = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            largest[name] = np.maximum(largest[name], second[name])
            values[name] = values[name] - rate * first[name] / (np.sqrt(largest[name]) + 1e-8)
    return values


def take(found: Replica, session: Any, *batches: int) -> int:
    """Run an execution on these batches."""
    picks = dict(zip(found.batches.feeds(len(batches)), [[pick(number) for number in batches]], strict=True))
    return int(session.run(found.replication.executions[len(batches)].step, picks))


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        assert np.allclose(found[name], value, rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.parametrize("place", ["alone", "in a cluster"])
def test_one_replica_is_amsgrad(place: str, steps_per_execution: int, servers: Servers, values: ValuesOf) -> None:
    cluster = None if place == "alone" else servers.member(0, workers=1)
    found = linear(cluster, steps_per_execution)
    with tf1.Session(graph=found.graph) if cluster is None else servers.session(found.graph) as session:
        session.run(found.initialize)
        found.batches.begin(session)
        start = values(found, session)
        full = range(steps_per_execution)
        assert take(found, session, *full) == steps_per_execution
        assert take(found, session, *full) == 2 * steps_per_execution
        assert take(found, session, 7) == 2 * steps_per_execution + 1  # an execution of a single step
        end = values(found, session)
    assert_close(end, reference_amsgrad(start, [*full, *full, 7]))
    assert not np.allclose(end["weights"], start["weights"], atol=1e-2)  # the parameters have changed


def test_interleaved_replicas_equal_one_with_all_batches(servers: Servers, values: ValuesOf) -> None:
    first, second = linear(servers.member(0), 2), linear(servers.member(1), 2)
    with servers.session(first.graph, 0) as one, servers.session(second.graph, 1) as other:
        one.run(first.initialize)
        first.batches.begin(one)
        second.batches.begin(other)
        start = values(first, one)
        turns = [(first, one, (0, 1)), (second, other, (2,)), (first, one, (3,)), (second, other, (4, 5))]
        steps = [take(found, session, *batches) for found, session, batches in turns]
        end = values(first, one)
    assert steps == [2, 3, 4, 6]
    assert_close(end, reference_amsgrad(start, range(6)))


def test_replicas_with_several_shards_on_each_server_equal_one_process(
    servers: Servers, save: Save, values: ValuesOf, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "CHUNK_SIZE", parameters.MIN_SHARD_SIZE)
    settings = Settings(batch_size=SIZE, steps_per_execution=3)
    first, second = (
        replica.build(settings, servers.member(index), MLP, PARAMETERS, EXAMPLES, 0, "this run") for index in (0, 1)
    )
    with servers.session(first.graph, 0) as one, servers.session(second.graph, 1) as other:
        one.run(first.initialize)
        first.batches.begin(one)
        second.batches.begin(other)
        start = save(first, one)
        taken = [take(first, one, 0, 1, 2), take(second, other, 3), take(second, other, 4, 5), take(first, one, 6)]
        end, restored = values(first, one), save(first, one)
        first.saver.restore(one, restored)
        assert all(np.array_equal(value, end[name]) for name, value in values(first, one).items())
    assert taken == [3, 4, 6, 7]
    assert_close(end, alone(start, *((number,) for number in range(7))))


def test_loss_and_accuracy_are_of_the_last_batch_before_its_update() -> None:
    settings = Settings(learning_rate=0.1, batch_size=SIZE, steps_per_execution=2)
    found = replica.build(settings, None, MLP, mlp.parameters((784,), 10, 20), EXAMPLES, 0, "this run")
    once, twice = (found.replication.executions[steps] for steps in (1, 2))
    (picks,) = found.batches.feeds(1)
    with tf1.Session(graph=found.graph) as session:
        found.batches.begin(session)
        session.run(found.initialize)
        first = session.run([once.loss, once.metrics["accuracy"]], {picks: [pick(0)]})
        session.run(once.step, {picks: [pick(1)]})
        second = session.run([once.loss, once.metrics["accuracy"]], {picks: [pick(0)]})
        session.run(found.initialize)
        _, *during = session.run([once.step, once.loss, once.metrics["accuracy"]], {picks: [pick(0)]})
        session.run(found.initialize)
        fetches = [twice.step, twice.loss, twice.metrics["accuracy"]]
        _, *during_second = session.run(fetches, {picks: [pick(1), pick(0)]})
    assert during == pytest.approx(first)
    assert during_second == pytest.approx(second)
    assert first[0] != pytest.approx(second[0])
