"""TFRecord files of `tf.train.Example`s as Parquet, which is written once. Each feature is a column.

A feature of at most one value is a number or a text; of more, a list. Without a value it is missing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.data.tabular.parquet import writing
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode
from trainer.text import truncate

FIRST = 1000
"""The records by which the features are known."""
BATCH = 4096
GZIP = b"\x1f\x8b"
_KINDS = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
_TYPES = {tf.string: pa.string(), tf.float32: pa.float64(), tf.int64: pa.int64()}


def write_parquet(files: Sequence[Path], place: Path, most: int, origin: str) -> None:
    """Write the records of files as one Parquet file.

    Args:
        files: The TFRecord files.
        place: The Parquet file.
        most: The rows of a row group.
        origin: The name of the data, for errors.

    Raises:
        ConfigurationError: a file is damaged, or a record is not a `tf.train.Example` with such features,
            or the Parquet file cannot be written.
    """
    features = _features(files[0])
    schema = pa.schema(
        [(name, pa.list_(_TYPES[kind]) if several else _TYPES[kind]) for name, (kind, several) in features.items()]
    )
    with writing(place, schema, origin) as writer:
        for batch in _batches(files, features, schema):
            writer.write_table(pa.Table.from_batches([batch]), row_group_size=most)


def _features(file: Path) -> Mapping[str, tuple[Any, bool]]:
    """The features by name: their type, and whether a record has several values."""
    found: dict[str, tuple[Any, bool]] = {}
    for record in _records(file, FIRST):
        try:
            example = tf.train.Example.FromString(record)
        except Exception as error:
            raise ConfigurationError(
                f"{file}: its records are not tf.train.Examples ({truncate(str(error), 100)}); read them in "
                "train_data() of a model's file."
            ) from None
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind is None:
                continue
            several = len(getattr(feature, kind).value) > 1
            before = found.get(name, (_KINDS[kind], False))
            if before[0] != _KINDS[kind]:
                raise ConfigurationError(f"{file}: the feature {name} is of two types; write it in one.")
            found[name] = before[0], before[1] or several
    if not found:
        raise ConfigurationError(f"{file}: its records have no features.")
    return dict(sorted(found.items()))


def _compression(file: Path) -> str:
    with file.open("rb") as opened:
        return "GZIP" if opened.read(2) == GZIP else ""


def _records(file: Path, most: int) -> Iterator[bytes]:
    with eager_mode():
        for record in _reading(tf.data.TFRecordDataset(str(file), _compression(file)).take(most), file):
            yield record.numpy()


def _reading(dataset: Any, file: Path) -> Iterator[Any]:
    """The elements of a dataset.

    Raises:
        ConfigurationError: the file is damaged.
    """
    try:
        yield from dataset
    except tf.errors.OpError as error:
        reason = re.sub(r"^\{\{.*?\}\}\s*", "", str(error.message))  # the name of an operation
        raise ConfigurationError(f"{file}: the file cannot be read ({truncate(reason, 150)}).") from None


def _batches(files: Sequence[Path], features: Mapping[str, tuple[Any, bool]], schema: pa.Schema) -> Iterator[Any]:
    specs = {name: tf.io.RaggedFeature(kind) for name, (kind, _) in features.items()}
    for file in files:
        with eager_mode():
            records = tf.data.TFRecordDataset(str(file), _compression(file)).batch(BATCH)
            for found in _reading(records.map(lambda texts: tf.io.parse_example(texts, specs)).prefetch(2), file):
                columns = [
                    _column(found[name], several, schema.field(name).type, f"{file}: {name}")
                    for name, (_, several) in features.items()
                ]
                yield pa.record_batch(columns, schema=schema)


def _column(ragged: Any, several: bool, kind: pa.DataType, place: str) -> Any:
    """The values of a feature as a column."""
    values, splits = ragged.flat_values.numpy(), ragged.row_splits.numpy()
    if values.dtype == object:
        try:
            flat = pa.array([each.decode() for each in values], pa.string())
        except UnicodeDecodeError:
            raise ConfigurationError(
                f"{place}: the feature has bytes that are not a text, such as an image; read it in train_data() of a "
                "model's file."
            ) from None
    else:
        flat = pa.array(values).cast(kind.value_type if several else kind)
    if several:
        return pa.ListArray.from_arrays(pa.array(splits.astype(np.int32)), flat)
    lengths = np.diff(splits)
    if len(lengths) and lengths.max() > 1:
        raise ConfigurationError(
            f"{place}: a record has {lengths.max()} values, but the first {FIRST:,} records have one at most."
        )
    where = pa.array(np.where(lengths > 0, splits[:-1], 0), mask=lengths == 0)
    return flat.take(where) if len(flat) else pa.nulls(len(lengths), kind)
