"""A Lance dataset as the examples of a run, with its columns as they are, as those of files."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.data import lance_table
from trainer.data.columns import arrays, decide, held_out
from trainer.data.columns.choices import Choices
from trainer.data.columns.decide import Values
from trainer.data.columns.files import (
    IN_MEMORY_BYTES,
    Model,
    Splits,
    examples,
    of_streams,
    of_table,
    say_absent,
    stream,
)
from trainer.data.columns.held_out import SPLIT
from trainer.data.columns.plan import Plan
from trainer.data.examples import Array
from trainer.data.metadata import class_names, column_name, stored_name, table
from trainer.data.stream import FIRST_EXAMPLES, Stream, prefetch
from trainer.storage import lance_dataset

logger = logging.getLogger(__name__)

FIRST_ROWS = 1000
"""The size of these tells that of all."""
SAMPLE_ROWS = 50_000
"""What columns are is decided by so many rows of a large table."""
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Table:
    """A version of a dataset."""

    dataset: Any
    origin: str
    """What errors call it."""

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """The types of the columns by name."""
        return {column_name(each.name): each.type for each in self.dataset.schema}

    def read(self, columns: Sequence[str], rows: Rows | None = None) -> Any:
        """These columns of these rows, or of all rows, as a `pyarrow.Table`."""
        stored = [stored_name(each) for each in columns]
        found = lance_dataset.reading(
            self.origin,
            lambda: self.dataset.to_table(stored) if rows is None else self.dataset.take(rows, stored),
        )
        return found.rename_columns([*columns])


def load(uri: str, version: str | None, choices: Choices, model: Model) -> Splits:
    """Read a dataset.

    Args:
        uri: A path or a URI.
        version: A version's number or a tag; None is the newest.
        choices: What the settings say about the columns.
        model: What takes the columns.

    Raises:
        ConfigurationError: the dataset cannot be read, or its columns cannot be used.
        StoreError: an object store does not respond.
    """
    found = _Table(lance_table.open_version(uri, version), f"data_dir={uri}")
    facts, types = table(found.dataset.schema), found.types
    if facts and choices.target in (None, facts.target):
        regression = not facts.is_class if choices.regression is None else choices.regression
        choices = replace(choices, target=facts.target, regression=regression)
    decide.check_names(types, choices, found.origin)
    target = decide.find_target(types, choices, found.origin)
    columns = model.columns(types, target, choices, found.origin)
    rows = lance_dataset.reading(found.origin, found.dataset.count_rows)
    first = found.read(columns, np.arange(min(rows, FIRST_ROWS)))
    is_test = held_out.by_column(found.read([SPLIT])[SPLIT]) if SPLIT in types else np.zeros(rows, np.bool_)
    if first.nbytes * rows <= IN_MEMORY_BYTES * max(1, len(first)):
        names = class_names(found.dataset.schema)
        named = is_test if is_test.any() else None
        splits = of_table(found.read(columns), named, target, names, choices, model, found.origin)
    else:
        splits = _streamed(found, is_test, target, columns, choices, model)
    return replace(splits, version=str(found.dataset.version), digest=lance_table.digest(found.dataset))


def _streamed(
    found: _Table, is_test: held_out.Mask, name: str, columns: Sequence[str], choices: Choices, model: Model
) -> Splits:
    """The examples of a table that does not fit into memory."""
    names, origin = class_names(found.dataset.schema), found.origin
    if not is_test.any():
        is_test = held_out.choose(np.zeros(len(is_test)), is_class=False)
    targets = found.read([name])[name]
    is_present = arrays.are_targets(targets, names)
    if absent := int((~is_present).sum()):
        say_absent(origin, absent, len(targets), name)
    train, test = np.flatnonzero(~is_test & is_present), np.flatnonzero(is_test & is_present)
    held_out.check(len(test), len(train), origin)
    values = Values(targets.type)
    for chunk in targets.filter(pa.array(~is_test & is_present)).chunks:
        values.add(chunk)
    target = decide.target_of(name, values, choices, names, origin)
    plan = model.plan(found.read(columns, train[:: -(-len(train) // SAMPLE_ROWS)]), target, choices, origin)
    streams = _stream(found, train, plan), _stream(found, test, plan)
    return of_streams(*streams, lambda: found.read(plan.columns, test), values, plan, origin)


def _stream(found: _Table, rows: Rows, plan: Plan) -> Stream:
    """The examples of these rows, which are read while the run trains."""

    def read(indices: Any) -> Sequence[Array]:
        return examples(found.read(plan.columns, rows[indices]), plan, found.origin).arrays

    def once(size: int) -> Iterator[Sequence[Array]]:
        return prefetch(read(slice(start, start + size)) for start in range(0, len(rows), size))

    first = examples(found.read(plan.columns, rows[:FIRST_EXAMPLES]), plan, found.origin)
    return stream(first, plan, len(rows), once, read)
