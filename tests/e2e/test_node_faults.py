"""Faults in the throw-away cluster: the run goes on, nothing is lost, and nothing hangs.

Each test has several faults in one run. They need access to the node.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.faults import faults
from benchmarks.faults.cluster import TENSORBOARD
from benchmarks.faults.faults import Fault
from benchmarks.faults.observation import Observation
from benchmarks.faults.release import Release
from benchmarks.faults.run import disturb, hurry_to_end, wait_for_training
from benchmarks.faults.workload import Workload
from hack.cluster.paths import KUBECONFIG

CUT_OFF = dataclasses.replace(faults.CUT_OFF, seconds=8)
STOP = dataclasses.replace(faults.STOP, seconds=8)
WITHOUT_API_SERVER = dataclasses.replace(faults.NO_API_SERVER_KILL, seconds=8)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("workload", "disturbances"),
    [
        pytest.param(
            Workload(
                "asynchronous", ps=2, workers=1, chief=True, evaluator=True, train_steps=12_000, step_seconds=0.05
            ),
            [
                (faults.DELETE, ["ps-0", "evaluator-0", TENSORBOARD]),
                (faults.KILL, ["ps-1", "chief-0"]),
                (CUT_OFF, ["worker-0"]),
            ],
            id="asynchronous, 2 ps and a chief",
            marks=pytest.mark.long,  # the soak of tests/processes has these faults too
        ),
        pytest.param(
            Workload("synchronous", ps=1, workers=2, train_steps=4_000, step_seconds=0.05),
            [(CUT_OFF, ["ps-0"]), (STOP, ["worker-1"]), (faults.DELETE, ["ps-0", "worker-0", "worker-1"])],
            id="synchronous",
        ),
        pytest.param(
            Workload("allreduce", ps=0, workers=2, train_steps=4_000, step_seconds=0.05),
            [(faults.DELETE, ["worker-0"]), (WITHOUT_API_SERVER, ["worker-1"])],
            id="all-reduce",
            marks=pytest.mark.alone,
        ),
    ],
)
def test_a_run_goes_on_after_faults(
    kubeconfig: Path,
    packaged_images: None,
    tmp_path: Path,
    workload: Workload,
    disturbances: Sequence[tuple[Fault, Sequence[str]]],
) -> None:
    if kubeconfig != KUBECONFIG:
        pytest.skip("the node of the cluster in KUBECONFIG is not accessible")
    with contextlib.closing(Release(workload, tmp_path)) as cluster, Observation(cluster) as seen:
        wait_for_training(cluster, seen)
        for fault, targets in disturbances:
            found = disturb(cluster, seen, fault, targets)
            assert not found.problems, (fault.name, targets, found)
            assert found.back is not None, (fault.name, targets, found)
        result = hurry_to_end(cluster, seen)
    assert result["global_step"] >= workload.steps
    assert result["test_accuracy"] > 0.95
