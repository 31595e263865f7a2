"""CSV, Parquet and TFRecord files as a source, which is read in batches.

The dataset has their columns as they are. Beside images or tensors, or in a dataset that has no table, columns are
arrays instead, which are inputs by their own names.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data import metadata
from trainer.data.columns import arrays, decide, held_out
from trainer.data.columns.choices import Choices
from trainer.data.columns.files import say_absent
from trainer.data.columns.folder import Folder, open_folder
from trainer.data.columns.plan import Target
from trainer.data.metadata import Table, stored_name
from trainer.data.skipped import Skipped
from trainer.data.tabular import INDEX, is_list, is_number, is_text
from trainer.datasets.source import INPUT, SPLIT, TARGET, TEST, TRAIN, Rows, Source, class_names, column, numbered
from trainer.errors import ConfigurationError

logger = logging.getLogger(__name__)


def open_source(place: Path, choices: Choices, delimiter: str | None, existing: pa.Schema | None) -> Source:
    """The rows of a file, or of all files of a folder.

    Args:
        place: The file or the folder.
        choices: What the user says about the columns.
        delimiter: That of the files of text; None finds it.
        existing: The schema of the dataset that gets more rows.

    Raises:
        ConfigurationError: a file cannot be read, or its columns cannot be used.
    """
    folder = open_folder(str(place), "SOURCE", delimiter=delimiter)
    known = metadata.table(existing) if existing is not None else None
    if known and choices.target not in (None, known.target):
        raise ConfigurationError(f"target={choices.target}, but the target of the dataset is {known.target}; name it.")
    if existing is not None and known:
        choices = replace(choices, target=known.target)
        folder = folder.as_texts([metadata.column_name(each.name) for each in existing if is_text(each.type)])
    decide.check_names(folder.types, choices, folder.origin)
    target = decide.find_target(folder.types, choices, folder.origin)
    if target == SPLIT:
        raise ConfigurationError(f"--target={SPLIT}: the dataset has the splits in the column {SPLIT}; rename yours.")
    inputs = [name for name in choices.inputs or folder.types if name not in (target, SPLIT)]
    if index := [name for name in inputs if INDEX.fullmatch(name) and name not in choices.inputs]:
        logger.info(f"{folder.origin}: the column {index[0]!r}, an index that pandas writes, is left out")
        inputs = [name for name in inputs if name not in index]
    if not inputs:
        raise ConfigurationError(f"{folder.origin}: columns of inputs were expected beside {target}; add some.")
    files = _Files(folder, inputs, target)
    if known:
        return _table(files, known)
    decided = _decide(files, choices, existing)
    if existing is not None or any(_is_array(folder.types[name]) for name in inputs):
        return _arrays(files, decided)
    return _table(files, Table(target, bool(decided.classes)))


@dataclass(frozen=True)
class _Files:
    """Files with the same columns, of which some are imported."""

    folder: Folder
    inputs: Sequence[str]
    target: str

    @property
    def kind(self) -> str:
        """What a note calls them."""
        return "Parquet files" if self.folder.is_parquet else "CSV files"

    @property
    def class_names(self) -> Sequence[str] | None:
        """The names that the files have for labels."""
        return self.folder.files.class_names.get(self.target)

    @property
    def has_splits(self) -> bool:
        """Whether the files name the split of each row."""
        return SPLIT in self.folder.types or held_out.by_name(self.folder.files.paths) is not None

    def read(self, skipped: Skipped) -> Iterator[tuple[pa.RecordBatch, Path, Any]]:
        """The rows in batches, the file of each, and the splits if the files name them."""
        paths = self.folder.files.paths
        tests = held_out.by_name(paths) or [False] * len(paths)
        splits = [SPLIT] if SPLIT in self.folder.types else []
        for path, is_test in zip(paths, tests, strict=True):
            for batch in self.folder.read(path, [*self.inputs, self.target, *splits], skipped):
                held = held_out.by_column(batch[SPLIT]) if splits else np.full(len(batch), is_test)
                yield batch, path, pa.array(np.where(held, TEST, TRAIN), pa.string())


def _decide(files: _Files, choices: Choices, existing: pa.Schema | None) -> Target:
    """What the target is, by all of its values and by what the dataset has that gets more rows."""
    origin, names, known = files.folder.origin, files.class_names, None
    if existing is not None:
        known = metadata.class_names(existing)
        has_values = TARGET in existing.names and pa.types.is_floating(existing.field(TARGET).type)
        choices = replace(choices, regression=has_values or choices.regression)
    values = decide.Values(files.folder.types[files.target])
    for path in files.folder.files.paths:
        for (found,) in files.folder.read(path, [files.target], Skipped(0, is_quiet=True)):
            values.add(found.filter(pa.array(arrays.are_targets(found, names))))
    if known and is_text(values.kind):
        class_names({*(values.counts or ())}, known, origin)
    return decide.target_of(files.target, values, choices, names or known, origin)


def _table(files: _Files, table: Table) -> Source:
    """The columns as they are."""
    names = [*files.inputs, files.target]
    schema = pa.schema([(stored_name(name), files.folder.types[name]) for name in names])
    if files.has_splits:
        schema = schema.append(pa.field(SPLIT, pa.string()))

    def read(skipped: Skipped) -> Iterator[Rows]:
        rows = absent = 0
        for batch, path, splits in files.read(skipped):
            is_present = arrays.are_targets(batch[files.target], files.class_names)
            rows, absent = rows + len(batch), absent + int((~is_present).sum())
            found = pa.record_batch([*(batch[name] for name in names), splits][: len(schema)], schema)
            yield Rows(found.filter(pa.array(is_present)), numbered(path.name, rows - len(batch)))
        if absent:
            say_absent(files.folder.origin, absent, rows, files.target)

    return Source(files.kind, schema, read, files.class_names, table)


def _arrays(files: _Files, target: Target) -> Source:
    """The columns as arrays, and the targets as y."""
    is_single = len(files.inputs) == 1

    def read(skipped: Skipped) -> Iterator[Rows]:
        rows = 0
        for batch, path, splits in files.read(skipped):
            columns = {INPUT if is_single else name: _array(batch[name], f"{path}: {name}") for name in files.inputs}
            columns[TARGET] = column(arrays.targets(batch[files.target], target))
            if files.has_splits:
                columns[SPLIT] = splits
            yield Rows(pa.record_batch(columns), numbered(path.name, rows))
            rows += len(batch)

    first = next(read(Skipped(0, is_quiet=True)), None)
    if first is None:
        raise ConfigurationError(f"{files.folder.origin}: it has no rows.")
    return Source(files.kind, first.batch.schema, read, target.classes or None)


def _is_array(kind: pa.DataType) -> bool:
    """Whether values are images or tensors, which no column of a table is."""
    return isinstance(kind, pa.FixedShapeTensorType) or bool(pa.types.is_binary(kind))


def _array(found: Any, origin: str) -> Any:
    """A column in the type in which a dataset of arrays has it. An absent number is NaN, which is found later."""
    if isinstance(found.type, pa.FixedShapeTensorType):
        return column(found.to_numpy_ndarray())
    if pa.types.is_binary(found.type):
        return found
    if is_number(found.type):
        return column(found.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False))
    if not is_list(found.type) or not is_number(found.type.value_type):
        raise ConfigurationError(
            f"{origin}: beside images or tensors, numbers and vectors were expected, not {found.type}; choose columns "
            "with --inputs."
        )
    if found.null_count:
        raise ConfigurationError(f"{origin}: {found.null_count} rows have no value; remove them.")
    values = found.flatten()
    if not len(found) or len(values) % len(found) or len(pc.unique(pc.list_value_length(found))) != 1:
        raise ConfigurationError(f"{origin}: lists of one length were expected.")
    return column(values.to_numpy(zero_copy_only=False).reshape(len(found), -1))
