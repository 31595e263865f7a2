"""What the schema of a Lance dataset says beside its columns: the names of the classes, and what a table is."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

CLASSES, TABLE = "classes", "table"
"""Keys, whose values are JSON."""
_SIGNS = str.maketrans({".": "\u2024", "`": "\u02cb"})
"""Lance refuses columns whose names have the signs on the left; those on the right look like them."""


@dataclass(frozen=True)
class Table:
    """A dataset that was made from a table: it has the columns as they are."""

    target: str
    """The column to predict."""
    is_class: bool
    """Whether it is a class, and not a value."""


def with_facts(schema: Any, classes: Sequence[str] | None, table: Table | None) -> Any:
    """The `pyarrow.Schema` with these facts."""
    found = {CLASSES: classes and [*classes], TABLE: table and asdict(table)}
    return schema.with_metadata({key: json.dumps(each) for key, each in found.items() if each})


def class_names(schema: Any) -> list[str] | None:
    """The names of the classes; None if the schema does not have them."""
    found = _read(schema, CLASSES)
    return [str(each) for each in found] if found else None


def table(schema: Any) -> Table | None:
    """What the table of a schema is; None if the dataset was not made from one."""
    found = _read(schema, TABLE)
    return Table(**found) if found else None


def stored_name(column: str) -> str:
    """The name by which a dataset has a column."""
    return column.translate(_SIGNS)


def column_name(stored: str) -> str:
    """The name of a column that a dataset has by this name."""
    return stored.translate({ord(sign): chr(each) for each, sign in _SIGNS.items()})


def _read(schema: Any, key: str) -> Any:
    found = (schema.metadata or {}).get(key.encode())
    return json.loads(found) if found else None
