"""What TensorFlow's mutable hash tables cost as embeddings that grow: `python -m benchmarks.hash_tables`.

Each kind of table gets the same rows, and then steps of SGD: look up the rows of a batch, and write them changed. The
output is a table with the time of a step, the memory of a row, the longest step while rows were added, and the time to
export the table, which is what a checkpoint of it would take; a variable is read in slices beside training instead.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import psutil

KINDS = ("variable", "MutableHashTable", "DenseHashTable")
DIM, BATCH, STEPS, ADDED = 32, 800, 500, 10_000
"""Numbers of a row, ids of a step, steps that are timed, and rows that are added at once."""


def measure(kind: str, rows: int) -> dict[str, Any]:
    """Fill a table of this kind with rows, and train it."""
    import tensorflow as tf

    before = psutil.Process().memory_info().rss
    read, write, export = _variable(rows) if kind == "variable" else _hash_table(kind)

    def take_step(ids: Any) -> None:
        write(ids, read(ids) - 0.01)

    step = tf.function(take_step)
    longest = 0.0
    for start in range(0, rows, ADDED):
        ids = tf.range(start, min(start + ADDED, rows), dtype=tf.int64)
        values, began = tf.random.uniform([len(ids), DIM]), time.monotonic()
        write(ids, values)
        longest = max(longest, time.monotonic() - began)
    memory = psutil.Process().memory_info().rss - before
    random = np.random.default_rng(0)
    times = []
    for _ in range(STEPS):
        ids = tf.constant(np.unique(random.integers(0, rows, BATCH)))
        began = time.monotonic()
        step(ids)
        times.append(time.monotonic() - began)
    began = time.monotonic()
    export()
    exported = time.monotonic() - began
    return {"step": statistics.median(times), "row": memory / rows, "longest": longest, "export": exported}


def _variable(rows: int) -> tuple[Callable[..., Any], ...]:
    """Functions that read rows by their ids, write them, and export all."""
    import tensorflow as tf

    variable = tf.Variable(tf.zeros([rows, DIM]))

    def write(ids: Any, values: Any) -> None:
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=values)

    return variable.sparse_read, write, lambda: None


def _hash_table(kind: str) -> tuple[Callable[..., Any], ...]:
    """The same, without a number of rows."""
    import tensorflow as tf

    empty: dict[str, Any] = {"empty_key": -1, "deleted_key": -2} if kind == "DenseHashTable" else {}
    table = getattr(tf.lookup.experimental, kind)(tf.int64, tf.float32, tf.zeros([DIM]), **empty)
    return table.lookup, table.insert, table.export


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        print(json.dumps(measure(arguments.kind, arguments.rows)))
        return
    print(f"{arguments.rows:,} rows of {DIM} numbers, {4 * DIM} bytes each; steps of {BATCH} ids\n")
    print("| table | a step, ms | memory of a row, bytes | longest addition of 10,000 rows, s | export, s |")
    print("| --- | --- | --- | --- | --- |")
    for kind in KINDS:
        command = [sys.executable, "-m", "benchmarks.hash_tables", f"--rows={arguments.rows}", f"--kind={kind}"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"| {kind} | {1e3 * found['step']:.2f} | {found['row']:.0f} | {found['longest']:.2f} ", end="")
        print(f"| {found['export']:.1f} |" if found["export"] > 0.01 else "| |", flush=True)


if __name__ == "__main__":
    main()
