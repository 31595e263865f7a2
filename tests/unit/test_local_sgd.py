"""Local SGD in a cluster of TensorFlow servers in this process: the parameters after rounds of local steps."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest

from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.models.keras_model import KerasModel
from trainer.tensorflow import tf1

from .conftest import EXAMPLES, MLP, PARAMETERS, SIZE, Alone, Save, Servers, Values, assert_close, pick, values_in

pytestmark = pytest.mark.slow

LOCAL_STEPS = 3


class Pair:
    """Two replicas in a run with rounds of three steps, and executions of one and two rounds."""

    def __init__(
        self, servers: Servers, aggregate: int, stack: contextlib.ExitStack, model: Any, parameters: Any
    ) -> None:
        settings = Settings(
            sync_replicas=True,
            replicas_to_aggregate=aggregate,
            local_steps=LOCAL_STEPS,
            batch_size=SIZE,
            steps_per_execution=2 * LOCAL_STEPS,
            train_steps=300,
        )
        self.replicas = [
            replica.build(settings, servers.member(index), model, parameters, EXAMPLES, 0, "this run")
            for index in range(2)
        ]
        self.sessions = [
            stack.enter_context(servers.session(found.graph, index)) for index, found in enumerate(self.replicas)
        ]
        self._threads = [stack.enter_context(ThreadPoolExecutor(max_workers=1)) for _ in range(2)]
        self.chief, self.session = self.replicas[0], self.sessions[0]
        for found, session in zip(self.replicas, self.sessions, strict=True):
            if found is self.chief:
                session.run(found.initialize)
                session.run(found.replication.lead)
            found.batches.begin(session)
            session.run(found.replication.join)

    def steps(self, index: int, *batches: int) -> Any:
        """Start an execution of a replica on these batches. Its result is the global step after them."""
        found, session = self.replicas[index], self.sessions[index]
        picks = dict(zip(found.batches.feeds(len(batches)), [[pick(number) for number in batches]], strict=True))
        execution = found.replication.executions[len(batches)].step
        return self._threads[index].submit(session.run, execution, picks, tf1.RunOptions(timeout_in_ms=60_000))

    def raise_largest_moments(self, value: float) -> None:
        """Set some largest moments to a value above those that the steps of a test reach."""
        with self.chief.graph.as_default():
            for each in tf1.global_variables():
                if each.name.startswith("part") and each.name.endswith("vhat:0"):
                    initial = each.initializer.inputs[1]
                    some = np.where(np.arange(initial.shape[0]) % 2, value, 0)
                    self.session.run(each.initializer, {initial: some})

    def update(self, steps: int) -> int:
        """Run this number of global steps of the chief's update loop."""
        options = tf1.RunOptions(timeout_in_ms=60_000)
        return int(self.session.run(self.chief.replication.updates[steps], options=options))


@pytest.fixture
def pair(servers: Servers) -> Iterator[Callable[..., Pair]]:
    """A function that makes two replicas, with `aggregate` contributions per round."""
    with contextlib.ExitStack() as stack:
        yield lambda aggregate=2, model=MLP, parameters=PARAMETERS: Pair(servers, aggregate, stack, model, parameters)


def average(start: str, *runs: Values) -> Values:
    """The expected values after a round that started from this checkpoint, from the values of each replica."""
    before = values_in(start)
    averages = {name: np.mean([run[name] for run in runs], axis=0) for name in runs[0]}
    largest = {
        name: np.maximum(before[name], averages[name.replace("vhat", "Adam_1")]) for name in before if "vhat" in name
    }
    return {**averages, **largest}


def test_each_round_averages_replicas_that_trained_locally(
    pair: Callable[..., Pair], save: Save, values: Callable[[Replica, Any], Values], alone: Alone
) -> None:
    both = pair()
    both.raise_largest_moments(1e-3)
    for number, (chief_batches, other_batches) in enumerate([((0, 1, 2), (3, 4, 5)), ((6, 7, 8), (9, 0, 2))], start=1):
        start = save(both.chief, both.session)
        executions = [both.steps(0, *chief_batches), both.steps(1, *other_batches)]
        assert both.update(LOCAL_STEPS) == number * LOCAL_STEPS
        assert [execution.result() for execution in executions] == [number * LOCAL_STEPS] * 2
        expected = average(
            start, *[alone(start, *[(batch,) for batch in batches]) for batches in (chief_batches, other_batches)]
        )
        assert expected["global_step"] == number * LOCAL_STEPS
        assert_close(values(both.chief, both.session), expected)


def compiled() -> Any:
    """A network with state, whose optimizer has slots of its own."""
    inputs = keras.layers.Input((784,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="tanh", name="hidden")(inputs))
    network = keras.Model(inputs, keras.layers.Dense(10, name="out")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.RMSprop(0.003, momentum=0.5, global_clipnorm=1.0), loss)
    return network


def test_a_round_averages_what_the_optimizer_of_a_compiled_model_holds(
    pair: Callable[..., Pair], save: Save, values: Callable[[Replica, Any], Values], alone: Alone
) -> None:
    model = KerasModel("mine", compiled, 0, None)
    parameters = model.parameters(EXAMPLES.signature)
    both = pair(model=model, parameters=parameters)
    for batches in [((0, 1, 2), (3, 4, 5)), ((6, 7, 8), (9, 0, 2))]:
        start = save(both.chief, both.session)
        executions = [both.steps(index, *own) for index, own in enumerate(batches)]
        both.update(LOCAL_STEPS)
        _ = [execution.result() for execution in executions]
        apart = [alone(start, *[(each,) for each in own], model=model, parameters=parameters) for own in batches]
        assert any("momentum" in name for name in apart[0])
        assert_close(values(both.chief, both.session), average(start, *apart))


def test_an_execution_of_two_rounds_equals_two_executions(
    pair: Callable[..., Pair], values: Callable[[Replica, Any], Values]
) -> None:
    ends = []
    for rounds in ([((0, 1, 2), (3, 4, 5)), ((6, 7, 8), (9, 0, 2))], [((0, 1, 2, 6, 7, 8), (3, 4, 5, 9, 0, 2))]):
        both = pair()
        both.raise_largest_moments(1e-3)
        for chief_batches, other_batches in rounds:
            executions = [both.steps(0, *chief_batches), both.steps(1, *other_batches)]
            both.update(len(chief_batches))
            steps = {int(execution.result()) for execution in executions}
        assert steps == {2 * LOCAL_STEPS}
        ends.append(values(both.chief, both.session))
    assert_close(*ends)


def test_with_a_backup_a_round_has_one_contribution(
    pair: Callable[..., Pair], save: Save, values: Callable[[Replica, Any], Values], alone: Alone
) -> None:
    both = pair(aggregate=1)
    start = save(both.chief, both.session)
    chief_steps = both.steps(0, 0, 1, 2)
    assert both.update(LOCAL_STEPS) == LOCAL_STEPS
    assert chief_steps.result() == LOCAL_STEPS
    other_steps = both.steps(1, 3, 4, 5)
    assert both.update(LOCAL_STEPS) == 2 * LOCAL_STEPS
    assert other_steps.result() == 2 * LOCAL_STEPS
    assert_close(values(both.chief, both.session), alone(start, *[(number,) for number in range(6)]))
