"""Files with columns as the examples of a run, without an import.

The target, what each column is, and which rows are held out follow from the files and the settings alone, so that each
task of a run finds the same.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.data.columns import arrays, decide, given, held_out
from trainer.data.columns.choices import Choices
from trainer.data.columns.decide import Values
from trainer.data.columns.folder import Folder, open_folder
from trainer.data.columns.held_out import SPLIT, Mask
from trainer.data.columns.plan import Plan, Target
from trainer.data.examples import ArraySpec, Examples
from trainer.data.skipped import Skipped
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError
from trainer.text import truncate

logger = logging.getLogger(__name__)

Specs = Mapping[str, ArraySpec]
"""The inputs of a model of the user's, by name."""
IN_MEMORY_BYTES = 256 << 20
"""Larger files are read while the run trains. Arrays of Python's texts take a few times as much as the files."""


@dataclass(frozen=True)
class Splits:
    """The examples of files or of a table, and what they are made of."""

    train: Examples | Stream
    test: Examples | Stream
    plan: Plan
    baseline: Mapping[str, Any] | None
    """How good the best constant prediction is on the held-out split: `what` it is, and metrics by Keras's names."""
    digest: str | None = None
    """SHA-256 over what identifies data that is not in memory."""
    kind: str = "lance"
    """csv, parquet or lance."""
    version: str | None = None
    """The version that was read, of data that has versions."""


@dataclass(frozen=True)
class Model:
    """The model that takes the columns, as far as they depend on it."""

    specs: Callable[[], Specs | None] | None = None
    """Returns the inputs of the user's model, None if it takes one vector. None itself is the packaged model."""

    def plan(self, table: Any, target: Target, choices: Choices, origin: str) -> Plan:
        """The plan of a table of training rows, or of some of them."""
        if self.specs is None:
            return decide.plan(table, target, choices, origin)
        return given.plan(table, target, choices, self.specs(), origin)

    def columns(self, types: Mapping[str, Any], target: str, choices: Choices, origin: str) -> list[str]:
        """The columns to read: those that may be used."""
        specs = self.specs() if self.specs else None
        if specs:
            given.check_inputs(specs, types, origin)
        wanted = {*choices.inputs} or ({*specs} if specs and {*specs} & {*types} else {*types} - {*choices.exclude})
        wanted |= {target, *({SPLIT} - {*choices.exclude}), choices.id or target, choices.sample_weight or target}
        return [name for name in types if name in wanted]


def load(place: str, choices: Choices, model: Model, seed: int) -> Splits:
    """Read the files at a path or a URI.

    Args:
        place: A file or a folder.
        choices: What the settings say about the columns.
        model: What takes the columns.
        seed: That of the order in which files that do not fit into memory are read.

    Raises:
        ConfigurationError: a file cannot be read, or its columns cannot be used.
        StoreError: an object store does not respond.
    """
    folder = open_folder(place, "data_dir", choices.kind)
    decide.check_names(folder.types, choices, folder.origin)
    target = decide.find_target(folder.types, choices, folder.origin)
    columns = model.columns(folder.types, target, choices, folder.origin)
    if folder.size <= IN_MEMORY_BYTES:
        return _in_memory(folder, target, columns, choices, model)
    from trainer.data.columns import streamed

    return streamed.load(folder, target, columns, choices, model, seed)


def _in_memory(folder: Folder, target: str, columns: Sequence[str], choices: Choices, model: Model) -> Splits:
    table, of_file = _read(folder, columns, choices)
    is_test = None
    if SPLIT in table.column_names and target != SPLIT:
        is_test = held_out.by_column(table[SPLIT])
    elif (tests := held_out.by_name(folder.files.paths)) is not None:
        is_test = np.array(tests)[of_file]
    names = folder.files.class_names.get(target)

    def locate(plan: Plan, error: ConfigurationError) -> ConfigurationError:
        return with_place(folder, plan, error)

    found = of_table(table, is_test, target, names, choices, model, folder.origin, locate)
    return replace(found, kind=kind(folder), plan=found.plan.with_readings(folder.files.readings))


def of_table(
    table: Any,
    is_test: Mask | None,
    name: str,
    names: Sequence[str] | None,
    choices: Choices,
    model: Model,
    origin: str,
    locate: Callable[[Plan, ConfigurationError], ConfigurationError] = lambda _, error: error,
) -> Splits:
    """The examples of a `pyarrow.Table`.

    Args:
        table: The rows.
        is_test: Which of them are held out; None chooses some.
        name: The column of the targets.
        names: Those of the classes by label, if the data has them.
        choices: What the settings say about the columns.
        model: What takes the columns.
        origin: The name of the data, for errors.
        locate: Returns the error of a row that cannot be used with its place.

    Raises:
        ConfigurationError: the columns cannot be used.
    """
    is_present = arrays.are_targets(table[name], names)
    if absent := int((~is_present).sum()):
        say_absent(origin, absent, len(table), name)
        table = table.filter(pa.array(is_present))
        is_test = None if is_test is None else is_test[is_present]
    if len(table) < 2:
        raise ConfigurationError(f"{origin}: {len(table)} of its rows have a {name}, but at least 2 are needed.")
    if is_test is not None:
        remedy = ""
        if SPLIT in table.column_names and name != SPLIT:
            remedy = f"; if the column {SPLIT} does not say what is held out, leave it out by --exclude {SPLIT}"
        held_out.check(int(is_test.sum()), int((~is_test).sum()), origin, remedy)
    values = Values(table[name].type)
    for chunk in (table[name] if is_test is None else table[name].filter(pa.array(~is_test))).chunks:
        values.add(chunk)
    target = decide.target_of(name, values, choices, names, origin)
    if is_test is None:
        is_test = held_out.choose(arrays.targets(table[name], target), bool(target.classes))
    train = table.filter(pa.array(~is_test))
    plan = model.plan(train, target, choices, origin)
    try:
        test = _held_out(table.filter(pa.array(is_test)), plan, origin)
        return Splits(examples(train, plan, origin), test, plan, baseline(values, test, plan.target))
    except ConfigurationError as error:
        raise locate(plan, error) from None


