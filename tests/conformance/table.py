"""Writes docs/keras.md (`make conformance-docs`): what becomes of each of Keras's public classes."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.row import Row
from tests.conformance.rows import GROUPS, MODULES, ROWS, public_classes

PAGE = Path(__file__).parents[2] / "docs" / "keras.md"
INTRODUCTION = """\
# What trains as by `keras.Model.fit`

After this page you know which of Keras's classes the trainer trains, and which it refuses.

The tests in `tests/conformance/` train a small model with each class in two ways: by plain `keras.Model.fit`, and by
the trainer on the same batches. They compare the loss and the metrics of each step, all weights, the metrics of the
held-out split, and the predictions of the exported SavedModel and of `model.keras`. `make conformance` runs all of
them; `make test` runs one for each mechanism. `make conformance-docs` writes this page from them.

The models of `keras.applications` train without dropout. They are deep, so they amplify the rounding of sums: for them
`fit` runs without Grappler, which changes the order of sums, and which the trainer does not use on CPUs.

- **as fit**: all of these are equal, within the rounding of float32.
- **as fit, in learning**: the class draws random numbers, which differ. Training with it lowers the loss as `fit` does.
- **refused**: before the first step, with this sentence after the name of the model's file.
- **differs**: a known fault.
- **nothing to train**: with the reason.
"""


def outcome(row: Row) -> str:
    """What becomes of a row, in words."""
    if not row.is_trained:
        return f"nothing to train: {row.note}"
    if row.refused:
        return f"refused: {row.refused}"
    if row.differs:
        return f"differs: {row.differs}"
    return "as fit" + (", in learning" if row.compared == "learning" else "") + (f": {row.note}" if row.note else "")


def page() -> str:
    """The text of the page."""
    tables = [
        *(_table(f"`keras.{module}`", "class", module, public_classes(module)) for module in MODULES),
        _table("Other programs", "program", "programs", {}),
        _table("Tables, and what is none (docs/tables.md)", "program", "tables", {}),
        _table("`keras.applications`: the smallest model of each family", "model", "applications", {}),
    ]
    return "\n".join([INTRODUCTION, *tables])


def _table(title: str, column: str, group: str, aliases: Mapping[str, list[str]]) -> str:
    """A section with the rows of a group."""
    lines = [
        f"| {', '.join(_name(each, group) for each in [name, *aliases.get(name, [])])} "
        f"| {_cell(outcome(ROWS[f'{group}.{name}']))} |"
        for name in GROUPS[group]
    ]
    return "\n".join([f"## {title}", "", f"| {column} | outcome |", "| --- | --- |", *lines, ""])


def _name(name: str, group: str) -> str:
    return name.replace("_", " ") if group in ("programs", "tables") else f"`{name}`"


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_])", r"\\\1", " ".join(text.split()))


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
