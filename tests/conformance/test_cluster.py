"""Rows on one parameter server and two workers, each with a batch of all examples.

Synchronous training averages equal gradients, so the values are those of `fit`. Asynchronous training is compared in
learning.
"""

from dataclasses import replace

import pytest

from tests.conformance import runner
from tests.conformance.row import LONG, Row
from tests.conformance.rows import ROWS
from tests.conformance.runner import Reference
from tests.processes.trainers import Trainer

SYNCHRONOUS = [
    "layers.BatchNormalization",
    "layers.Dropout",
    "layers.LSTM",
    "optimizers.Adam",
    "optimizers.Lamb",
    "optimizers.schedules.CosineDecay",
    "programs.inputs_and_outputs_in_dictionaries",
    "programs.layer_with_state",
    "programs.mixed_bfloat16",
    "programs.moving_averages",
    "programs.regularizers",
    "programs.subclassed_model",
    "programs.weights_of_examples",
    "programs.weights_without_decay",
    "tables.adam_clipped_by_global_norm",
    "tables.nothing_but_tables",
    "tables.several_and_one_for_two_inputs",
]
QUICK = {"programs.subclassed_model", "tables.several_and_one_for_two_inputs"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in QUICK else [pytest.mark.long]) for each in SYNCHRONOUS]
)
def test_two_synchronous_workers_train_as_fit(name: str, trainer: Trainer, reference: Reference) -> None:
    row = ROWS[name]
    assert runner.outcome(row, "mine", trainer.folder, reference, lambda path, folder, row: launch(trainer, row)) == ""


@pytest.mark.long
@pytest.mark.parametrize("name", ["layers.Dense", "layers.Dropout", "optimizers.SGD"])
def test_two_asynchronous_workers_learn_as_fit(name: str, trainer: Trainer, reference: Reference) -> None:
    """With arrays: of a dataset each worker has a part, and the first one to start may take most steps with its own."""
    row = replace(ROWS[name], compared="learning", steps=3 * LONG)
    found = runner.outcome(
        row, "mine", trainer.folder, reference, lambda path, folder, row: launch(trainer, row, "--sync_replicas=false")
    )
    assert found == ""


def launch(trainer: Trainer, row: Row, *words: str) -> runner.Run:
    """Train `mine.py` on a cluster."""
    settings = [f"--{name}={value}" for name, value in runner.settings(row).items()]
    trainer.launch("--model=mine.py", "--train_dir=run", "--ps=1", "--workers=2", *settings, *words)
    log = (trainer.folder / "run" / "logs" / "worker-0.log").read_text()
    tables = "tables, " + log.partition("tables, ")[2].partition("\n")[0]
    return runner.Run(trainer.folder / "run", 0, "", True, tables)
