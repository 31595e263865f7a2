"""What Keras models learn in one process, synchronously and asynchronously: `python -m benchmarks.keras_modes`.

Each mode gets the same number of examples: the single process and the asynchronous replicas take as many steps of one
batch as the synchronous ones take batches. Rounds are interleaved; the table has the median and the worst accuracy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.keras_models import MODELS

FILE = Path(__file__).with_name("keras_models.py")
MODES: Mapping[str, Sequence[str]] = {
    "single process": ("train",),
    "synchronous": ("launch", "--ps=1", "--sync_replicas=true"),
    "asynchronous": ("launch", "--ps=1", "--sync_replicas=false"),
}
POINTS = 1.5
"""Percentage points that a mode may be below the single process."""


def accuracy(name: str, mode: str, workers: int, batches: int, seed: int) -> float:
    """The test accuracy at the end of a run."""
    steps = batches // workers if mode == "synchronous" else batches
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainer", *MODES[mode], f"--model={FILE}", f"--train_steps={steps}"]
        command += [f"--seed={seed}", f"--train_dir={folder}/run"]
        command += [] if name.startswith("text") else ["--dataset=digits"]
        command += [] if mode == "single process" else [f"--workers={workers}"]
        environment = {**os.environ, "KERAS_MODEL": name}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=1200)
        return float(json.loads((Path(folder) / "run" / "result.json").read_text())["test_accuracy"])


def main() -> None:
    """Print a line for each run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=600, help="batches of 100 that all replicas train on")
    arguments = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for seed in range(arguments.seeds):
        for name in MODELS:
            for mode in MODES:
                found[name, mode].append(accuracy(name, mode, arguments.workers, arguments.batches, seed))
                print(f"seed {seed}, {name}, {mode}: {found[name, mode][-1]:.4f}", file=sys.stderr, flush=True)
    print(f"| model | {' | '.join(f'{mode}: median, worst' for mode in MODES)} |")
    print("| --- " * (1 + len(MODES)) + "|")
    for name in MODELS:
        least = 100 * min(found[name, "single process"]) - POINTS
        cells = []
        for mode in MODES:
            worst = 100 * min(found[name, mode])
            cells.append(f"{100 * statistics.median(found[name, mode]):.1f}, {worst:.1f}{' (below)' * (worst < least)}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
