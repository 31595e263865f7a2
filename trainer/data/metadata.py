"""What the schema of a dataset says beside its columns: the names of the classes, and the columns that x is made of."""

import json
from collections.abc import Sequence
from typing import Any

from trainer.data.columns.vectors import Columns, features

CLASSES, FEATURES, COLUMNS = "classes", "features", "columns"
"""Keys, whose values are JSON: the names of the classes and of the elements of x, and the columns of x."""


def with_names(schema: Any, classes: Sequence[str] | None, columns: Columns | None) -> Any:
    """The `pyarrow.Schema` with these names."""
    found = {CLASSES: classes, FEATURES: columns and features(columns), COLUMNS: columns}
    return schema.with_metadata({key: json.dumps(each) for key, each in found.items() if each})


def names(schema: Any, key: str) -> list[str] | None:
    """The names of the classes or of the elements of x; None if the schema does not have them."""
    found = (schema.metadata or {}).get(key.encode())
    return [str(each) for each in json.loads(found)] if found else None


def columns(schema: Any) -> Columns | None:
    """The columns of x; None if the schema does not have them."""
    found = (schema.metadata or {}).get(COLUMNS.encode())
    if found:
        return dict(json.loads(found))
    known = names(schema, FEATURES)  # of earlier versions of the trainer: numbers
    return dict.fromkeys(known) if known else None
