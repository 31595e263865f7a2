"""What `python -m benchmarks.growing_rows` measures, by TensorFlow Recommenders Addons.

It needs TensorFlow 2.16, so it runs in an environment of its own:

python3.11 -m venv tfra
tfra/bin/pip install tensorflow-cpu==2.16.2 tf-keras==2.16.0 tensorflow-recommenders-addons==0.8.1 psutil
tfra/bin/python benchmarks/tfra_rows.py
"""

import argparse
import os
import time

os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}

import numpy as np
import psutil
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding

DIM, BATCH = 32, 8192
IDS = tf.TensorSpec([None], tf.int64)


def main() -> None:
    """Read batches of new ids, update them by Adagrad, and print the rate, the longest of these and the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=2_000_000)
    wanted = parser.parse_args().ids
    kinds = {"dim": DIM, "key_dtype": tf.int64, "value_dtype": tf.float32, "init_size": BATCH}
    initializer = tf.random_uniform_initializer(-0.05, 0.05)
    values = dynamic_embedding.get_variable("values", initializer=initializer, **kinds)
    slots = dynamic_embedding.get_variable("slots", initializer=0.1, **kinds)
    gradients = tf.ones([BATCH, DIM])

    @tf.function(input_signature=[IDS])  # type: ignore[untyped-decorator]
    def read(ids: tf.Tensor) -> tf.Tensor:
        return values.lookup(ids)

    @tf.function(input_signature=[IDS, tf.TensorSpec([None, DIM], tf.float32)])  # type: ignore[untyped-decorator]
    def update(ids: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        gradient = gradients[: tf.shape(ids)[0]]
        squares = slots.lookup(ids) + gradient * gradient
        values.upsert(ids, rows - 0.01 * gradient * tf.math.rsqrt(squares + 1e-7))
        slots.upsert(ids, squares)
        return tf.constant(0)

    random, process = np.random.default_rng(0), psutil.Process()
    before, begun, seen, longest = process.memory_info().rss, time.perf_counter(), 0, 0.0
    while seen < wanted:
        ids = tf.constant(np.unique(random.integers(-(2**62), 2**62, BATCH)))
        start = time.perf_counter()
        rows = read(ids)
        middle = time.perf_counter()
        update(ids, rows)
        longest = max(longest, middle - start, time.perf_counter() - middle)
        seen += len(ids)
    rate, memory = seen / (time.perf_counter() - begun), (process.memory_info().rss - before) / seen
    print(f"{seen:,} ids: {rate:,.0f} ids/s, longest op {longest * 1e3:.0f} ms, {memory:.0f} bytes of memory a row")


if __name__ == "__main__":
    main()
