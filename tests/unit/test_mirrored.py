"""Local replication: several devices of one process learn as one device that is given all of their batches."""

import subprocess
from collections.abc import Callable
from pathlib import Path

RunPython = Callable[..., subprocess.CompletedProcess[str]]

TWO_DEVICES = """
import json, sys
from pathlib import Path
import numpy as np
from trainer.tensorflow import tf, tf1
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from tests.unit.conftest import EXAMPLES, PARAMETERS, SIZE, THREADS, assert_close, pick, values_in
from trainer.graph import replica
from trainer.training import server
from trainer.config import Settings
from trainer.models import mlp

def build(**settings):
    return replica.build(Settings(**settings), None, mlp, PARAMETERS, EXAMPLES, 0, "this run")

local = build(strategy="mirrored", batch_size=SIZE, steps_per_execution=2)
alone = build(batch_size=2 * SIZE, steps_per_execution=2)
steps = [[0, 1], [2, 3]], [[4, 5], [6, 7]]  # of each call, the batches of each step
with server.open_session(local.graph, None, THREADS) as session:
    session.run(local.initialize)
    local.batches.begin(session)
    start = local.saver.save(session, Path("start"))
    for call in steps:
        picks = [[pick(batches[device]) for batches in call] for device in range(2)]
        session.run(local.replication.executions[2].step, dict(zip(local.batches.feeds, picks, strict=True)))
    together = local.saver.save(session, Path("local"))
with server.open_session(alone.graph, None, THREADS) as session:
    alone.saver.restore(session, start)
    alone.batches.begin(session)
    for call in steps:
        picks = [[*pick(first), *pick(second)] for first, second in call]
        session.run(alone.replication.executions[2].step, {alone.batches.feeds[0]: picks})
    by_one = alone.saver.save(session, Path("alone"))
assert_close(values_in(together), values_in(by_one))
moved = values_in(together)["hidden/weights"] - values_in(start)["hidden/weights"]
assert np.abs(moved).max() > 0.01
devices = {op.device for op in local.graph.get_operations() if op.type == "MatMul"}
assert devices == {"/device:CPU:0", "/device:CPU:1"}, devices
own = [local.batches.take(1), local.batches.take(1)]
assert not np.array_equal(own[0][0], own[0][1])  # each its own shuffling
"""


def test_two_devices_learn_as_one_that_averages_their_batches(run_python: RunPython) -> None:
    root = Path(__file__).parents[2]
    done = run_python("-c", TWO_DEVICES, PYTHONPATH=str(root))
    assert done.returncode == 0, done.stderr
