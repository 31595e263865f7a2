"""The columns that a model of the user's takes, by the names of its inputs."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from trainer.data.columns.choices import Choices
from trainer.data.columns.held_out import SPLIT
from trainer.data.columns.plan import Column, Plan, Target
from trainer.data.examples import ArraySpec
from trainer.data.tabular import INDEX, is_list, is_number
from trainer.errors import ConfigurationError
from trainer.text import did_you_mean

MOST_LABELS = 10_000
"""A larger whole number, such as that of an article, is not a label that a model gives."""
VECTOR = "x"
"""The name of the one input of a model whose inputs have no names of columns."""


def plan(table: Any, target: Target, choices: Choices, specs: Mapping[str, ArraySpec] | None, origin: str) -> Plan:
    """The plan of a table for a model of the user's.

    Args:
        table: The `pyarrow.Table` of training rows, or of some of them.
        target: The target.
        choices: What the user says.
        specs: The model's inputs by name; None if it does not say them: it gets a vector of all numbers.
        origin: The name of the data, for errors.

    Raises:
        ConfigurationError: an input of the model is no column, or another one than it takes.
    """
    names = table.column_names
    others = [name for name in names if name not in (target.name, SPLIT, choices.id, choices.sample_weight)]
    if specs is None or takes_vector(specs, names):
        others = sorted(others, key=choices.inputs.index) if choices.inputs else others
        inputs: tuple[Column, ...] = (_vector(table, others, specs, choices, origin),)
    else:
        inputs = tuple(_column(table[name], name, spec, origin) for name, spec in specs.items())
    used = {name for each in inputs for name in each.reads}
    left_out = {name: "the model has no input of this name" for name in others if name not in used}
    if target.classes and not target.has_labels and pa.types.is_integer(table[target.name].type):
        labels = [*map(int, target.classes)]
        if min(labels) >= 0 and max(labels) < MOST_LABELS:  # labels stay what they are
            target = replace(target, classes=tuple(map(str, range(max(labels) + 1))))
    return Plan(inputs, target, choices.id, choices.sample_weight, left_out, len(table))


def takes_vector(specs: Mapping[str, ArraySpec], names: Collection[str]) -> bool:
    """Whether a model with these inputs takes a vector of all numbers, as its one input is no column."""
    return len(specs) == 1 and not {*specs} & {*names}


def check_inputs(specs: Mapping[str, ArraySpec], names: Collection[str], origin: str) -> None:
    """Check that the inputs of a model are columns, unless it takes a vector.

    Raises:
        ConfigurationError: some are not; the sentence names all of them.
    """
    absent = [f"{name}{did_you_mean(name, names)}" for name in specs if name not in names]
    if absent and not takes_vector(specs, names):
        raise ConfigurationError(
            f"{origin}: the model's inputs {', '.join(absent)} are no columns of it; it has {', '.join(names)}."
        )


def _column(values: Any, name: str, spec: ArraySpec, origin: str) -> Column:
    shape = spec.shape
    if is_list(values.type) != bool(shape) and shape != (1,):
        raise ConfigurationError(
            f"{origin}: {name} is {values.type}, but the model's input {name} is {spec}; let the input have "
            f"{'a dimension for the elements of a list' if is_list(values.type) else 'the shape ()'}."
        )
    return Column(name, "given", spec.dtype, shape, values.null_count, None if spec.dtype == "string" else 0.0)


def _vector(
    table: Any, others: list[str], specs: Mapping[str, ArraySpec] | None, choices: Choices, origin: str
) -> Column:
    numbers = tuple(
        name for name in others if is_number(table[name].type) and (name in choices.inputs or not INDEX.fullmatch(name))
    )
    name, spec = next(iter(specs.items())) if specs else (VECTOR, ArraySpec((None,), "float32"))
    if len(spec.shape) != 1 or spec.shape[0] not in (None, len(numbers)) or spec.dtype == "string" or not numbers:
        raise ConfigurationError(
            f"{origin}: the model's input {name} is {spec}, but the columns of numbers are a vector of {len(numbers)} "
            f"({', '.join(numbers)}); let it have this size, or inputs by the names of the columns."
        )
    missing = sum(table[each].null_count for each in numbers)
    return Column(name, "given", spec.dtype, (len(numbers),), missing, 0.0, sources=numbers)
