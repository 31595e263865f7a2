"""The optimizer: the learning rate over a run, and the effect of an update on the parameters."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.checkpoint.saver import Saver
from trainer.config import Settings
from trainer.graph.adam import AdamOptimizer
from trainer.models import Parameter
from trainer.shards import parameters
from trainer.shards.parameters import Rows
from trainer.tensorflow import tf, tf1

Array = npt.NDArray[Any]
SIZE = 4


def rates(steps: list[int], **settings: Any) -> list[float]:
    """The learning rate of the updates after these global steps."""
    optimizer = AdamOptimizer(Settings(learning_rate=0.5, train_steps=100, **settings), shared=False)
    with tf.Graph().as_default(), tf1.Session() as session:
        return [
            float(session.run(tf.convert_to_tensor(optimizer.rate(tf.constant(step), tf.zeros([SIZE])))))
            for step in steps
        ]


def test_a_constant_rate_needs_no_op() -> None:
    assert AdamOptimizer(Settings(learning_rate=0.5), shared=False).rate(None, None) == 0.5


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 0.5, 0.5]), ("linear", [0.5, 0.25, 0.0]), ("cosine", [0.5, 0.25, 0.0])],
)
def test_a_schedule_decays_to_0_at_the_last_step(schedule: str, expected: list[float]) -> None:
    assert rates([0, 50, 100], learning_rate_schedule=schedule) == pytest.approx(expected, abs=1e-6)


def test_a_cosine_is_flat_at_its_ends() -> None:
    start, end = rates([10, 90], learning_rate_schedule="cosine")
    assert start == pytest.approx(0.25 * (1 + math.cos(math.pi * 0.1)))
    assert end == pytest.approx(0.25 * (1 + math.cos(math.pi * 0.9)))


def test_an_asynchronous_run_that_overshoots_has_no_negative_rate() -> None:
    assert rates([103], learning_rate_schedule="linear") == [0.0]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rate_warms_up_before_it_decays(schedule: str) -> None:
    first, half, whole = rates([0, 9, 20], learning_rate_schedule=schedule, warmup_steps=20)
    assert first == pytest.approx(0.5 / 20)
    assert half == pytest.approx(0.25)
    assert whole == pytest.approx(0.5)


def updated(gradients: list[list[float]], read_at: list[int] | None = None, shards: int = 1, **settings: Any) -> Array:
    """Parameters, initially 1, after one update per gradient. `read_at` has the update count at which each was read."""
    shared = read_at is not None
    optimizer = AdamOptimizer(Settings(**settings), shared)
    with tf.Graph().as_default(), tf1.Session() as session:
        layout = parameters.Layout({"a": (SIZE,)}, (SIZE // shards,) * shards)
        created = parameters.create({"a": Parameter((SIZE,))}, layout, [""] * shards, 0, optimizer.slots)
        gradient_input = tf1.placeholder(tf.float32, [SIZE])
        count = tf1.placeholder(tf.int64, [])
        rows: list[Rows] = [()] * shards
        clipped = optimizer.clip(created, tf.split(gradient_input, shards), rows)
        update = optimizer.apply(created, [count] * shards, clipped, rows)
        session.run(tf1.global_variables_initializer())
        session.run([shard.values.assign(tf.ones_like(shard.values)) for shard in created])
        for number, gradient in enumerate(gradients):
            session.run(update, {gradient_input: gradient, count: read_at[number] if read_at else number})
        assert session.run(created[0].updates) == len(gradients)
        return np.concatenate(session.run([shard.values.read_value() for shard in created]))


@pytest.mark.slow
def test_amsgrad_keeps_the_largest_second_moment() -> None:
    gradients = [[100.0] * SIZE, *[[0.0] * SIZE] * 3000, [1.0] * SIZE]
    start = updated(gradients[:-1])
    assert np.abs(updated(gradients) - start).max() < 1e-3
    adam: dict[str, Any] = {"amsgrad": False}
    assert np.abs(updated(gradients, **adam) - updated(gradients[:-1], **adam)).max() < 1e-2
    vanishing = [[1.0] * SIZE, *[[0.0] * SIZE] * 8000, [1e-2] * SIZE]
    adam_update = np.abs(updated(vanishing, **adam) - updated(vanishing[:-1], **adam)).max()
    assert adam_update > 3 * np.abs(updated(vanishing) - updated(vanishing[:-1])).max()


@pytest.mark.parametrize("shards", [1, 2])
def test_a_gradient_is_scaled_down_to_the_norm_over_all_shards(shards: int) -> None:
    gradient = [30.0, 0.0, 40.0, 0.0]
    clipped = updated([gradient], shards=shards, global_clipnorm=5.0, epsilon=1.0)
    assert clipped == pytest.approx(updated([[3.0, 0.0, 4.0, 0.0]], epsilon=1.0))
    assert clipped != pytest.approx(updated([gradient], epsilon=1.0))


def test_a_gradient_below_the_norm_is_not_clipped() -> None:
    gradient = [3.0, 0.0, 4.0, 0.0]
    assert updated([gradient], global_clipnorm=5.1, epsilon=1.0) == pytest.approx(updated([gradient], epsilon=1.0))


def test_weight_decay_shrinks_the_parameters() -> None:
    assert updated([[0.0] * SIZE], weight_decay=0.1, learning_rate=0.5) == pytest.approx(0.95)


def test_a_stale_gradient_has_a_smaller_learning_rate() -> None:
    gradients = [[1.0] * SIZE] * 5
    settings: dict[str, Any] = {"learning_rate": 0.1, "staleness_aware": True}
    fresh = updated(gradients[:4], [0, 1, 2, 3], **settings)
    plain = updated(gradients, [0, 1, 2, 3, 0], **settings | {"staleness_aware": False})
    stale = updated(gradients, [0, 1, 2, 3, 0], **settings)
    assert (fresh - stale) * 4 == pytest.approx(fresh - plain, rel=1e-4)
    one_update_late = updated(gradients, [0, 0, 1, 2, 3], **settings)
    assert one_update_late == pytest.approx(
        updated(gradients, [0, 0, 1, 2, 3], **settings | {"staleness_aware": False})
    )


def test_without_amsgrad_there_are_two_slots() -> None:
    assert AdamOptimizer(Settings(amsgrad=False), shared=False).slots == ("Adam", "Adam_1")


def test_a_rollback_drops_gradients_of_earlier_parameters(tmp_path: Path) -> None:
    settings = Settings(on_divergence="restore", learning_rate=0.1)
    with tf.Graph().as_default(), tf1.Session() as session:
        layout = parameters.Layout({"a": (SIZE,)}, (SIZE,))
        optimizer = AdamOptimizer.create(settings, shared=True, device="", scaled=True)
        shards = parameters.create(
            {"a": Parameter((SIZE,))}, layout, [""], 0, optimizer.slots, drop_stale_gradients=True
        )
        saver = Saver(layout, shards, optimizer.slots, [], can_roll_back=True)
        gradient_input, count = tf1.placeholder(tf.float32, [SIZE]), tf1.placeholder(tf.int64, [])
        update = optimizer.apply(shards, [count], [gradient_input], [()])
        session.run(tf1.global_variables_initializer())
        session.run(update, {gradient_input: np.ones(SIZE), count: 0})
        path = saver.save(session, tmp_path / "model.ckpt")
        session.run(update, {gradient_input: np.ones(SIZE), count: 1})
        assert saver.roll_back(session, path, step=10) == 10
        start = session.run(shards[0].slots)
        session.run(update, {gradient_input: np.full(SIZE, np.nan), count: 2})
        assert np.isfinite(session.run(shards[0].values)).all()
        session.run(update, {gradient_input: np.ones(SIZE), count: 11})
        assert session.run(shards[0].updates) == 12
        assert (session.run(shards[0].slots)[1] > 0.99 * start[1]).all()
