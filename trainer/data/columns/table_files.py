"""Files with columns (CSV, Parquet) as the data of a run, without an import.

The target, what each column is, and which rows are held out follow from the files and the settings alone, so that each
task of a run finds the same.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.columns import arrays, decide, given
from trainer.data.columns.choices import Choices
from trainer.data.columns.decide import SPLIT
from trainer.data.columns.plan import Plan, Target
from trainer.data.examples import ArraySpec, Examples
from trainer.data.skipped import Skipped
from trainer.data.tabular import TabularFiles, is_tabular, open_files
from trainer.errors import ConfigurationError
from trainer.text import truncate

logger = logging.getLogger(__name__)

Indices = npt.NDArray[np.int64]
Specs = Mapping[str, ArraySpec]
"""The inputs of a model of the user's, by name."""

HELD_OUT = re.compile(r"(test|val(?:id(?:ation)?)?(?![a-z])|eval(?![a-z]))")
"""How the names of files, and the values of the column `split`, of held-out rows begin."""
LEAST_HELD_OUT = 200
"""Fewer held-out rows say little; a fifth of the rows is held out at most, a tenth if these are enough."""


@dataclass(frozen=True)
class Splits:
    """The examples of files, and what they are made of."""

    kind: str
    """csv or parquet."""
    train: Examples
    test: Examples
    plan: Plan
    baseline: Mapping[str, Any]
    """How good the best constant prediction is on the held-out split: `what` it is, and metrics by Keras's names."""


def find(place: Path) -> list[Path]:
    """The files with columns at a path: itself, or those of a folder and the folders in it, in the order of names."""
    if place.is_dir():
        found = (path for path in place.rglob("*") if path.is_file() and is_tabular(path))
        return sorted(path for path in found if not any(part.startswith((".", "_")) for part in path.relative_to(place).parts))  # noqa: E501
    return [place] if place.is_file() and is_tabular(place) else []


def load(place: Path, choices: Choices, specs: Callable[[], Specs | None] | None) -> Splits:
    """Read the files at a path.

    Args:
        place: A file or a folder.
        choices: What the settings say about the columns.
        specs: Returns the inputs of the user's model, None if it takes one vector; None itself is the packaged model.

    Raises:
        ConfigurationError: a file cannot be read, or its columns cannot be used.
    """
    paths = find(place)
    if not paths:
        raise ConfigurationError(f"data_dir={place}: it has no CSV or Parquet files.")
    files, origin = open_files(paths, None), str(place)
    for note in files.notes:
        logger.info(note)
    decide.check_names(files.types, choices, origin)
    name = decide.find_target(files.types, choices, origin)
    table, of_file = _read(files, _columns(files.types, name, choices, specs), choices)
    present = table[name].is_valid()
    if absent := len(table) - (pc.sum(present).as_py() or 0):
        logger.warning(f"{origin}: {absent:,} of {len(table):,} rows have no {name}; they are left out")
        table, of_file = table.filter(present), of_file[present.to_numpy()]
    if len(table) < 2:
        raise ConfigurationError(f"{origin}: {len(table)} rows have a {name}, but at least 2 are needed.")
    is_test = _held_out(table, of_file, paths, files.class_names, name)
    train_table = table.filter(pa.array(~is_test)) if is_test is not None else table
    names = files.class_names.get(name)
    target, note = decide.target_of(name, train_table[name], choices, names, origin)
    if note:
        logger.info(note)
    if is_test is None:
        is_test = hold_out(arrays.targets(table[name], target), bool(target.classes))
        train_table = table.filter(pa.array(~is_test))
    plan = decide.plan(train_table, target, choices, origin) if specs is None else given.plan(
        train_table, target, choices, specs(), origin
    )
    test = _examples(table.filter(pa.array(is_test)), plan, origin)
    test = _without_unknown(test, plan.target, origin)
    train = _examples(train_table, plan, origin)
    return Splits("parquet" if paths[0].suffix == ".parquet" else "csv", train, test, plan, _baseline(train, test, plan.target))


def _columns(types: Mapping[str, Any], target: str, choices: Choices, specs: Any) -> list[str]:
    """The columns to read: those that may be used."""
    unused = {*choices.exclude}
    if choices.inputs:
        kept = {*choices.inputs, target, SPLIT, choices.id, choices.sample_weight}
        unused |= {name for name in types if name not in kept}
    return [name for name in types if name not in unused or name == target]


