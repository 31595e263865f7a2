"""Faults of `make goodput` that other tests do not have, and a soak: the run goes on, and nothing is lost."""

import contextlib
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults import faults
from benchmarks.faults.faults import Fault
from benchmarks.faults.observation import Observation
from benchmarks.faults.run import disturb, hurry_to_end, small_volume, start, wait_for_training
from benchmarks.faults.workload import Workload

ROOT = Path(__file__).parents[2]
STOP = dataclasses.replace(faults.STOP, seconds=8)
FULL = dataclasses.replace(faults.FULL, seconds=12)  # summaries are written every 5 s
SERVERS_AND_CHIEF = ("ps-0", "ps-1", "chief-0")
SECONDS = 60


@pytest.mark.long  # the soak and `make e2e` have these kinds of faults too
@pytest.mark.parametrize(
    ("workload", "fault", "targets"),
    [
        pytest.param(
            Workload("synchronous", ps=1, workers=2, seconds=SECONDS),
            faults.KILL,
            ("ps-0", "worker-0", "worker-1"),
            id="all tasks killed, synchronous",
        ),
        pytest.param(
            Workload("asynchronous", ps=2, workers=1, chief=True, seconds=SECONDS),
            faults.CUT_CHECKPOINT,
            SERVERS_AND_CHIEF,
            id="newest checkpoint cut short, two ps and the chief killed, asynchronous",
        ),
        pytest.param(
            Workload("synchronous", ps=1, workers=2, seconds=SECONDS),
            STOP,
            ("ps-0",),
            id="ps stopped, synchronous",
        ),
        pytest.param(
            Workload("allreduce", ps=0, workers=2, seconds=SECONDS),
            faults.KILL,
            ("worker-0", "worker-1"),
            id="all tasks killed, all-reduce",
        ),
        pytest.param(
            Workload("asynchronous", ps=1, workers=2, evaluator=True, seconds=SECONDS),
            faults.TERMINATE,
            ("ps-0", "evaluator-0"),
            id="ps and evaluator terminated, asynchronous",
        ),
        pytest.param(Workload("asynchronous", seconds=SECONDS), FULL, (), id="volume full, asynchronous"),
    ],
)
def test_a_run_goes_on_after_a_fault(
    tmp_path: Path, workload: Workload, fault: Fault, targets: tuple[str, ...]
) -> None:
    with (
        small_volume(tmp_path / "run") if fault is FULL else contextlib.nullcontext(),
        contextlib.closing(start("processes", workload, tmp_path)) as cluster,
        Observation(cluster) as seen,
    ):
        wait_for_training(cluster, seen)
        cost = disturb(cluster, seen, fault, targets)
        result = hurry_to_end(cluster, seen)
    assert not cost.problems, cost
    assert cost.back is not None, cost
    assert result["global_step"] >= workload.steps
    assert result["test_accuracy"] > 0.95


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("minutes", "seed"),
    [
        # On a quiet machine: both workers stopped; the chief and a worker killed; a checkpoint cut short, and both ps
        # and the chief killed.
        pytest.param("0.75", "260", id="45 seconds"),
        pytest.param("3", "7", id="3 minutes", marks=pytest.mark.long),
    ],
)
def test_a_soak_loses_nothing(minutes: str, seed: str) -> None:
    command = [sys.executable, "-m", "benchmarks.faults.soak", "--minutes", minutes, "--seed", seed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: nothing lost, nothing hung, no growth" in done.stdout
