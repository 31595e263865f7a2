"""Rows per second into training, from files of 13 numbers and 26 categories a row, as those of Criteo.

Each reader gives batches of 512 rows as NumPy arrays by name; nothing is trained. The rounds of all readers are
interleaved; printed are the median and the spread, in 1,000 rows/s.

    .venv/bin/python -m benchmarks.column_rates
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from trainer.data.columns import files
from trainer.data.columns.choices import Choices
from trainer.data.columns.files import Model
from trainer.data.stream import Stream
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode

ROWS, BATCH, ROUNDS = 200_000, 512, 5
NUMBERS, CATEGORIES = [f"i{index}" for index in range(13)], [f"c{index}" for index in range(26)]


def make_table() -> pa.Table:
    """The rows."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {name: random.exponential(10, ROWS).astype(np.float32) for name in NUMBERS}
    texts = np.array([f"{index:08x}" for index in range(10_000)], object)
    columns |= {name: texts[random.zipf(1.3, ROWS) % len(texts)] for name in CATEGORIES}
    return pa.table({**columns, "label": random.integers(0, 2, ROWS)})


def write_records(table: pa.Table, file: Path) -> None:
    """Write the rows as `tf.train.Example`s."""
    with tf.io.TFRecordWriter(str(file)) as writer:
        for row in table.to_pylist():
            features = {name: tf.train.Feature(float_list=tf.train.FloatList(value=[row[name]])) for name in NUMBERS}
            for name in CATEGORIES:
                features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[row[name].encode()]))
            features["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[row["label"]]))
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def of_trainer(place: Path) -> Iterator[Any]:
    """The trainer's own reader, as it reads files that do not fit into memory."""
    found = files.load(str(place), Choices(), Model(), 0).train
    assert isinstance(found, Stream)
    yield None  # the pass that decides about the columns is not measured
    yield from found.once(BATCH)


def of_records(file: Path) -> Iterator[Any]:
    """TFRecord files by `tf.data`, with a shuffle as a training has it."""
    specs: dict[str, Any] = {name: tf.io.FixedLenFeature([], tf.float32) for name in NUMBERS}
    specs |= {name: tf.io.FixedLenFeature([], tf.string) for name in CATEGORIES}
    specs["label"] = tf.io.FixedLenFeature([], tf.int64)
    with eager_mode():
        data = tf.data.TFRecordDataset(str(file)).shuffle(65_536).batch(BATCH)
        parsed = data.map(lambda texts: tf.io.parse_example(texts, specs), tf.data.AUTOTUNE)
        yield None
        for batch in parsed.prefetch(tf.data.AUTOTUNE):
            yield {name: each.numpy() for name, each in batch.items()}


def of_generator(file: Path) -> Iterator[Any]:
    """What users write: a generator over the batches of a Parquet file, as a `tf.data.Dataset`."""

    def rows() -> Iterator[Any]:
        for batch in pa.parquet.ParquetFile(file).iter_batches(BATCH):
            yield {name: batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names}

    kinds = {**dict.fromkeys(NUMBERS, tf.float32), **dict.fromkeys(CATEGORIES, tf.string), "label": tf.int64}
    specs = {name: tf.TensorSpec([None], kind) for name, kind in kinds.items()}
    with eager_mode():
        data = tf.data.Dataset.from_generator(rows, output_signature=specs)
        yield None
        for batch in data.unbatch().shuffle(65_536).batch(BATCH).prefetch(tf.data.AUTOTUNE):
            yield {name: each.numpy() for name, each in batch.items()}


def of_lance(place: Path) -> Iterator[Any]:
    """Rows of a Lance dataset in random order."""
    import lance

    table = lance.dataset(str(place))
    order = np.random.default_rng(0).permutation(ROWS)
    yield None
    for start in range(0, ROWS, BATCH):
        batch = table.take(order[start : start + BATCH])
        yield {name: batch[name].combine_chunks().to_numpy(zero_copy_only=False) for name in batch.column_names}


def rate(reader: Callable[[], Iterator[Any]]) -> float:
    """The rows/s of a pass, at most 10 seconds."""
    batches = reader()
    next(batches)
    begin, rows = time.monotonic(), 0
    for _ in itertools.takewhile(lambda _: time.monotonic() - begin < 10, batches):
        rows += BATCH
    return rows / (time.monotonic() - begin)


def main() -> None:
    """Print a table in Markdown."""
    import lance

    files.IN_MEMORY_BYTES = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tempfile.tempdir = str(folder)
        table = make_table()
        (folder / "parquet").mkdir()
        pa.parquet.write_table(table, folder / "parquet" / "rows.parquet", row_group_size=50_000)
        pa.csv.write_csv(table, folder / "rows.csv")
        write_records(table, folder / "rows.tfrecord")
        lance.write_dataset(table, str(folder / "rows.lance"))
        readers: dict[str, Callable[[], Iterator[Any]]] = {
            "Parquet, the trainer": lambda: of_trainer(folder / "parquet"),
            "CSV, the trainer (from its copy as Parquet)": lambda: of_trainer(folder / "rows.csv"),
            "TFRecord, `tf.data`": lambda: of_records(folder / "rows.tfrecord"),
            "Parquet, a generator of one's own": lambda: of_generator(folder / "parquet" / "rows.parquet"),
            "Lance, rows in random order": lambda: of_lance(folder / "rows.lance"),
        }
        found: dict[str, list[float]] = {each: [] for each in readers}
        for _ in range(ROUNDS):
            for each, reader in readers.items():
                found[each].append(rate(reader) / 1000)
        print("| reader | 1,000 rows/s | least to most |\n| --- | --- | --- |")
        for each, rates in found.items():
            print(f"| {each} | {statistics.median(rates):.0f} | {min(rates):.0f} to {max(rates):.0f} |")
        begin = time.monotonic()
        pa.csv.write_csv(
            pa.table({f"x{n}": np.random.default_rng(n).normal(size=8000) for n in range(1000)}), folder / "wide.csv"
        )
        begin = time.monotonic()
        files.IN_MEMORY_BYTES = 1 << 30
        files.load(str(folder / "wide.csv"), Choices(target="x0"), Model(), 0)
        print(f"\n1,000 columns x 8,000 rows of CSV become examples in {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
