"""How a table that grows takes millions of ids: `python -m benchmarks.growing_rows`.

Batches of new ids are read and updated by Adagrad, 32 numbers a row, as a parameter server does. The table has, for
each power of ten and the end, the longest of the reads since the line before, the bytes of the index and of all memory
for each row. With --rounds_of_ids 2 the table takes half of the ids, so that the least recently used rows leave.
"""

import argparse
import time

import numpy as np
import psutil

from trainer.kernels.dynamic_table import DynamicTable
from trainer.kernels.row_update import RowUpdate
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode

DIM = 32


def measure(ids: int, batch: int, capacity: int) -> None:
    """Print the table."""
    table, rule = DynamicTable("rows"), RowUpdate("adagrad", lambda rate, _: [rate, 1e-7], 0.0, float("inf"))
    table.create(DIM, [0.1], capacity, 1, 0, ("uniform", -0.05, 0.05), 0)
    random, process = np.random.default_rng(0), psutil.Process()
    gradients, before = tf.ones([batch * DIM]), process.memory_info().rss
    print("| ids | rows | ids/s | longest read of a batch, ms | bytes of the index a row | bytes of memory a row |")
    print("| --- | --- | --- | --- | --- | --- |")
    seen, longest, line, begun, at = 0, 0.0, 100_000, time.perf_counter(), 0
    while seen < ids:
        keys = tf.constant(np.unique(random.integers(-(2**62), 2**62, batch)))
        start = time.perf_counter()
        table.read(keys, tf.constant(seen // batch, tf.int64))
        longest = max(longest, time.perf_counter() - start)
        size = len(keys)
        rule.add_dynamic(table.name, keys, gradients[: size * DIM], 0.01, tf.constant(0, tf.int64), False)
        seen += size
        if seen >= line or seen >= ids:
            counts, now = table.counts().numpy(), time.perf_counter()
            memory = (process.memory_info().rss - before) / counts[1]
            rate = (seen - at) / (now - begun)
            cells = [f"{seen:,}", f"{counts[1]:,}", f"{rate:,.0f}", f"{longest * 1e3:.1f}"]
            cells += [f"{counts[4] / counts[1]:.0f}", f"{memory:.0f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
            longest, line, begun, at = 0.0, line * 10, time.perf_counter(), seen


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=50_000_000)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--rounds_of_ids", type=int, default=1)
    given = parser.parse_args()
    with eager_mode():
        measure(given.ids, given.batch, given.ids // given.rounds_of_ids)


if __name__ == "__main__":
    main()
