"""Examples as rows of 4-byte numbers in a file, which every program reads without code in its input pipeline.

A row has the target, numbers, ids and a history of ids. Numbers and the target are float32, ids are int32. This module
imports NumPy alone, because the program for PyTorch reads by it too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]
BLOCK = 256
"""A file has a multiple of this many rows. A batch has a multiple of it, too."""
TRAIN, TEST, ABOUT = "train.rows", "test.rows", "about.json"
"""The files of a folder: the examples to train on, those held out, and what they are."""


@dataclass(frozen=True)
class Form:
    """What a row has."""

    numbers: int
    sizes: Mapping[str, int]
    """How many values each id may have."""
    history: int = 0
    """The length of the history, whose ids are items."""

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return 1 + self.numbers + len(self.sizes) + self.history

    def inputs(self, rows: Any) -> dict[str, Any]:
        """The inputs of a model by name, from rows of NumPy."""
        first = 1 + self.numbers
        found = {name: rows[:, first + index] for index, name in enumerate(self.sizes)}
        if self.numbers:
            found["numbers"] = np.ascontiguousarray(rows[:, 1:first]).view(np.float32)
        if self.history:
            found["history"] = rows[:, -self.history :]
        return found

    def targets(self, rows: Any) -> Any:
        """The targets of rows of NumPy, float32 [n, 1]."""
        return np.ascontiguousarray(rows[:, :1]).view(np.float32)

    def rows(self, targets: Any, numbers: Any, ids: Mapping[str, Any], history: Any = None) -> Rows:
        """Rows of these columns."""
        found = np.empty((len(targets), self.width), np.int32)
        found[:, 0] = targets.astype(np.float32).view(np.int32)
        found[:, 1 : 1 + self.numbers] = numbers.astype(np.float32).view(np.int32)
        for index, name in enumerate(self.sizes):
            found[:, 1 + self.numbers + index] = ids[name]
        if self.history:
            found[:, -self.history :] = history
        return found


@dataclass(frozen=True)
class About:
    """What the examples of a folder are."""

    form: Form
    best: float | None = None
    """The AUC of the true probabilities of the held-out examples, if they are known."""


def write(folder: Path, about: About, train: Iterable[Rows], test: Iterable[Rows]) -> None:
    """Write a folder. The last rows of a split that do not fill a block are filled up with its first ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in ((TRAIN, train), (TEST, test)):
        with (folder / name).open("wb") as file:
            count, first = 0, None
            for rows in parts:
                first = rows[:BLOCK] if first is None else first
                file.write(np.ascontiguousarray(rows).data)
                count += len(rows)
            if name == TRAIN and first is not None and count % BLOCK:
                file.write(np.resize(first, (BLOCK - count % BLOCK, about.form.width)).data)
    (folder / ABOUT).write_text(json.dumps(asdict(about)))


def read_about(folder: Path) -> About:
    """What the examples of this folder are."""
    found = json.loads((folder / ABOUT).read_text())
    return About(Form(**found["form"]), found["best"])


def read(file: Path, form: Form) -> Rows:
    """The rows of a file, which stay on the disk until they are used."""
    return np.memmap(file, np.int32, "r").reshape(-1, form.width)


def batches(rows: Rows, size: int, part: int = 0, parts: int = 1) -> Iterator[Rows]:
    """One part of the batches of these rows in their order, again and again."""
    count = len(rows) // size
    if count < parts:
        raise ValueError(f"{len(rows)} rows are fewer than {parts} batches of {size}; give more rows.")
    while True:
        for index in range(part, count, parts):
            yield rows[index * size : (index + 1) * size]


def dataset(file: Path, form: Form, names: Iterable[str], size: int, part: int = 0, parts: int = 1) -> Any:
    """The same batches as a `tf.data.Dataset` of inputs with these names and targets, once."""
    import tensorflow as tf

    first, bytes_of_batch = 1 + form.numbers, 4 * form.width * size
    names = list(names)

    def decode(record: Any) -> tuple[dict[str, Any], Any]:
        rows = tf.reshape(tf.io.decode_raw(record, tf.int32), [size, form.width])
        found = {name: rows[:, first + index] for index, name in enumerate(form.sizes)}
        found["numbers"] = tf.bitcast(rows[:, 1:first], tf.float32)
        found["history"] = rows[:, first + len(form.sizes) :]
        return {name: found[name] for name in names}, tf.bitcast(rows[:, :1], tf.float32)

    whole = file.stat().st_size // bytes_of_batch * bytes_of_batch
    read = tf.data.FixedLengthRecordDataset(str(file), bytes_of_batch, footer_bytes=file.stat().st_size - whole)
    found = read.shard(parts, part).map(decode).prefetch(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return found.with_options(options)
