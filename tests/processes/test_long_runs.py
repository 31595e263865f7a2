"""Long runs: the final model is as good as the best of the run, in every training mode and on a busy machine.

Adam can diverge after tens of thousands of steps, which a short run does not show. `best` in result.json is the best
evaluation of the whole run.
"""

import json
from typing import Any

import pytest

from tests.processes.trainers import Trainer

CI_STEPS, CI_PATIENCE = 30_000, 540.0
STEPS, PATIENCE = 100_000, 3000.0
"""For the long tests. At 170 steps/s, a third of the rate of the slowest mode on two idle cores, this takes 600 s."""
SLOW_STEPS = 50_000
"""For synchronous training on a busy machine. At 150 steps/s this takes 330 s; all tests take less than an hour."""
ASYNCHRONOUS = ["--ps", "1", "--workers", "2"]
SYNCHRONOUS = [*ASYNCHRONOUS, "--sync_replicas"]


def train_alone(trainer: Trainer, steps: int, patience: float) -> dict[str, Any]:
    """Run `trainer train` as a single process; return the result."""
    code, output = trainer.run("train", "--train_dir", "run", "--train_steps", str(steps), patience=patience)
    assert code == 0, output
    result: dict[str, Any] = json.loads((trainer.folder / "run" / "result.json").read_text())
    return result


def check(result: dict[str, Any], steps: int) -> None:
    """Check that all steps ran and that the last evaluation is good and within one point of the best."""
    best, last = result["best"], result["last"]
    assert last["global_step"] >= steps
    assert last["test_accuracy"] >= best["test_accuracy"] - 0.01, f"last {last}, best {best}"
    assert last["test_accuracy"] >= 0.97, f"last {last}, best {best}"


@pytest.mark.timeout(CI_PATIENCE + 60)
def test_a_single_process_is_as_good_at_the_end_as_at_its_best(trainer: Trainer) -> None:
    check(train_alone(trainer, CI_STEPS, CI_PATIENCE), CI_STEPS)


@pytest.mark.long
@pytest.mark.timeout(CI_PATIENCE + 60)
def test_asynchronous_workers_are_as_good_at_the_end_as_at_their_best(trainer: Trainer) -> None:
    check(trainer.launch(*ASYNCHRONOUS, "--train_steps", str(CI_STEPS), patience=CI_PATIENCE), CI_STEPS)


@pytest.mark.long
@pytest.mark.timeout(PATIENCE + 60)
def test_a_single_process_is_as_good_after_100000_steps(trainer: Trainer) -> None:
    check(train_alone(trainer, STEPS, PATIENCE), STEPS)


@pytest.mark.long
@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(ASYNCHRONOUS, id="asynchronous, 2 workers"),
        pytest.param(["--ps", "1", "--workers", "4"], id="asynchronous, 4 workers"),
        pytest.param(SYNCHRONOUS, id="synchronous"),
        pytest.param([*SYNCHRONOUS, "--local_steps", "8"], id="local steps"),
        pytest.param(["--strategy", "allreduce", "--workers", "2"], id="all-reduce"),
    ],
)
def test_a_cluster_is_as_good_after_100000_steps(trainer: Trainer, words: list[str]) -> None:
    check(trainer.launch(*words, "--train_steps", str(STEPS), patience=PATIENCE), STEPS)


@pytest.mark.long
@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize(
    ("words", "steps"),
    [
        pytest.param(ASYNCHRONOUS, STEPS, id="asynchronous"),
        pytest.param(SYNCHRONOUS, SLOW_STEPS, id="synchronous"),
    ],
)
def test_a_cluster_on_a_busy_machine_is_as_good_at_the_end_as_at_its_best(
    trainer: Trainer, words: list[str], steps: int
) -> None:
    check(trainer.launch(*words, "--train_steps", str(steps), patience=PATIENCE), steps)
