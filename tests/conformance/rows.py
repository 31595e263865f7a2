"""All rows, by the names of Keras's classes and of the programs, with their outcomes."""

import inspect
from dataclasses import replace
from typing import Any

from tests.conformance.applications import APPLICATIONS
from tests.conformance.compiled import LOSSES, METRICS, OPTIMIZERS, SCHEDULES
from tests.conformance.layers import LAYERS
from tests.conformance.outcomes import DIFFERS, REFUSED
from tests.conformance.programs import PROGRAMS
from tests.conformance.row import Row
from tests.conformance.tables import TABLES

MODULES = {
    "layers": LAYERS,
    "losses": LOSSES,
    "metrics": METRICS,
    "optimizers": OPTIMIZERS,
    "optimizers.schedules": SCHEDULES,
}
"""The rows of each module of Keras, by the names of its classes."""
GROUPS = {**MODULES, "programs": PROGRAMS, "tables": TABLES, "applications": APPLICATIONS}
ROWS: dict[str, Row] = {
    name: replace(row, refused=REFUSED.get(name, ""), differs=DIFFERS.get(name, ""))
    for group, rows in GROUPS.items()
    for name, row in ((f"{group}.{each}", row) for each, row in rows.items())
}


def public_classes(module: str) -> dict[str, list[str]]:
    """The classes of a module of Keras: each with its other names, by the name that has a row, or by its own."""
    import keras

    found: Any = keras
    for part in module.split("."):
        found = getattr(found, part)
    names: dict[type, list[str]] = {}
    for name, each in vars(found).items():
        if inspect.isclass(each):
            names.setdefault(each, []).append(name)
    return {
        first: sorted({*all_names} - {first})
        for all_names in names.values()
        for first in [next((name for name in all_names if name in MODULES[module]), all_names[0])]
    }
