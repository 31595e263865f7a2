"""Writes docs/keras.md (`make conformance-docs`): what becomes of each of Keras's public classes."""

import re
from pathlib import Path

from tests.conformance.applications import APPLICATIONS
from tests.conformance.programs import PROGRAMS
from tests.conformance.row import Row
from tests.conformance.rows import GROUPS, public_classes

PAGE = Path(__file__).parents[2] / "docs" / "keras.md"
INTRODUCTION = """\
# What trains as by `keras.Model.fit`

After this page you know which of Keras's classes the trainer trains, and which it refuses.

The tests in `tests/conformance/` train a small model with each class in two ways: by plain `keras.Model.fit`, and by
the trainer on the same batches. They compare the loss and the metrics of each step, all weights, the metrics of the
held-out split, and the predictions of the exported SavedModel and of `model.keras`. `make conformance` runs all of
them; `make test` runs one for each mechanism. `make conformance-docs` writes this page from them.

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
    parts = [INTRODUCTION]
    for group, rows in GROUPS.items():
        names = public_classes(group)
        lines = [_line([name, *names.get(name, [])], row) for name, row in rows.items()]
        parts.append(_table(f"`keras.{group}`", "class", lines))
    lines = [f"| {name.replace('_', ' ')} | {_cell(outcome(row))} |" for name, row in PROGRAMS.items()]
    parts.append(_table("Other programs", "program", lines))
    lines = [_line([name], row) for name, row in APPLICATIONS.items()]
    parts.append(_table("The smallest model of each family of `keras.applications`", "model", lines))
    return "\n".join(parts)


def _table(title: str, column: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", f"| {column} | outcome |", "| --- | --- |", *lines, ""])


def _line(names: list[str], row: Row) -> str:
    return f"| {', '.join(f'`{name}`' for name in names)} | {_cell(outcome(row))} |"


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_])", r"\\\1", " ".join(text.split()))


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
