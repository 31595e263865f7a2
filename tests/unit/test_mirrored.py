"""Mirrored replication: several devices of one process equal one device with all of their batches."""

import subprocess
from collections.abc import Callable
from pathlib import Path

RunPython = Callable[..., subprocess.CompletedProcess[str]]

TWO_DEVICES = """
import json, sys
from pathlib import Path
from unittest import mock
import numpy as np
from trainer.tensorflow import tf, tf1
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from tests.unit.conftest import EXAMPLES, MLP, PARAMETERS, SIZE, THREADS, assert_close, pick, values_in
from trainer.data.stream import Stream
from trainer.graph import replica
from trainer.training.server import TaskServer
from trainer.config import Settings

def build(**settings):
    return replica.build(Settings(**settings), None, MLP, PARAMETERS, EXAMPLES, 0, "this run")

mirrored = build(strategy="mirrored", batch_size=SIZE, steps_per_execution=2)
assert build(steps_per_execution=2).mode.devices == 2  # a process without a cluster is the same
with mock.patch("trainer.graph.devices.count_cpus", return_value=1):
    single = build(batch_size=2 * SIZE, steps_per_execution=2)
steps = [[0, 1], [2, 3]], [[4, 5], [6, 7]]  # per execution, the batches of each step
with TaskServer(THREADS).session(mirrored.graph) as session:
    session.run(mirrored.initialize)
    mirrored.batches.begin(session)
    start = mirrored.saver.save(session, Path("start"))
    for execution in steps:
        picks = [[pick(batches[device]) for batches in execution] for device in range(2)]
        feeds = dict(zip(mirrored.batches.feeds(2), picks, strict=True))
        session.run(mirrored.replication.executions[2].step, feeds)
    two_devices = mirrored.saver.save(session, Path("mirrored"))
with TaskServer(THREADS).session(single.graph) as session:
    single.saver.restore(session, start)
    single.batches.begin(session)
    for execution in steps:
        picks = [[*pick(first), *pick(second)] for first, second in execution]
        session.run(single.replication.executions[2].step, {single.batches.feeds(1)[0]: picks})
    one_device = single.saver.save(session, Path("single"))
assert_close(values_in(two_devices), values_in(one_device))
moved = values_in(two_devices)["hidden/weights"] - values_in(start)["hidden/weights"]
assert np.abs(moved).max() > 0.01
devices = {op.device for op in mirrored.graph.get_operations() if op.type == "MatMul"}
assert devices == {"/device:CPU:0", "/device:CPU:1"}, devices
first, second = mirrored.batches.take(1, 0)
assert not np.array_equal(first, second)  # each device has its own order

rows = lambda size, is_full=True: ([np.full((size, 784), n, np.float32), np.zeros(size, np.int32)] for n in range(9))
stream = Stream(EXAMPLES.signature, rows, endless=rows)
streamed = replica.build(Settings(strategy="mirrored", batch_size=SIZE), None, MLP, PARAMETERS, stream, 0, "")
fed = streamed.batches.take(2, 0)
images = [each[0, 0] for each in fed if np.ndim(each) == 2]
assert images == [0, 1, 2, 3]  # no batch goes to both devices
"""


def test_two_devices_equal_one_with_both_batches(run_python: RunPython) -> None:
    root = Path(__file__).parents[2]
    done = run_python("-c", TWO_DEVICES, PYTHONPATH=str(root))
    assert done.returncode == 0, done.stderr
