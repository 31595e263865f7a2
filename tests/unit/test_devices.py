"""Replicas with several devices: one gradient of all of them, as of one device with all of their batches."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("case", ["synchronous", "asynchronous", "local", "allreduce", "tables"])
def test_replicas_with_four_devices_equal_replicas_with_larger_batches(case: str, run_python: RunPython) -> None:
    """Two workers; where a step waits for both, also one process with eight batches."""
    done = run_python("-m", "tests.unit.on_devices", case, PYTHONPATH=str(Path(__file__).parents[2]))
    assert done.returncode == 0, done.stderr[-3000:]