def _read(files: TabularFiles, columns: Sequence[str], choices: Choices) -> tuple[Any, npt.NDArray[np.int32]]:
    """All rows as a `pyarrow.Table`, and the index of the file of each row."""
    skipped = Skipped(choices.max_skipped)
    batches, owners = [], []
    for index, path in enumerate(files.paths):
        for batch in files.read(path, columns, skipped):
            batches.append(batch)
            owners.append(np.full(len(batch), index, np.int32))
    if skipped.count:
        logger.warning(f"{skipped.count:,} rows are skipped: {skipped}")
    if not batches:
        raise ConfigurationError(f"{files.paths[0]}: it has no rows.")
    return pa.Table.from_batches(batches), np.concatenate(owners)


def _held_out(
    table: Any, of_file: npt.NDArray[np.int32], paths: Sequence[Path], _names: Any, target: str
) -> npt.NDArray[np.bool_] | None:
    """Which rows the data itself names as held out; None if it does not say it."""
    if SPLIT in table.column_names and target != SPLIT:
        texts = table[SPLIT].cast(pa.string()).fill_null("").to_pylist()
        found = np.array([bool(HELD_OUT.match(text.lower())) for text in texts])
        what = f"the column {SPLIT}"
    else:
        tests = [index for index, path in enumerate(paths) if HELD_OUT.match(path.name.lower())]
        if not tests or len(tests) == len(paths):
            return None
        found, what = np.isin(of_file, tests), "the names of the files"
    if found.all() or not found.any():
        raise ConfigurationError(
            f"{what}: {int(found.sum()):,} rows are held out (test, val) and {int((~found).sum()):,} are to train on; "
            "both are needed."
        )
    return found


def hold_out(targets: npt.NDArray[Any], is_class: bool) -> npt.NDArray[np.bool_]:
    """Which rows are held out, by their targets: of each class the same share. The choice is deterministic."""
    rows = len(targets)
    number = max(1, min(max(rows // 10, LEAST_HELD_OUT), rows // 5))
    order = np.random.default_rng(0).permutation(rows)
    if is_class:  # spread the rows of each class evenly over the order
        ranks = np.empty(rows)
        for each in np.unique(targets):
            own = order[targets[order] == each]
            ranks[own] = (np.arange(len(own)) + 0.5) / len(own)
        order = order[np.argsort(ranks[order], kind="stable")]
    found = np.zeros(rows, np.bool_)
    found[order[:number] if not is_class else order[_spread(rows, number)]] = True
    return found


def _spread(rows: int, number: int) -> Indices:
    """Indices at equal distances."""
    return (np.arange(number) * rows // number).astype(np.int64)


def _examples(table: Any, plan: Plan, origin: str) -> Examples:
    inputs: Any = arrays.inputs(table, plan, origin)
    if len(inputs) == 1 and plan.inputs[0].sources:
        (inputs,) = inputs.values()
    weights = arrays.weights(table[plan.sample_weight], plan.sample_weight, origin) if plan.sample_weight else None
    return Examples(inputs, arrays.targets(table[plan.target.name], plan.target), weights)


def _without_unknown(test: Examples, target: Target, origin: str) -> Examples:
    """The held-out rows without those of a class that no training row has."""
    unknown = test.targets == -1 if target.classes else np.zeros(len(test), np.bool_)
    if unknown.all():
        raise ConfigurationError(
            f"{origin}: no held-out row has a class of {target.name} that the training rows have: "
            f"{truncate(', '.join(target.classes), 100)}."
        )
    if unknown.any():
        logger.warning(
            f"{origin}: {int(unknown.sum()):,} held-out rows have a class of {target.name} that no training row has; "
            "they are left out"
        )
        return test.take(~unknown)
    return test


def _baseline(train: Examples, test: Examples, target: Target) -> Mapping[str, Any]:
    """How good the most frequent class, or the mean, is on the held-out split."""
    if target.classes:
        most = int(np.bincount(train.targets).argmax())
        return {"what": f"always {target.classes[most]}", "accuracy": float((test.targets == most).mean())}
    errors = np.abs(test.targets.astype(np.float64) - target.mean)
    return {"what": f"always the mean, {target.mean:.4g}", "mae": float(errors.mean()), "r2": 0.0}
