"""Statistics of rows that can be added up: those of a version are the sum of those of its imports."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.data import metadata
from trainer.data.columns.decide import label
from trainer.data.metadata import stored_name
from trainer.data.moments import Moments
from trainer.datasets.rows import is_numeric, numbers
from trainer.datasets.source import SPLIT, TARGETS, TRAIN


@dataclass
class Statistics:
    """The statistics of some rows."""

    rows: int = 0
    bytes: int = 0
    """The size of the values in memory, with images as they are encoded."""
    splits: dict[str, Counter[str]] = field(default_factory=dict)
    """By split, the rows of each class; those without a class have the class ""."""
    values: dict[str, Moments] = field(default_factory=dict)
    """By name: inputs, and targets that are values."""
    images: Counter[str] = field(default_factory=Counter)
    """The number of images of each shape, HEIGHTxWIDTHxCHANNELS."""

    def add(
        self,
        batch: pa.RecordBatch,
        schema: pa.Schema,
        pixels: Mapping[str, Moments],
        shapes: Sequence[str],
    ) -> None:
        """Add rows.

        Args:
            batch: The rows.
            schema: That of the dataset.
            pixels: The moments of the pixels of each column of images.
            shapes: The shapes of all images.
        """
        if not len(batch):
            return
        self.rows += len(batch)
        self.bytes += batch.nbytes
        splits = batch[SPLIT].to_pylist() if SPLIT in batch.schema.names else [TRAIN] * len(batch)
        classes = class_of_rows(batch, schema)
        for (split, each), count in Counter(zip(splits, classes, strict=True)).items():
            self.splits.setdefault(split, Counter())[each] += count
        for name, moments in {**_moments(batch, class_column(schema)), **pixels}.items():
            self._add_values(name, moments)
        self.images.update(shapes)

    def merge(self, other: "Statistics") -> None:
        """Add the rows of other statistics."""
        self.rows += other.rows
        self.bytes += other.bytes
        for split, classes in other.splits.items():
            self.splits.setdefault(split, Counter()).update(classes)
        for name, moments in other.values.items():
            self._add_values(name, moments)
        self.images.update(other.images)

    def _add_values(self, name: str, moments: Moments) -> None:
        self.values[name] = self.values[name] + moments if name in self.values else moments

    def to_json(self) -> dict[str, Any]:
        """The statistics as JSON has them."""
        return {
            "rows": self.rows,
            "bytes": self.bytes,
            "splits": {split: dict(classes) for split, classes in self.splits.items()},
            "values": {name: vars(moments) for name, moments in self.values.items()},
            "images": dict(self.images),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Statistics":
        """The statistics that `to_json` wrote.

        Raises:
            LookupError, TypeError, ValueError: it did not write this.
        """
        return cls(
            int(found["rows"]),
            int(found["bytes"]),
            {split: Counter(classes) for split, classes in found["splits"].items()},
            {name: Moments(**moments) for name, moments in found["values"].items()},
            Counter(found["images"]),
        )


def class_column(schema: pa.Schema) -> str | None:
    """The column with the class of each row of a dataset; None if its targets are values."""
    if found := metadata.table(schema):
        return stored_name(found.target) if found.is_class else None
    target = next((name for name in TARGETS if name in schema.names), None)
    return target if target and pa.types.is_integer(schema.field(target).type) else None


def class_of_rows(batch: pa.RecordBatch, schema: pa.Schema) -> Sequence[str]:
    """The class of each row of a dataset with this schema."""
    column, names = class_column(schema), metadata.class_names(schema) or ()
    if column is None:
        return [""] * len(batch)
    values = batch[column].to_pylist()
    return [names[each] if names and 0 <= each < len(names) else label(each) for each in values]


def _moments(batch: pa.RecordBatch, class_column: str | None) -> Mapping[str, Moments]:
    found: dict[str, Moments] = {}
    for name in batch.schema.names:
        if name not in (SPLIT, class_column) and is_numeric(batch.schema.field(name).type):
            values = numbers(batch[name])
            if len(finite := values[np.isfinite(values)]):
                found[metadata.column_name(name)] = Moments.of(finite)
    return found
