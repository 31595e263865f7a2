"""The rows of files with columns, as an exported model takes them."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.data.columns.names import SHOWN, find
from trainer.data.columns.plan import Column, Plan, Target, from_json
from trainer.data.examples import Array, ArraySpec
from trainer.data.skipped import Skipped
from trainer.errors import ConfigurationError
from trainer.export.export_folder import DATA, read_facts

if TYPE_CHECKING:
    from trainer.data.columns.folder import Folder

Batch: TypeAlias = tuple[Sequence[str | int], Mapping[str, Array]]
"""The names of some images or rows, and the inputs of the model for them."""


def plan_of(export: Path) -> Plan | None:
    """What the model of an export takes of files with columns; None if it was trained on something else."""
    with contextlib.suppress(ValueError):
        return from_json(read_facts(export / DATA).get("plan"))
    return None


def plan_for(inputs: Mapping[str, Any]) -> Plan:
    """What a model takes whose inputs, tensors by name, are columns of these names."""
    specs = {name: ArraySpec(tuple(each.shape.as_list()[1:]), each.dtype.name) for name, each in inputs.items()}
    columns = (
        Column(name, "given", spec.dtype, spec.shape, fill=None if spec.dtype == "string" else 0.0)
        for name, spec in specs.items()
    )
    return Plan(tuple(columns), Target(""))


def of_inputs(plan: Plan | None, inputs: Mapping[str, Any]) -> Plan:
    """The part of a plan for some inputs of the model, or that of columns of their names."""
    known = {each.name: each for each in plan.inputs} if plan else {}
    if plan is None or any(name not in known for name in inputs):
        return plan_for(inputs)
    return Plan(tuple(known[name] for name in inputs), plan.target, plan.id)


def open_columns(place: Path, option: str, plan: Plan, what: str) -> "Folder":
    """The files with the columns of a plan, read as those were on which the model was trained.

    Args:
        place: A file, or a folder of files.
        option: What names it, for errors.
        plan: What the model takes.
        what: What errors call the model.

    Raises:
        ConfigurationError: there are none, or a column is absent.
    """
    from trainer.data.columns.folder import open_folder  # it needs pyarrow

    if not find(place):
        raise ConfigurationError(
            f"{option}: {place} has no files with columns, which {what} takes; name a file whose name ends in {SHOWN}."
        )
    texts = [name for each in plan.inputs if each.dtype == "string" and not each.shape for name in each.reads]
    folder = open_folder(str(place), option.removeprefix("--"), readings=plan.readings)
    if absent := [name for name in plan.reads if name not in folder.types]:
        them = "it" if len(absent) == 1 else "them"
        raise ConfigurationError(
            f"{option}: {place} has no column {', '.join(absent)}, which {what} takes; add {them}."
        )
    return folder.as_written([*texts, *([plan.id] if plan.id else [])])


def rows(folder: "Folder", id_column: str | None, plan: Plan, skipped: Skipped) -> Iterator[Batch]:
    """The rows of files with columns, by their ids or numbers, as the model takes them."""
    from trainer.data.columns import arrays

    columns = [*dict.fromkeys([*plan.reads, *([id_column] if id_column else [])])]
    start = 0
    for path in folder.files.paths:
        first = start
        for batch in folder.read(path, columns, skipped):
            ids = batch[id_column].cast("string").to_pylist() if id_column else range(start, start + len(batch))
            yield ids, arrays.inputs(batch, plan, str(path), start - first)
            start += len(batch)