def _read(folder: Folder, columns: Sequence[str], choices: Choices) -> tuple[Any, Any]:
    """All rows as a `pyarrow.Table`, and the index of the file of each row."""
    skipped = Skipped(choices.max_skipped)
    batches, owners = [], []
    for index, path in enumerate(folder.files.paths):
        for batch in folder.read(path, columns, skipped):
            batches.append(batch)
            owners.append(np.full(len(batch), index, np.int32))
    if skipped.count:
        logger.warning(f"{folder.origin}: {skipped.count:,} rows are skipped: {skipped}")
    if not batches:
        raise ConfigurationError(f"{folder.origin}: it has no rows.")
    return pa.Table.from_batches(batches), np.concatenate(owners)


def with_place(folder: Folder, plan: Plan, error: ConfigurationError) -> ConfigurationError:
    """The error of the first row that cannot be used, with its file and its number there, by a pass over all files."""
    for path in folder.files.paths:
        start = 0
        for batch in folder.read(path, plan.columns, Skipped(0, is_quiet=True)):
            try:
                arrays.inputs(batch, plan, str(path), start)
                if plan.sample_weight:
                    arrays.weights(batch[plan.sample_weight], plan.sample_weight, str(path), start)
            except ConfigurationError as found:
                return found
            start += len(batch)
    return error


def kind(folder: Folder) -> str:
    """The name of the data set."""
    return "parquet" if folder.is_parquet else "csv"


def say_absent(origin: str, absent: int, rows: int, name: str) -> None:
    """Log that rows have no target."""
    logger.warning(f"{origin}: {absent:,} of {rows:,} rows have no {name}; they are left out")


def examples(table: Any, plan: Plan, origin: str) -> Examples:
    """The rows of a `pyarrow.Table` as examples.

    Raises:
        ConfigurationError: a value is not of the type of its column.
    """
    inputs: Any = arrays.inputs(table, plan, origin)
    if len(inputs) == 1 and plan.inputs[0].is_vector_of_columns:
        (inputs,) = inputs.values()
    weights = arrays.weights(table[plan.sample_weight], plan.sample_weight, origin) if plan.sample_weight else None
    return Examples(inputs, arrays.targets(table[plan.target.name], plan.target), weights)


def of_streams(
    train: Stream, test: Stream, read_test: Callable[[], Any], values: Values, plan: Plan, origin: str
) -> Splits:
    """The examples of a table that does not fit into memory; `read_test` returns its held-out rows, which may fit."""
    if (test.size or 0) > held_out.MOST:
        return Splits(train, test, plan, None)
    held = _held_out(read_test(), plan, origin)
    return Splits(train, held, plan, baseline(values, held, plan.target))


def stream(first: Examples, plan: Plan, size: int, once: Any, read: Any, has_order: bool = False) -> Stream:
    """The stream of examples of a plan, of which these are the first."""
    classes = plan.target.classes or None
    signature = replace(first.signature, classes=classes and len(classes))
    return Stream(signature, once, size, classes, read=read, has_order=has_order, first=first.arrays)


def _held_out(table: Any, plan: Plan, origin: str) -> Examples:
    """The held-out rows as examples, without those of a class that no training row has.

    Raises:
        ConfigurationError: none is left.
    """
    test, target = examples(table, plan, origin), plan.target
    if not target.classes or not (unknown := test.targets == -1).any():
        return test
    if unknown.all():
        raise ConfigurationError(
            f"{origin}: no held-out row has a class of {target.name} that the training rows have: "
            f"{truncate(', '.join(target.classes), 100)}."
        )
    logger.warning(
        f"{origin}: {int(unknown.sum()):,} held-out rows have a class of {target.name} that no training row has; they "
        "are left out"
    )
    return test.take(~unknown)


def baseline(train: Values, test: Examples, target: Target) -> Mapping[str, Any]:
    """How good the most frequent class, or the mean, of the training rows is on the held-out split."""
    if target.classes and train.counts:
        most = max(train.counts, key=lambda each: train.counts[each])  # type: ignore[index]
        label = most if target.has_labels else target.classes.index(decide.label(most))
        return {"what": f"always {target.classes[label]}", "accuracy": float((test.targets == label).mean())}
    errors = np.abs(test.targets.astype(np.float64) - target.mean)
    return {"what": f"always the mean, {target.mean:.4g}", "mae": float(errors.mean()), "r2": 0.0}
