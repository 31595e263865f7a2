"""What the schema of a dataset says beside its columns: the names of the classes, and of the elements of x."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

CLASSES, FEATURES = "classes", "features"
"""Keys of lists of names, in JSON."""


def with_names(schema: pa.Schema, classes: Sequence[str] | None, features: Sequence[str] | None) -> pa.Schema:
    """The schema with these names."""
    found = {CLASSES: classes, FEATURES: features}
    return schema.with_metadata({key: json.dumps(list(each)) for key, each in found.items() if each})


def names(schema: Any, key: str) -> list[str] | None:
    """The names of the classes or of the elements of x; None if the schema does not have them."""
    found = (schema.metadata or {}).get(key.encode())
    return [str(each) for each in json.loads(found)] if found else None
