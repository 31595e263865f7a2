"""Replicas with several devices: one gradient of all of them, as of one device with all of their batches."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("case", ["synchronous", "asynchronous", "local", "allreduce", "tables"])
def test_replicas_with_four_devices_equal_replicas_with_larger_batches(case: str, run_python: RunPython) -> None:
    """Two workers; where a step waits for both, also one process with eight batches."""
    done = run_python("-m", "tests.unit.on_devices", case, PYTHONPATH=str(Path(__file__).parents[2]))
    assert done.returncode == 0, done.stderr[-3000:]


def test_devices_that_a_model_file_hides_are_not_used(run_python: RunPython) -> None:
    """`tf.config.set_visible_devices` in a file counts for sessions too, whose options name the GPUs by number.

    A machine without GPUs has the ones that TensorFlow is told of here.
    """
    program = """
from tensorflow.python.eager import context
from trainer.graph import devices
from trainer.tensorflow import tf
from trainer.training import server, threads
tf.config.list_physical_devices()
own = context.context()
gpus = [context.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(3)]
own._physical_devices += gpus
own._visible_device_list += gpus
assert (len(devices.configured("GPU")), devices.visible_gpus()) == (3, "")
tf.config.set_visible_devices(gpus[1:], "GPU")
assert (len(devices.configured("GPU")), devices.visible_gpus()) == (2, "1,2")
options = server._session_config(threads.Threads(1, 1), [])
assert (options.device_count["GPU"], options.gpu_options.visible_device_list) == (2, "1,2")
tf.config.set_visible_devices([], "GPU")
assert (len(devices.configured("GPU")), devices.visible_gpus()) == (0, "")
"""
    done = run_python("-c", program, PYTHONPATH=str(Path(__file__).parents[2]))
    assert done.returncode == 0, done.stderr[-2000:]
