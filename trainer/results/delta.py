"""`trainer models delta`: what differs between two versions of a model, for a program that holds the older one.

Most rows of a large table stay as they are from one version to the next. Variables are compared in slices, so a model
may be larger than the memory.
"""

import argparse
import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config import Parser
from trainer.errors import ConfigurationError
from trainer.export.export_folder import IDS, digest
from trainer.results import named_model
from trainer.results.named_model import open_model

Array = npt.NDArray[Any]

LIST = "delta.json"
SLICE_BYTES = 32 << 20
"""What is read of a variable at once."""
ROWS_SHARE = 0.5
"""If more than this share of the rows differs, the variable is written as a whole."""


def add(commands: Any) -> None:
    """Add the subcommand to those of `trainer models`."""
    delta: Parser = commands.add_parser(
        "delta",
        prog="trainer models delta",
        help="write the rows and arrays in which two versions of a model differ",
        description="Write the rows and arrays in which a version of a model differs from an older one, for a program\n"
        f"that holds the older one in memory. FOLDER gets {LIST}, which names the variables, and their values\n"
        "as NumPy's files: all of a variable, or the rows that have changed and their numbers. Of a table that grows\n"
        "it has the ids of these rows, and of those that are gone. Both versions are exports of the trainer.",
    )
    delta.add_argument("old", metavar="OLD", help=named_model.HELP)
    delta.add_argument("new", metavar="NEW", help="the same")
    delta.add_argument("--output", metavar="FOLDER", type=Path, required=True, help="where to write; it must not exist")
    named_model.add_options(delta)
    delta.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the delta; return the exit code. Nothing is left if it cannot be written.

    Raises:
        ConfigurationError: a model cannot be read, the two have other variables, or the folder cannot be written.
        StoreError: an object store or MLflow does not respond.
    """
    output: Path = arguments.output
    if output.exists():
        raise ConfigurationError(f"--output: {output} exists; name a folder that does not.")
    registry = named_model.read_options(arguments)
    with open_model(arguments.old, "OLD", registry) as old, open_model(arguments.new, "NEW", registry) as new:
        before, after = _Variables(old.folder, "OLD"), _Variables(new.folder, "NEW")
        if before.kinds != after.kinds:
            shapes = before.kinds ^ after.kinds
            raise ConfigurationError(
                f"NEW: {arguments.new} has other variables than OLD, such as {min(name for name, *_ in shapes)}; use "
                "all of NEW."
            )
        partial = output.with_name(f".{output.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            changed = list(_write(partial, before, after))
            versions = {"old": old.folder.name, "new": new.folder.name}
            digests = {"old_digest": digest(old.folder), "new_digest": digest(new.folder)}
            listed = {**versions, **digests, "variables": changed}
            (partial / LIST).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
            partial.rename(output)
        except OSError as error:
            raise ConfigurationError(
                f"--output: {output} cannot be written ({error.strerror}); name another."
            ) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    size = sum(file.stat().st_size for file in output.iterdir()) / 2**20
    rows = sum(each.get("changed", 0) for each in changed)
    whole = sum("changed" not in each for each in changed)
    print(f"{output}: {rows:,} rows of tables and {whole} whole arrays have changed; {size:,.1f} MiB")
    return 0


class _Variables:
    """The variables of a SavedModel, of which rows can be read alone."""

    def __init__(self, folder: Path, argument: str) -> None:
        from trainer.tensorflow import tf, tf1  # slow

        self._argument, self._folder, self._tf = argument, folder, tf
        path = str(folder / "variables" / "variables")
        with self._reading():
            reader = tf1.train.load_checkpoint(path)
        shapes = {name: tuple(shape) for name, shape in sorted(reader.get_variable_to_shape_map().items())}
        types = reader.get_variable_to_dtype_map()
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: shape for name, shape in shapes.items() if types[name] != tf.string and 0 not in shape
        }
        """By name, of the variables with numbers."""
        self._types = {name: types[name] for name in self.shapes}
        self.growing = {name.removesuffix(IDS) for name in self.shapes if name.endswith(IDS)} & self.shapes.keys()
        """The names of the tables that grow: the variable NAME/ids has the ids of their rows, in ascending order."""
        of_rows = self.growing | {name + IDS for name in self.growing}
        self.kinds = {
            (name, shape[1:] if name in of_rows else shape, self._types[name]) for name, shape in self.shapes.items()
        }
        """Names, shapes and types, of tables that grow without the number of rows."""
        self._session = tf1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            self._name, self._part = (tf1.placeholder(tf.string, []) for _ in range(2))
            self._values = {
                dtype: tf.raw_ops.RestoreV2(
                    prefix=path, tensor_names=[self._name], shape_and_slices=[self._part], dtypes=[dtype]
                )
                for dtype in {*self._types.values()}
            }

    def slices(self, name: str) -> Iterator[tuple[int, int]]:
        """The first row and the end of each slice. An array that is not large is one slice."""
        shape = self.shapes[name]
        row_bytes = self._types[name].size * math.prod(shape[1:])
        if not shape or row_bytes * shape[0] <= SLICE_BYTES:
            return iter([(0, shape[0] if shape else 1)])
        rows = max(1, SLICE_BYTES // row_bytes)
        return ((start, min(start + rows, shape[0])) for start in range(0, shape[0], rows))

    def read(self, name: str, start: int, end: int) -> Array:
        """The rows from `start` to `end`."""
        shape = self.shapes[name]
        is_whole = not shape or end - start == shape[0]
        extents = [f"{start},{end - start}", *["-"] * (len(shape) - 1)]
        part = "" if is_whole else f"{' '.join(map(str, shape))} {':'.join(extents)}"
        with self._reading():
            (found,) = self._session.run(self._values[self._types[name]], {self._name: name, self._part: part})
        array: Array = np.asarray(found)
        return array

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        errors = self._tf.errors
        try:
            yield
        except (errors.OpError, IndexError, RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"{self._argument}: the variables of {self._folder} cannot be read ({str(error).splitlines()[0]}); "
                "copy the model again."
            ) from None


def _write(folder: Path, before: _Variables, after: _Variables) -> Iterator[dict[str, Any]]:
    """Write the variables that differ to a folder; yield an entry of the list for each."""
    for name in sorted(after.growing):
        yield from _write_growing(folder, name, before, after)
    of_rows = after.growing | {name + IDS for name in after.growing}
    for name, shape in after.shapes.items():
        if name in of_rows:
            continue
        rows = np.concatenate([_changed(name, *each, before, after) for each in after.slices(name)])
        if not len(rows):
            continue
        stem = str(len(list(folder.glob("*.values.npy"))))
        entry: dict[str, Any] = {"name": name, "shape": shape, "values": f"{stem}.values.npy"}
        if len(shape) == 2 and len(rows) <= ROWS_SHARE * shape[0]:
            np.save(folder / f"{stem}.rows.npy", rows)
            entry |= {"rows": f"{stem}.rows.npy", "changed": len(rows)}
        else:
            rows = np.arange(shape[0] if shape else 1)
        _write_rows(folder / entry["values"], name, rows, after)
        yield entry


def _write_growing(folder: Path, name: str, before: _Variables, after: _Variables) -> Iterator[dict[str, Any]]:
    """Write the rows of a table that grows which are new or differ, and the ids of those that are gone."""
    old, new = (each.read(name + IDS, 0, each.shapes[name + IDS][0]) for each in (before, after))
    parts = []
    for start, end in after.slices(name):
        values, ids = after.read(name, start, end), new[start:end]
        first, last = np.searchsorted(old, ids[0]), np.searchsorted(old, ids[-1], side="right")
        known, earlier = old[first:last], np.zeros_like(values)
        is_known = np.isin(ids, known)
        if len(known):
            earlier[is_known] = before.read(name, first, last)[np.searchsorted(known, ids[is_known])]
        differs = (_as_bytes(values, len(ids)) != _as_bytes(earlier, len(ids))).any(axis=1) | ~is_known
        parts.append((ids[differs], values[differs]))
    removed = old[~np.isin(old, new)]
    if not len(removed) and not any(len(ids) for ids, _ in parts):
        return
    stem = str(len([*folder.glob("*.values.npy")]))
    files = {kind: f"{stem}.{kind}.npy" for kind in ("ids", "values", "removed")}
    arrays = [np.concatenate(each) for each in zip(*parts, strict=True)]
    for file, array in zip(files.values(), [*arrays, removed], strict=True):
        np.save(folder / file, array)
    yield {"name": name, "shape": after.shapes[name], **files, "changed": len(arrays[0]), "gone": len(removed)}


def _changed(name: str, start: int, end: int, before: _Variables, after: _Variables) -> Array:
    """The numbers of the rows between these that differ, int64 [k]."""
    old, new = (_as_bytes(each.read(name, start, end), end - start) for each in (before, after))
    return start + np.flatnonzero((old != new).any(axis=1))


def _as_bytes(array: Array, rows: int) -> Array:
    """Rows as bytes, of which also those of NaN are equal."""
    return np.frombuffer(array.tobytes(), np.uint8).reshape(rows, -1)


def _write_rows(file: Path, name: str, rows: Array, variables: _Variables) -> None:
    """Write these rows, in ascending order."""
    shape = variables.shapes[name]
    with file.open("wb") as written:
        header = {"fortran_order": False, "shape": (len(rows), *shape[1:]) if shape else ()}
        for start, end in variables.slices(name):
            first, last = np.searchsorted(rows, [start, end])
            if first == last:
                continue
            values = variables.read(name, start, end)
            if "descr" not in header:
                header["descr"] = np.lib.format.dtype_to_descr(values.dtype)
                np.lib.format.write_array_header_1_0(written, header)
            written.write(np.ascontiguousarray(values[rows[first:last] - start] if shape else values).data)
