"""What each column of a table is for a model: an input and how it is read, the target, the id of a row, or left out.

A plan is part of a run: the export has it, so that a prediction reads the columns as the training has.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

MOST_LINES = 100
"""The columns that the log names one by one: so many inputs, and as many that are left out."""
Kind = Literal["number", "date", "category", "hashed", "text", "bag", "vector", "given"]
"""How the packaged model takes a column; `given` is what a model of the user's takes by its own input."""


@dataclass(frozen=True)
class Column:
    """A column that is an input."""

    name: str
    """That of the input: the column's, without the slash that Keras refuses."""
    kind: Kind
    dtype: str
    """That of the array: float32, float64, int32, int64 or string. Dates are float64 seconds since 1970."""
    shape: tuple[int | None, ...] = ()
    """That of one example."""
    missing: int = 0
    """The rows without a value, of those that were looked at."""
    fill: float | None = None
    """What stands for a missing number; None is NaN. A missing text is empty."""
    mean: float = 0.0
    variance: float = 1.0
    categories: tuple[str, ...] = ()
    """The texts that are told apart; others are one more category."""
    bins: int = 0
    """The number of groups to which texts are hashed."""
    sources: tuple[str, ...] = ()
    """The columns that make it; several are numbers, the elements of a vector. Empty if it is that of this name."""
    reading: str = ""
    """How files of text write its numbers or dates, such as the day first; see `tabular/readings.py`."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it is made of."""
        return self.sources or (self.name,)

    @property
    def is_vector_of_columns(self) -> bool:
        """Whether columns of numbers are the elements of its array."""
        return len(self.sources) > 1 or (bool(self.sources) and self.shape == (len(self.sources),))

    @property
    def what(self) -> str:
        """What becomes of the column, for the log."""
        if self.kind == "number":
            return f"number, mean {self.mean:.4g}, standard deviation {self.variance**0.5:.4g}"
        if self.kind == "date":
            return "date: days, and the place in the year, the week and the day"
        if self.kind == "category":
            shown = ", ".join(self.categories[:4]) + (", …" if len(self.categories) > 4 else "")
            many = "1 category" if len(self.categories) == 1 else f"{len(self.categories)} categories"
            return f"{many} ({shown}), and other"
        if self.kind == "hashed":
            return f"texts, hashed to {self.bins:,} vectors"
        if self.kind == "text":
            return f"text: which of its {self.bins:,} most frequent words it has"
        if self.kind == "bag":
            return f"lists, whose elements are hashed to {self.bins:,} vectors"
        if self.kind == "vector":
            return f"vector of {self.shape[0]} numbers"
        made = f" of {', '.join(self.sources)}" if self.is_vector_of_columns else ""
        return f"{self.dtype} {list(self.shape)}{made}"

    @property
    def missing_rule(self) -> str:
        """What stands for a missing value, for the log."""
        if self.dtype == "string":
            return "the empty text" if self.kind == "given" else "a category of its own"
        return "the mean, and a flag" if self.fill is None else f"{self.fill:g}"


@dataclass(frozen=True)
class Target:
    """The column to predict."""

    name: str
    classes: tuple[str, ...] = ()
    """The names of the classes, by label; empty if it is a value."""
    mean: float = 0.0
    stddev: float = 1.0
    """Of a value."""
    has_labels: bool = False
    """Whether the data has the labels of the classes, and not their names."""


@dataclass(frozen=True)
class Plan:
    """What a model takes of a table."""

    inputs: tuple[Column, ...]
    target: Target
    id: str | None = None
    """The column that identifies a row. It is no input, and predictions have it."""
    sample_weight: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not used, and why."""
    rows: int = 0
    """The rows that were looked at."""

    @property
    def reads(self) -> list[str]:
        """The columns to read for the inputs, each once."""
        return list(dict.fromkeys(name for each in self.inputs for name in each.reads))

    @property
    def columns(self) -> list[str]:
        """The columns to read for examples, each once."""
        return list(dict.fromkeys([self.target.name, *self.reads, *filter(None, [self.sample_weight])]))

    @property
    def readings(self) -> dict[str, str]:
        """By column, how files of text write its numbers or dates, as far as it is known."""
        return {name: each.reading for each in self.inputs for name in each.reads if each.reading}

    def with_readings(self, readings: Mapping[str, str]) -> "Plan":
        """The plan of columns that files of text write so."""
        inputs = (dataclasses.replace(each, reading=readings.get(each.reads[0], "")) for each in self.inputs)
        return dataclasses.replace(self, inputs=tuple(inputs))

    @property
    def lines(self) -> Sequence[str]:
        """A table of what becomes of each column, for the log; of many, the first ones and the number of the others."""
        rows = [
            (each.sources[0] if len(each.sources) == 1 else each.name, each.what, _missing(each, self.rows))
            for each in self.inputs[:MOST_LINES]
        ]
        if len(self.inputs) > MOST_LINES:
            rows.append(("…", f"{len(self.inputs) - MOST_LINES:,} other inputs, which data.json of the export has", ""))
        classes = f"{len(self.target.classes)} classes: {', '.join(self.target.classes[:6])}"
        rows.append((self.target.name, f"the target: {classes if self.target.classes else 'a value'}", ""))
        rows += [
            (name, what, "")
            for name, what in ((self.id, "the id of a row"), (self.sample_weight, "the weight of a row in the loss"))
            if name
        ]
        rows += [(name, f"left out: {why}", "") for name, why in [*self.left_out.items()][:MOST_LINES]]
        if len(self.left_out) > MOST_LINES:
            rows.append(("…", f"left out: {len(self.left_out) - MOST_LINES:,} others", ""))
        width = min(30, max(len(name) for name, _, _ in rows))
        return [f"{name:{width}}  {what}{missing}" for name, what, missing in rows]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return dataclasses.asdict(self)


def from_json(found: Any) -> Plan:
    """The plan of what `to_json` has given.

    Raises:
        pydantic.ValidationError: it is none.
    """
    return TypeAdapter(Plan).validate_python(found)


def _missing(column: Column, rows: int) -> str:
    if not column.missing:
        return ""
    return f"; {column.missing:,} missing ({column.missing / max(1, rows):.1%}): {column.missing_rule}"
