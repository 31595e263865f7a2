"""The check of rows while they are imported: absent and infinite values, labels, and images.

Rows with a fault are skipped. Those of a table have none, as their values may be missing. Each other row gets a split,
if the source has none.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.data.image_files import UnreadableImageError
from trainer.data.metadata import stored_name, with_facts
from trainer.data.moments import Moments
from trainer.data.skipped import Skipped
from trainer.datasets.images import Encoded, Shape, check
from trainer.datasets.rows import DIGEST_BYTES, digests, is_numeric, numbers
from trainer.datasets.source import SPLIT, TARGET, TEST, TRAIN, Rows, Source
from trainer.datasets.statistics import Statistics


@dataclass(frozen=True)
class Rules:
    """What rows must be, and what becomes of them."""

    convert: Shape | None
    """The shape to which images are converted."""
    image_shape: Shape | None
    """The shape that images must have; None is that of the first one."""
    split: str | None
    """The split of all rows."""
    test_fraction: float
    """The part of the rows that is held out if neither the source nor the user names a split."""


class Check:
    """Checks the rows of one source, and measures them."""

    def __init__(self, source: Source, rules: Rules, skipped: Skipped) -> None:
        self._source, self._rules, self._skipped = source, rules, skipped
        self.image_shape = rules.convert or rules.image_shape
        self.statistics = Statistics()
        self._has_splits = SPLIT in source.schema.names
        schema = source.schema if self._has_splits else source.schema.append(pa.field(SPLIT, pa.string()))
        self.schema = with_facts(schema, source.classes, source.table)

    @property
    def expected_rows(self) -> int | None:
        """How many rows the source has, if this is known."""
        return self._source.rows

    @property
    def skipped_rows(self) -> int:
        """How many rows were skipped."""
        return self._skipped.count

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that can be used.

        Raises:
            ConfigurationError: too many cannot.
        """
        with ThreadPoolExecutor() as pool:
            for rows in self._source.read(self._skipped):
                yield self._check(rows, pool)

    def _check(self, rows: Rows, pool: ThreadPoolExecutor) -> pa.RecordBatch:
        batch = rows.batch
        faults: dict[int, str] = {}
        for name in batch.schema.names if not self._source.table else ():
            for row, reason in self._faults(name, batch[name]):
                faults.setdefault(row, reason)
        images = {
            field.name: self._images(batch[field.name], faults, pool)
            for field in batch.schema
            if pa.types.is_binary(field.type)
        }
        for row in sorted(faults):
            self._skipped.add(rows.name(row), faults[row])
        good = np.setdiff1d(np.arange(len(batch)), np.array([*faults], np.int64))
        columns = dict(zip(batch.schema.names, (batch.take(pa.array(good)) if faults else batch).columns, strict=True))
        pixels: dict[str, Moments] = {}
        for name, found in images.items():
            kept = [found[row] for row in good]
            columns[name] = pa.array([each.content for each in kept], pa.binary())
            for each in kept:
                pixels[name] = pixels[name] + each.pixels if name in pixels else each.pixels
        checked = pa.record_batch(columns)
        checked = self._with_splits(checked)
        shapes = [str(found[row].shape) for found in images.values() for row in good]
        self.statistics.add(checked, self.schema, pixels, shapes)
        return checked

    def _faults(self, name: str, column: Any) -> Iterator[tuple[int, str]]:
        if column.null_count:
            for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
                yield int(index), f"{name} has no value"
        if not is_numeric(column.type):
            return
        values = numbers(column)
        if values.dtype.kind == "f":
            for index in np.flatnonzero(~np.isfinite(values).all(axis=1)):
                yield int(index), f"{name} is absent, NaN or infinite"
        if name == TARGET and pa.types.is_integer(column.type):
            yield from self._label_faults(values[:, 0])

    def _label_faults(self, labels: npt.NDArray[Any]) -> Iterator[tuple[int, str]]:
        classes: Sequence[str] = self._source.classes or ()
        for index in np.flatnonzero((labels < 0) | ((labels >= len(classes)) if classes else False)):
            expected = f"from 0 to {len(classes) - 1}" if classes else "from 0"
            yield int(index), f"the label is {labels[index]:g}, but {expected} was expected"

    def _images(self, column: Any, faults: dict[int, str], pool: ThreadPoolExecutor) -> dict[int, Encoded]:
        """Decode the images of a column; add those with a fault to the faults."""
        contents = {row: content for row, content in enumerate(column.to_pylist()) if row not in faults}
        checked = dict(zip(contents, pool.map(self._decode, contents.values()), strict=True))
        found = {}
        for row, each in checked.items():
            if isinstance(each, UnreadableImageError):
                faults[row] = str(each)
                continue
            self.image_shape = self.image_shape or each.shape
            if each.shape != self.image_shape:
                faults[row] = f"the image is {each.shape}, but {self.image_shape} was expected; see --image_size"
                continue
            found[row] = each
        return found

    def _decode(self, content: bytes) -> Encoded | UnreadableImageError:
        try:
            return check(content, self._rules.convert)
        except UnreadableImageError as error:
            return error

    def _with_splits(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._rules.split:
            splits = [self._rules.split] * len(batch)
        elif self._has_splits:
            return batch
        else:
            # By content: equal inputs are in one split, also in later versions.
            target = stored_name(self._source.table.target) if self._source.table else TARGET
            inputs = [name for name in batch.schema.names if name != target]
            limit = int(self._rules.test_fraction * 2.0 ** (8 * DIGEST_BYTES - 1)) * 2
            splits = [TEST if int(digest) < limit else TRAIN for digest in digests(batch, inputs)]
        columns = {name: batch[name] for name in batch.schema.names if name != SPLIT}
        return pa.record_batch({**columns, SPLIT: pa.array(splits, pa.string())})
