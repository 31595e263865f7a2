"""Lance datasets: tables with versions and tags, local or on an object store (https://lance.org)."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.arrays import examples
from trainer.data.context import DataContext
from trainer.data.examples import Array, Examples
from trainer.data.stream import IN_MEMORY_BYTES, Stream, prefetch
from trainer.errors import ConfigurationError
from trainer.storage import lance_dataset
from trainer.text import truncate

TARGETS = ("y", "label")
"""The column of the targets: the first of these names that the table has."""
SPLIT, TEST = "split", "test"
"""The column that names the split of each row, if there is one, and its value for held-out rows."""


def open_version(uri: str, version: str | None) -> Any:
    """A version of a dataset, by its number or a tag; None is the newest.

    Raises:
        ConfigurationError: pylance is not installed, or the dataset cannot be read.
        StoreError: an object store does not respond.
    """
    lance_dataset.require("dataset=lance")
    lance_dataset.check_access(uri, "data_dir")
    return lance_dataset.open_dataset(uri, version, f"data_dir={uri}")


def load(uri: str, version: str | None, data: DataContext) -> tuple[Examples | Stream, Examples | Stream, Any]:
    """The splits of a table, and the version that was read, opened. Later versions do not change what is read.

    The column `y` (or `label`) has the targets, and each other column is an input: numbers, vectors, tensors of a fixed
    shape, or encoded images. Rows whose column `split` is "test" are the held-out split; without that column, the same
    tenth of the rows is.

    Args:
        uri: A path or a URI, such as s3://bucket/digits.lance.
        version: A version's number or a tag; None is the newest.
        data: The replica that reads.

    Raises:
        ConfigurationError: pylance is not installed, or the table, its version or its columns cannot be read.
    """
    origin = f"data_dir={uri}"
    table = open_version(uri, version)
    rows = lance_dataset.reading(origin, table.count_rows)
    columns = [name for name in table.schema.names if name != SPLIT]
    if not any(name in TARGETS for name in columns) or len(columns) < 2:
        raise ConfigurationError(
            f"{origin}: columns of inputs and a column {' or '.join(TARGETS)} were expected, not {', '.join(columns)}."
        )
    train, test = _split(table, rows, origin)
    row = _examples(_take(table, train[:1], columns, origin), origin)
    if row.nbytes * rows <= IN_MEMORY_BYTES:
        whole = _examples(lance_dataset.reading(origin, lambda: table.to_table(columns)), origin)
        return whole.take(train), whole.take(test), table

    def read(indices: npt.NDArray[Any]) -> Sequence[Array]:
        return _examples(_take(table, indices, columns, origin), origin).arrays

    def reader(part: npt.NDArray[Any]) -> Callable[[int], Iterator[Sequence[Array]]]:
        """What reads a part of the rows once, in batches of a size."""
        return lambda size: prefetch(read(part[start : start + size]) for start in range(0, len(part), size))

    signature = row.signature
    if signature.has_labels:
        labels = _column(table, _target(table.schema.names), origin)
        signature = replace(signature, classes=1 + int(labels.to_numpy().max()))
    once, read_train = reader(train), lambda indices: read(train[indices])
    splits = (
        Stream(signature, once, len(train), read=read_train, first=row.arrays),
        Stream(signature, reader(test), len(test), first=row.arrays),
    )
    return *splits, table


def _take(table: Any, rows: npt.NDArray[Any], columns: Sequence[str], origin: str) -> Any:
    return lance_dataset.reading(origin, lambda: table.take(rows, columns))


def _column(table: Any, name: str, origin: str) -> Any:
    return lance_dataset.reading(origin, lambda: table.to_table([name])).column(0)


def digest(table: Any) -> str:
    """SHA-256 over the names of the files of a version, in hexadecimal. Lance never uses a name twice."""
    files = sorted(
        f"{[file.path for file in fragment.metadata.files]} {fragment.metadata.deletion_file}"
        for fragment in table.get_fragments()
    )
    return hashlib.sha256("\n".join(files).encode()).hexdigest()


def _split(table: Any, rows: int, origin: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The row numbers of the training and of the held-out split."""
    if SPLIT in table.schema.names:
        import pyarrow.compute  # of pylance; Python strings of all rows would take gigabytes

        is_test = pyarrow.compute.equal(_column(table, SPLIT, origin), TEST).fill_null(False).to_numpy()
        train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    else:
        order = np.random.default_rng(0).permutation(rows)
        train, test = order[rows // 10 :], order[: rows // 10]
    if not len(train) or not len(test):
        raise ConfigurationError(
            f"{origin}: it has {len(train)} rows to train on and {len(test)} held-out rows; both are needed."
        )
    return train, test


def _examples(table: Any, origin: str) -> Examples:
    target = _target(table.column_names)
    arrays = {name: _array(table[name], f"{origin}: {name}") for name in table.column_names}
    targets = arrays.pop(target)
    inputs = {name: array[:, np.newaxis] if array.ndim == 1 else array for name, array in arrays.items()}
    if len(inputs) == 1:
        (single,) = inputs.values()
        inputs = {"x": single}
    return examples(inputs, targets, origin)


def _target(columns: Sequence[str]) -> str:
    return next(name for name in TARGETS if name in columns)


def _array(column: Any, origin: str) -> Array:
    """A column as an array [n, …]."""
    import pyarrow as pa

    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    if whole.null_count:
        raise ConfigurationError(f"{origin}: {whole.null_count} rows have no value; fill or remove them.")
    if isinstance(whole.type, pa.FixedShapeTensorType):
        return np.asarray(whole.to_numpy_ndarray())
    if pa.types.is_fixed_size_list(whole.type):
        return np.asarray(whole.flatten().to_numpy(zero_copy_only=False)).reshape(len(whole), -1)
    if pa.types.is_binary(whole.type) or pa.types.is_large_binary(whole.type):
        return _decode(whole.to_pylist(), origin)
    if pa.types.is_integer(whole.type) or pa.types.is_floating(whole.type) or pa.types.is_boolean(whole.type):
        return np.asarray(whole.to_numpy(zero_copy_only=False))
    raise ConfigurationError(f"{origin}: numbers, vectors, tensors or images were expected, not {whole.type}.")


def _decode(images: Sequence[bytes], origin: str) -> Array:
    """PNG, JPEG, GIF or BMP images of one size as bytes [n, height, width, channels]."""
    from trainer.tensorflow import tf
    from trainer.tensorflow.private import eager_mode

    try:
        with eager_mode():
            decoded = [tf.io.decode_image(image, expand_animations=False).numpy() for image in images]
    except tf.errors.InvalidArgumentError as error:
        raise ConfigurationError(f"{origin}: an image cannot be decoded ({truncate(str(error), 100)}).") from None
    if len({image.shape for image in decoded}) != 1:
        shapes = " and ".join(sorted({str(list(image.shape)) for image in decoded})[:2])
        raise ConfigurationError(f"{origin}: images of one size were expected, not {shapes}.")
    return np.stack(decoded)
