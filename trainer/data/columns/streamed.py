"""Files with columns that do not fit into memory: their row groups are read while the run trains."""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.data.columns import arrays, decide, held_out
from trainer.data.columns.blocks import Blocks
from trainer.data.columns.choices import Choices
from trainer.data.columns.decide import Values
from trainer.data.columns.files import (
    Model,
    Splits,
    examples,
    kind,
    of_streams,
    say_absent,
    stream,
    with_place,
)
from trainer.data.columns.folder import Folder
from trainer.data.columns.held_out import SPLIT
from trainer.data.columns.plan import Plan
from trainer.data.examples import Array
from trainer.data.skipped import Skipped
from trainer.data.stream import FIRST_EXAMPLES, Stream, prefetch
from trainer.data.tabular.parquet import RowGroup
from trainer.errors import ConfigurationError

logger = logging.getLogger(__name__)

SAMPLE_ROWS, SAMPLE_GROUPS = 50_000, 50
"""What columns are is decided by so many rows of so many row groups."""
MANY_GROUPS = 10
"""Of fewer row groups, held-out rows are from each."""


@dataclass(frozen=True)
class Part:
    """What of each row group belongs to a split."""

    folder: Folder
    columns: Sequence[str]
    target: str
    groups: Sequence[RowGroup]
    rows: Sequence[int]
    chosen: Callable[[int, npt.NDArray[np.int64], Any], held_out.Mask]
    """Which rows of a batch belong to it, by the index of the row group, the numbers of the rows, and the batch."""

    def read(self, group: RowGroup) -> Iterator[Any]:
        """The rows of a row group that belong to the split and have a target."""
        index, start = self.groups.index(group), 0
        for batch in self.folder.read_group(group, self.columns):
            numbers = np.arange(start, start + len(batch))
            start += len(batch)
            is_present = arrays.are_targets(batch[self.target], self.folder.files.class_names.get(self.target))
            own = self.chosen(index, numbers, batch) & is_present
            if found := int(own.sum()):
                yield batch if found == len(batch) else batch.filter(pa.array(own))


def load(folder: Folder, name: str, columns: Sequence[str], choices: Choices, model: Model, seed: int) -> Splits:
    """Read what decides about the columns, and return what reads the others.

    Raises:
        ConfigurationError: see `files.load`.
    """
    found_kind, readings = kind(folder), folder.files.readings
    if not folder.is_parquet:
        folder = folder.as_parquet(columns, Skipped(choices.max_skipped))
    groups = folder.groups
    train, test, values = _split(folder, name, columns, groups)
    target = decide.target_of(name, values, choices, folder.files.class_names.get(name), folder.origin)
    plan = model.plan(_sample(train), target, choices, folder.origin).with_readings(readings)
    wanted = dict.fromkeys([*plan.columns, *([SPLIT] if SPLIT in columns else [])])
    train, test = (replace(each, columns=[*wanted]) for each in (train, test))

    def read_test() -> Any:
        return pa.Table.from_batches([batch for group in groups for batch in test.read(group)])

    splits = of_streams(_stream(train, plan, seed), _stream(test, plan, seed), read_test, values, plan, folder.origin)
    return replace(splits, digest=_digest(folder, groups), kind=found_kind)


def _split(folder: Folder, name: str, columns: Sequence[str], groups: Sequence[RowGroup]) -> tuple[Part, Part, Values]:
    """The rows of each split, and the targets of the training rows, from a pass over the targets."""
    is_test = _which(folder, name, columns, groups)

    def is_train(index: int, numbers: npt.NDArray[np.int64], batch: Any) -> held_out.Mask:
        return np.asarray(np.logical_not(is_test(index, numbers, batch)))

    read = [name, *([SPLIT] if SPLIT in columns and name != SPLIT else [])]
    values, counts, absent = Values(folder.types[name]), ([], []), 0  # type: ignore[var-annotated]
    for index, group in enumerate(groups):
        start, own = 0, [0, 0]
        for batch in folder.read_group(group, read):
            test = is_test(index, np.arange(start, start + len(batch)), batch)
            start += len(batch)
            valid = arrays.are_targets(batch[name], folder.files.class_names.get(name))
            values.add(batch[name].filter(pa.array(valid & ~test)))
            own[0] += int((valid & ~test).sum())
            own[1] += int((valid & test).sum())
            absent += int((~valid).sum())
        counts[0].append(own[0])
        counts[1].append(own[1])
    held_out.check(sum(counts[1]), sum(counts[0]), folder.origin)
    if absent:
        say_absent(folder.origin, absent, sum(group.rows for group in groups), name)
    parts = (
        Part(folder, columns, name, groups, rows, chosen)
        for rows, chosen in zip(counts, (is_train, is_test), strict=True)
    )
    train, test = parts
    return train, test, values


def _which(folder: Folder, name: str, columns: Sequence[str], groups: Sequence[RowGroup]) -> Any:
    """What tells which rows of a batch are held out."""
    if SPLIT in columns and name != SPLIT:
        return lambda index, numbers, batch: held_out.by_column(batch[SPLIT])
    if (tests := held_out.by_name(folder.files.paths)) is not None:
        names = dict(zip(folder.files.paths, tests, strict=True))
        return lambda index, numbers, batch: np.full(len(numbers), names[groups[index].path])
    total = sum(group.rows for group in groups)
    number = held_out.number(total)
    chosen, rows = set[int](), 0
    for index in np.random.default_rng(0).permutation(len(groups)):
        if rows < number or len(groups) < MANY_GROUPS:
            chosen.add(int(index))
            rows += groups[index].rows
    distance = max(1, rows // number)
    return lambda index, numbers, batch: (index in chosen) & (numbers % distance == distance - 1)


def _sample(part: Part) -> Any:
    """Some of the rows of a split, from row groups at equal distances."""
    having = [group for group, rows in zip(part.groups, part.rows, strict=True) if rows]
    chosen = having[:: max(1, len(having) // SAMPLE_GROUPS)]
    batches: list[Any] = []
    for group in chosen:
        own = 0
        for batch in part.read(group):
            batches.append(batch.slice(0, SAMPLE_ROWS // len(chosen) - own))
            own += len(batches[-1])
            if own >= SAMPLE_ROWS // len(chosen):
                break
    return pa.Table.from_batches(batches).combine_chunks()  # a copy, or the slices would keep whole batches


def _stream(part: Part, plan: Plan, seed: int) -> Stream:
    """The examples of a split, in an order that the seed and the epoch determine."""

    def convert(table: Any) -> Sequence[Array]:
        try:
            return examples(table, plan, part.folder.origin).arrays
        except ConfigurationError as error:
            raise with_place(part.folder, plan, error) from None

    def blocks() -> Blocks:
        return Blocks(part.groups, part.rows, part.read, convert, seed)

    batch = next(batch for group in part.groups for batch in part.read(group))
    first = examples(batch.slice(0, FIRST_EXAMPLES), plan, part.folder.origin)
    shared, lock = blocks(), threading.Lock()

    def read(indices: Any) -> Sequence[Array]:
        with lock:  # each device of a replica reads in a thread of its own
            return shared.read(indices)

    return stream(first, plan, sum(part.rows), lambda size: prefetch(blocks().once(size)), read, has_order=True)


def _digest(folder: Folder, groups: Sequence[RowGroup]) -> str:
    """What identifies the files: their names, and the sizes of their row groups."""
    facts = [(group.path.name, group.index, group.rows, group.size) for group in groups]
    kinds = [(name, str(each)) for name, each in folder.types.items()]
    return hashlib.sha256(repr((facts, kinds)).encode()).hexdigest()
