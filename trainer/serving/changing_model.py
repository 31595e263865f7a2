"""The variables of a loaded SavedModel, which deltas change while it predicts."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainer.export.deltas import Array, Delta
from trainer.export.export_folder import IDS, NEW_IDS, NEW_ROWS
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Session, Tensor


class MismatchError(Exception):
    """A delta does not fit the model."""


class ChangingModel:
    """Changes the variables of a session."""

    def __init__(self, session: Session) -> None:
        """Add the ops to the session's graph."""
        self._session = session
        with session.graph.as_default():
            self._variables = {each.op.name: each for each in tf1.global_variables()}
            self._values: dict[str, Tensor] = {}
            self._rows = tf1.placeholder(tf.int64, [None])
            self._assign: dict[str, Any] = {}
            self._scatter: dict[str, Any] = {}
            for name, variable in self._variables.items():
                given = self._values[name] = tf1.placeholder(variable.dtype.base_dtype)
                self._assign[name] = tf.raw_ops.AssignVariableOp(resource=variable.handle, value=given)
                if variable.dtype == tf.float32:
                    self._scatter[name] = tf.raw_ops.ResourceScatterUpdate(
                        resource=variable.handle, indices=self._rows, updates=given
                    )
        tables = [name.removesuffix(IDS) for name in self._variables if name.endswith(IDS)]
        tables = [name for name in tables if name + NEW_IDS in self._variables]
        self._ids: dict[str, Array] = {name: self._read(name + IDS) for name in tables}
        """The ids of the exported rows of tables that grow, by the names of these."""
        self._new: dict[str, tuple[Array, Array]] = {
            name: (self._read(name + NEW_IDS), self._read(name + NEW_ROWS)) for name in tables
        }
        """The ids and the rows that came later."""

    def _read(self, name: str) -> Array:
        found: Array = self._session.run(self._variables[name].read_value())
        return found

    @property
    def new_share(self) -> float:
        """The largest share of rows of a table that came later."""
        return max((len(self._new[name][0]) / (1 + len(ids)) for name, ids in self._ids.items()), default=0.0)

    def prepare(self, delta: Delta) -> Callable[[], None]:
        """Prepare a delta; return what applies it, during which nobody may predict.

        Raises:
            MismatchError: it does not fit the model.
        """
        absent = (delta.arrays.keys() | delta.tables.keys()) - self._variables.keys()
        if absent:
            raise MismatchError(f"the model has no {min(absent)}")
        runs: list[tuple[Any, Mapping[Tensor, Any]]] = []
        for name, array in delta.arrays.items():
            if self._variables[name].shape != array.shape:
                raise MismatchError(f"{name} has the shape {self._variables[name].shape}, not {array.shape}")
            runs.append((self._assign[name], {self._values[name]: array}))
        new = dict(self._new)
        for name, changes in delta.tables.items():
            if changes.values.shape[1:] != self._variables[name].shape[1:]:
                raise MismatchError(f"{name} has rows of {self._variables[name].shape[1]}")
            if name not in self._scatter or self._variables[name].shape.rank != 2:
                raise MismatchError(f"{name} is not a table")
            rows, values = changes.rows, changes.values
            if (rows is None) == (changes.ids is None) or (changes.ids is not None) != (name in self._ids):
                raise MismatchError(f"{name} is a table of another kind")
            if rows is not None and len(rows) and not 0 <= rows.min() <= rows.max() < self._variables[name].shape[0]:
                raise MismatchError(f"{name} lacks the row {rows.max()}")
            if changes.ids is not None:
                rows, values, new[name] = self._divide(name, changes.ids, values)
                if new[name] is not self._new[name]:
                    for end, array in zip((NEW_IDS, NEW_ROWS), new[name], strict=True):
                        runs.append((self._assign[name + end], {self._values[name + end]: array}))
            runs.append((self._scatter[name], {self._rows: rows, self._values[name]: values}))

        def apply() -> None:
            for op, feeds in runs:
                self._session.run(op, feeds)
            self._new = new

        return apply

    def _divide(self, name: str, ids: Array, changed: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        """The numbers and the values of exported rows that have changed, and the ids and values of all other rows."""
        known = self._ids[name]
        places = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0))
        is_known = known[places] == ids if len(known) else np.zeros(len(ids), bool)
        of_known = places[is_known], changed[is_known]
        if is_known.all():
            return *of_known, self._new[name]
        earlier, rows = self._new[name]
        stays = ~np.isin(earlier, ids)
        joined = np.concatenate([earlier[stays], ids[~is_known]])
        values = np.concatenate([rows[stays], changed[~is_known]])
        order = np.argsort(joined)
        return *of_known, (joined[order], values[order])
