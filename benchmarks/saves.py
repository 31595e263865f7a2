"""Measure what checkpoints cost training: the rate of a small model, and the pause of one whose checkpoint takes 1 GB.

    python -m benchmarks.saves [--rounds 4]     twenty minutes on two cores

Both are the packaged network. The small one trains on 1 parameter server and 2 workers, once with the default, which
saves it every 3 seconds, and once without a save before the end. The large one trains on 1 parameter server and 1
worker, once with three saves in mid-run and once with none; what the steps take longer is what the saves cost. The
order alternates between rounds, because the machine's speed drifts.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import programs
from benchmarks.learning import CLASSES, PIXELS
from benchmarks.processes import FailedError
from benchmarks.programs import Data
from benchmarks.report import spread
from benchmarks.workload import Workload

NO_SAVES = "--save_seconds=100000"
SMALL = Workload("asynchronous", steps=20_000)
BYTES, BYTES_OF_PARAMETER = 1e9, 4 * 4
"""The default optimizer keeps three values beside each parameter."""
HIDDEN_UNITS = int(BYTES / BYTES_OF_PARAMETER / (PIXELS + 1 + CLASSES))
LARGE = Workload("asynchronous", workers=1, hidden_units=HIDDEN_UNITS, steps=80)
SAVES = 3
"""Of the large model, before the end of the run, which saves in any case."""


@dataclass(frozen=True)
class Side:
    """A way to save checkpoints."""

    name: str
    flags: tuple[str, ...]


SAVING = Side("default", ())
SAVING_LARGE = Side(f"{SAVES} saves", (f"--save_steps={LARGE.steps // (SAVES + 1)}",))
NOT_SAVING = Side("no saves", (NO_SAVES, "--save_share=0"))


def main() -> int:
    """Run all rounds and print both costs; returns 0, or 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="runs with and without saves (default: 4)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        data = programs.prepare(Path(folder))
        try:
            ratios = [with_saves / without for with_saves, without in _rounds(SMALL, SAVING, arguments.rounds, data)]
            seconds = [
                (LARGE.steps / with_saves - LARGE.steps / without) / SAVES
                for with_saves, without in _rounds(LARGE, SAVING_LARGE, arguments.rounds, data)
            ]
        except FailedError as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
    print(f"small model, a save every 3 s: {spread(ratios, '{:.3f}')} of the rate without saves")
    print(f"checkpoint of {BYTES / 1e9:g} GB: {spread(seconds, '{:.2f}')} s of training for each save")
    return 0


def _rounds(workload: Workload, saving: Side, rounds: int, data: Data) -> list[tuple[float, float]]:
    """The rates with and without saves, in steps/s, of each round."""
    found = []
    for number in range(rounds):
        sides = [saving, NOT_SAVING]
        rates = {}
        for side in sides if number % 2 else sides[::-1]:
            rates[side] = programs.run_trainer(workload, data, side.flags).rate
            print(f"hidden {workload.hidden_units:6}  {side.name:10} {rates[side]:8.2f} steps/s", flush=True)
        found.append((rates[saving], rates[NOT_SAVING]))
    return found


if __name__ == "__main__":
    sys.exit(main())
