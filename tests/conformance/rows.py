"""All rows, by the names of Keras's classes and of the programs."""

import inspect
from typing import Any

from tests.conformance.applications import APPLICATIONS
from tests.conformance.compiled import LOSSES, METRICS, OPTIMIZERS, SCHEDULES
from tests.conformance.layers import LAYERS
from tests.conformance.programs import PROGRAMS
from tests.conformance.row import Row

GROUPS = {
    "layers": LAYERS,
    "losses": LOSSES,
    "metrics": METRICS,
    "optimizers": OPTIMIZERS,
    "optimizers.schedules": SCHEDULES,
}
"""The rows of each module of Keras, by the names of its classes."""

ROWS: dict[str, Row] = {
    f"{group}.{name}": row
    for group, rows in {**GROUPS, "programs": PROGRAMS, "applications": APPLICATIONS}.items()
    for name, row in rows.items()
}


def public_classes(group: str) -> dict[str, list[str]]:
    """The classes of a module of Keras: each with its other names, by the name that has a row, or by its own."""
    import keras

    module: Any = keras
    for part in group.split("."):
        module = getattr(module, part)
    names: dict[type, list[str]] = {}
    for name, found in vars(module).items():
        if inspect.isclass(found):
            names.setdefault(found, []).append(name)
    return {
        first: sorted({*all_names} - {first})
        for all_names in names.values()
        for first in [next((name for name in all_names if name in GROUPS[group]), all_names[0])]
    }
