"""The type of parameters and gradients between replicas and parameter servers."""

from typing import Any

import numpy as np
import pytest

from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.tensorflow import tf

from .conftest import EXAMPLES, MLP, PARAMETERS, SIZE, Servers, Values
from .test_replica import OTHER, ancestors, both_modes, build, messages_of_the_worker


def vectors_on_the_wire(target: Any) -> set[str]:
    """The types of the vectors that cross from one task to another."""
    return {
        tensor.dtype.name
        for operation in ancestors(target)
        for tensor in operation.inputs
        if tensor.dtype != tf.resource and tensor.shape.rank == 1 and (tensor.shape[0] or 0) > 100
        if tensor.device.partition("/device")[0] != operation.device.partition("/device")[0]
    }


@both_modes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_and_gradients_travel_in_the_chosen_type(sync: bool, dtype: str) -> None:
    execution = build(OTHER, sync, wire_dtype=dtype).replication.executions[3]
    assert vectors_on_the_wire(execution.step) == {dtype}
    assert len(messages_of_the_worker(execution.step)) <= 3 * 2 * 2 + 2


def test_a_clipped_gradient_crosses_once() -> None:
    execution = build(OTHER, wire_dtype="bfloat16", global_clipnorm=1.0).replication.executions[3]
    assert vectors_on_the_wire(execution.step) == {"bfloat16"}
    assert len(messages_of_the_worker(execution.step)) <= 3 * 2 * 2 + 2


def train(servers: Servers, values: Any, dtype: Any, steps: int) -> tuple[Values, Values, float]:
    """The values before and after these steps of one worker, and the loss of the last batch."""
    settings = Settings(batch_size=SIZE, steps_per_execution=steps, wire_dtype=dtype)
    found: Replica = replica.build(settings, servers.member(0, workers=1), MLP, PARAMETERS, EXAMPLES, 0, "this run")
    with servers.session(found.graph) as session:
        session.run(found.initialize)
        found.batches.begin(session)
        before = values(found, session)
        execution = found.replication.executions[steps]
        feeds = dict(zip(found.batches.feeds(steps), found.batches.take(steps, 0), strict=True))
        _, loss = session.run([execution.step, execution.loss], feeds)
        return before, values(found, session), float(loss)


@pytest.mark.slow
def test_rounding_on_the_wire_changes_training_little_and_the_parameters_keep_their_precision(
    servers: Servers, values: Any
) -> None:
    before, exact, exact_loss = train(servers, values, "float32", 30)
    again, rounded, loss = train(servers, values, "bfloat16", 30)
    kernel = "hidden/weights"
    assert np.array_equal(before[kernel], again[kernel])
    first, second = ((after[kernel] - before[kernel]).ravel() for after in (exact, rounded))
    assert np.corrcoef(first, second)[0, 1] > 0.95
    assert not np.array_equal(first, second)
    assert loss == pytest.approx(exact_loss, rel=0.05)
    kept = rounded[kernel]
    assert (kept != kept.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)).mean() > 0.9
