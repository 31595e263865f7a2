"""The versions of a dataset: what made them, and their statistics."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from trainer.data.image_files import UnreadableImageError
from trainer.data.moments import Moments
from trainer.datasets.images import check
from trainer.datasets.record import NOTE, Record, parse
from trainer.datasets.source import BATCH_ROWS
from trainer.datasets.statistics import Statistics
from trainer.datasets.tags import tags_of
from trainer.storage import lance_dataset

_ADDS, _REPLACES = "Append", "Overwrite"
_KEEPS = ("CreateIndex", "UpdateConfig", "UpdateMap")
"""Operations of transactions: those that an import makes, and those that change no rows."""


def listed(dataset: Any, uri: str) -> Sequence[Mapping[str, Any]]:
    """All versions, the oldest first, as JSON has them.

    Raises:
        ConfigurationError: they cannot be read.
        StoreError: the store or the volume does not respond.
    """
    tags: dict[int, list[str]] = {}
    for name, version in tags_of(dataset, uri).items():
        tags.setdefault(version, []).append(name)
    found = []
    for each in lance_dataset.reading(uri, dataset.versions):
        transaction = _transaction(dataset, each["version"])
        found.append(
            {
                "version": each["version"],
                "time": each["timestamp"].astimezone().isoformat(timespec="seconds"),
                "tags": sorted(tags.get(each["version"], [])),
                "rows": int(each["metadata"]["total_rows"]),
                "note": _note(transaction),
                "import": _described(transaction),
            }
        )
    return found


def _transaction(dataset: Any, version: int) -> Any | None:
    try:
        return dataset.read_transaction(version)
    except lance_dataset.ERRORS:
        return None


def _note(transaction: Any | None) -> str:
    if transaction is None:
        return ""
    found = (transaction.transaction_properties or {}).get(NOTE)
    return str(found or f"{_operation(transaction).lower()} by another program")


def _described(transaction: Any | None) -> Mapping[str, Any] | None:
    record = _record(transaction)
    return {key: value for key, value in vars(record).items() if key != "statistics"} if record else None


def _record(transaction: Any | None) -> Record | None:
    return parse(transaction.transaction_properties) if transaction is not None else None


def _operation(transaction: Any) -> str:
    return type(transaction.operation).__name__


def statistics(dataset: Any) -> Statistics:
    """The statistics of a version: the sum of those of its imports, or from all rows if another program made some."""
    found = _sum_of_imports(dataset)
    return found if found and found.rows == dataset.count_rows() else _measured(dataset)


def _sum_of_imports(dataset: Any) -> Statistics | None:
    """None if there is a version without a record of its import."""
    records = []
    for version in range(dataset.version, 0, -1):
        transaction = _transaction(dataset, version)
        if transaction is None:
            return None
        if _operation(transaction) in _KEEPS:
            continue
        record = _record(transaction)
        if record is None or _operation(transaction) not in (_ADDS, _REPLACES):
            return None
        records.append(record)
        if _operation(transaction) == _REPLACES:
            break
    total = Statistics()
    for record in reversed(records):
        total.merge(record.statistics)
    return total


def _measured(dataset: Any) -> Statistics:
    found = Statistics()
    for batch in dataset.to_batches(batch_size=BATCH_ROWS):
        pixels: dict[str, Moments] = {}
        shapes: list[str] = []
        for name, shape, moments in _images(batch):
            shapes.append(shape)
            pixels[name] = pixels[name] + moments if name in pixels else moments
        found.add(batch, dataset.schema, pixels, shapes)
    return found


def _images(batch: pa.RecordBatch) -> Iterator[tuple[str, str, Moments]]:
    for each in batch.schema:
        if pa.types.is_binary(each.type):
            for content in batch[each.name].to_pylist():
                try:
                    image = check(content or b"", None)
                except UnreadableImageError:
                    continue
                yield each.name, str(image.shape), image.pixels
