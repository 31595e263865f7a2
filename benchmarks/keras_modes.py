"""What Keras models learn in one process, synchronously and asynchronously: `python -m benchmarks.keras_modes`.

Each mode gets the same number of examples. Synchronous replicas take one step with the batches of all workers, so they
are held against a single process with batches of that size; asynchronous ones take a step for each batch. Rounds are
interleaved; the table has the median and the worst accuracy.
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
    "asynchronous": ("launch", "--ps=1", "--sync_replicas=false"),
    "single process, large batches": ("train",),
    "synchronous": ("launch", "--ps=1", "--sync_replicas=true"),
}
REFERENCES: Mapping[str, str] = {
    "asynchronous": "single process",
    "synchronous": "single process, large batches",
}
POINTS = 1.5
"""Percentage points that the worst of a mode may be below the worst of its reference."""
BATCH = 100


def accuracy(name: str, mode: str, workers: int, batches: int, seed: int) -> float:
    """The test accuracy at the end of a run."""
    steps = batches // workers if mode == "synchronous" or "large" in mode else batches
    batch = BATCH * workers if "large" in mode else BATCH
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainer", *MODES[mode], f"--model={FILE}", f"--train_steps={steps}"]
        command += [f"--batch_size={batch}", f"--seed={seed}", f"--train_dir={folder}/run"]
        command += [] if name.startswith("text") else ["--dataset=digits"]
        command += [f"--workers={workers}"] if "launch" in command else []
        environment = {**os.environ, "KERAS_MODEL": name}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=1200)
        return float(json.loads((Path(folder) / "run" / "result.json").read_text())["test_accuracy"])


def main() -> None:
    """Print a line for each run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=600, help=f"batches of {BATCH} that all replicas train on")
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
        cells = []
        for mode in MODES:
            worst = 100 * min(found[name, mode])
            least = 100 * min(found[name, REFERENCES.get(mode, mode)]) - POINTS
            cells.append(f"{100 * statistics.median(found[name, mode]):.1f}, {worst:.1f}{' (below)' * (worst < least)}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
