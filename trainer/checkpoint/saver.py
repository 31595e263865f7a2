"""Checkpoints of the flat parameters: full arrays under the model's names, which any TensorFlow program can read.

The optimizer slots of parameter `NAME` are saved as `NAME/SLOT`, with the slot names of TensorFlow's optimizers. A
checkpoint does not depend on the sharding of the parameters. Its file name ends with its global step.

A save has two parts. The snapshot is taken between two executions and copies nothing: the variables and the snapshot
share their memory until the next update writes to other memory. The snapshot is then fetched and written in any thread.

Tables are in files of their own (`trainer.checkpoint.table_files`).
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.checkpoint.files import COURSE, GLOBAL_STEP, OF_ANY_SIZE, course_of
from trainer.checkpoint.table_files import Changes, StoredArrays, Table
from trainer.checkpoint.table_saver import TableSaver, TableSnapshot
from trainer.shards.course import Course
from trainer.shards.parameters import Layout, Shard
from trainer.shards.shared_event import LEAVING, SAVING, SharedEvent
from trainer.shards.slots import AVERAGE, LARGEST_MOMENT, MOMENTS
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Session, Tensor, Variable
from trainer.text import truncate

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]


class Snapshot:
    """All values of a checkpoint as they were at one moment. Its file name ends with `step`."""

    def __init__(self, step: int, fetch: Callable[[], "_Values"], writer: "_Writer") -> None:
        """`fetch` returns the values, from wherever they are; `writer` writes them."""
        self.step = step
        self._fetch, self._writer = fetch, writer
        self._values: _Values | None = None

    def fetch(self) -> "_Values":
        """Fetch the values into this process's memory, and return them. They do not depend on other tasks any more.

        Raises:
            tf.errors.OpError, RuntimeError: a parameter server is lost, or the session is closed.
        """
        if self._values is None:
            self._values = self._fetch()
        return self._values

    @property
    def is_finite(self) -> bool:
        """Whether all parameters are finite: of tables, those that have changed."""
        return self._writer.is_finite(self.fetch())

    @property
    def period(self) -> int:
        """That which began with it: rows that change later are marked with it or a later one."""
        return self.fetch().tables.period

    def parameters(self, averaged: bool) -> dict[str, Array]:
        """The values of the parameters but for tables, by name; with `averaged` the averages of `use_ema`."""
        return self._writer.parameters(self.fetch(), averaged)

    def changes(self) -> Iterator[tuple[Table, Changes]]:
        """The tables, each with the rows that have changed."""
        found = self.fetch().tables
        return zip(found.tables, found.changes, strict=True)

    def write(self, stem: Path, may_merge: bool = True) -> str:
        """Write a checkpoint and return its path, STEM-STEP. `may_merge` allows new bases for its tables.

        Raises:
            tf.errors.OpError, OSError: it cannot be written.
        """
        path = f"{stem}-{self.step}"
        self._writer.write(path, self.step, self.fetch(), may_merge)
        return path


@dataclass(frozen=True)
class _Values:
    """The values of a snapshot."""

    arrays: Sequence[Array]
    """In the order of `_variables`."""
    tables: TableSnapshot
    more: Mapping[str, Array]
    """What is beside the arrays of the model, by name."""


class Saver:
    """Ops that save and restore all shards."""

    def __init__(
        self,
        layout: Layout,
        shards: Sequence[Shard],
        slots: Sequence[str],
        servers: Sequence[str],
        can_roll_back: bool = False,
        run: str = "",
        slot_values: Mapping[str, float] | None = None,
    ) -> None:
        """Add the ops to the default graph, on the current device.

        Args:
            layout: Layout of the parameters.
            shards: Shards of the parameters.
            slots: Slot names of the optimizer.
            servers: Devices of the parameter servers on which the event `SAVING` is set during a save, and which set
                `LEAVING`.
            can_roll_back: Whether to add the ops of `roll_back`.
            run: Unique identifier of the run.
            slot_values: Initial values of slots; by default 0.
        """
        self._layout, self._shards = layout, shards
        self._slot_values = slot_values or {}
        self._slots = {f"/{slot}": [shard.slots[index] for shard in shards] for index, slot in enumerate(slots)}
        self._read: list[Tensor] = []
        self._stage: Tensor | None = None
        self._fetch: list[Tensor] = []
        self.tables = TableSaver(shards, slots, run)
        """Saves and restores the tables, which need bases before a snapshot."""
        self._saving = [SharedEvent(SAVING, device) for device in servers]
        self.hold = tf.group(*[event.set() for event in self._saving])
        """Op that lets the parameter servers wait for a snapshot."""
        self.release = tf.group(*[event.clear() for event in self._saving])
        leaving = [SharedEvent(LEAVING, device) for device in servers]
        self.is_leaving = tf.reduce_any([event.is_set() for event in leaving]) if leaving else None
        """bool scalar: whether a parameter server is told to end; None without any."""
        self.let_leave = tf.group(*[event.clear() for event in leaving])
        """Op that does not let them wait any more, as `Snapshot.fetch` does."""
        self._add_snapshot(servers)
        self._writer = _Writer(layout, shards, slots, self.tables)
        self._step = tf1.placeholder(tf.int64, [], "step")
        self.course = Course(last_step=0)
        """The course of the checkpoint that was restored."""
        self.more_at: Callable[[], Callable[[int], Mapping[str, Array]]] = lambda: lambda _: {COURSE: self.course.array}
        """Returns what tells the other arrays of a snapshot at a global step. The chief sets it."""
        self.more: Mapping[str, Array] = {}
        """Those of the checkpoint that was restored."""
        self._restored: Sequence[Array] = []
        """What is being restored."""
        trainable = layout.of_trainable
        self._names = [*layout.shapes, *(name + suffix for suffix in self._slots for name in trainable.shapes)]
        """The names of the arrays of a checkpoint but for tables, after the global step."""
        self._restore_of = self._add_restore()
        self._restore = tf.group(*self._restore_of)
        accepted_from = [shard.accepted_from for shard in shards if shard.accepted_from is not None]
        self._refuse = tf.group(*[each.assign(tf.int64.max, read_value=False) for each in accepted_from])
        """Op that makes the shards drop all gradients."""
        self._roll_back = self._add_roll_back() if can_roll_back else None
        self._accept = tf.group(*[_accept(shard) for shard in shards if shard.accepted_from is not None])

    def save(self, session: Session, stem: Path) -> str:
        """Save a checkpoint and return its path, STEM-STEP."""
        if not self.tables.has_bases:
            self.tables.read_bases(session, stem.parent)
        return self.snapshot(session).write(stem)

    def snapshot(self, session: Session, since: int | None = None) -> Snapshot:
        """Take a snapshot of all shards. Take none before the previous one is fetched.

        With `since`, it has the rows of tables that have changed in this period or later, to be read and not to be
        written. By default it has those that have changed since the bases.

        Values of this process are fetched at once: on a CPU without a copy, from a GPU with one. Those of parameter
        servers, and tables, stay there until `fetch`; until then they keep the event `SAVING`.
        """
        more_at = self.more_at() if since is None else lambda _: {}  # what is done later is not known to be done
        if self._stage is None:
            step, *values = session.run(self._read)
            more = more_at(int(step))
            return Snapshot(int(step), lambda: _Values(values, self.tables.fetch(session), more), self._writer)
        step = int(session.run(self._stage, self.tables.begin_period(since)))
        more = more_at(step)

        def fetch() -> _Values:
            tables = self.tables.fetch(session)
            return _Values(list(session.run(self._fetch)), tables, more)

        return Snapshot(step, fetch, self._writer)

    def restore(self, session: Session, path: str) -> Sequence[int]:
        """Restore all shards from a checkpoint. A server that still has its part of the tables keeps that.

        A checkpoint that was saved without AMSGrad has no largest second moment; its second moment is used instead.

        Returns:
            The numbers of the servers that keep their tables.

        Raises:
            tf.errors.OpError, ValueError: the checkpoint cannot be read.
        """
        stored = self._read_arrays(path)
        course = course_of(stored)
        lost = self._restore_tables(session, stored)
        session.run(self._restore)
        self._restored, self.course = [], course
        self.more = {name: stored.whole(name) for name in OF_ANY_SIZE if name in stored.names}
        return [server for server, shard in enumerate(self._shards) if shard.tables and server not in lost]

    def restore_lost(self, session: Session, path: str, lost: Sequence[int], step: int) -> None:
        """Restore these shards alone from a checkpoint, in a run that goes on at this global step (Maeng et al., 2021).

        Raises:
            tf.errors.OpError, ValueError: the checkpoint cannot be read.
        """
        stored = self._read_arrays(path)
        self._restore_tables(session, stored)
        self._restored = [np.array(step, np.int64), *self._restored[1:]]
        session.run([self._restore_of[number] for number in lost])
        self._restored = []

    def _restore_tables(self, session: Session, stored: StoredArrays) -> Sequence[int]:
        """Restore the parts of tables that servers lack; return the numbers of these servers."""
        lost = self.tables.find_lost(session)
        self.tables.create(session, lost)
        self.tables.restore(session, stored, lost)
        return lost

    def differences(self, path: str) -> list[str]:
        """What the arrays of a checkpoint have that those of the model lack, and the reverse, in words."""
        try:
            stored = StoredArrays(path).names - {GLOBAL_STEP, COURSE, *OF_ANY_SIZE}
        except tf.errors.OpError:
            return []
        slots, own = tuple(self._slots), {*self._layout.shapes, *self.tables.shapes}
        trainable = {*self._layout.of_trainable.shapes, *self.tables.shapes}
        values = {name for name in stored if name.rpartition("/")[0] not in stored}
        trained = {name for name in values for suffix in slots if name + suffix in stored}
        found = {
            "the model has {}, which they lack": own - values,
            "they have {}, which the model lacks": values - own,
            "{} can be trained now, but could not": (trainable & values) - trained if trained else set(),
        }
        named = {text: truncate(", ".join(sorted(names)), 300) for text, names in found.items() if names}
        return [text.format(names) for text, names in named.items()]

    def roll_back(self, session: Session, path: str, step: int) -> int:
        """Restore initialized shards from a checkpoint, set this global step, and return the resulting global step.

        If other replicas continue to train meanwhile, the resulting step is later than all of theirs, and the gradients
        that they computed from earlier parameters are dropped.

        Raises:
            tf.errors.OpError, ValueError: the checkpoint cannot be read.
        """
        stored = self._read_arrays(path)
        session.run(self._refuse)
        self.tables.restore(session, stored)
        restored = int(session.run(self._roll_back, {self._step: step}))
        self._restored = []
        return restored

    def accept(self, session: Session) -> None:
        """Make shards accept gradients again after an interrupted rollback."""
        session.run(self._accept)

    def _read_arrays(self, path: str) -> StoredArrays:
        """Open a checkpoint, and read the arrays that the ops assign.

        A slot that it lacks begins anew: the run had another optimizer.
        """
        stored = StoredArrays(path)
        second, largest = f"/{MOMENTS[1]}", f"/{LARGEST_MOMENT}"
        absent = [suffix for suffix in self._slots if not any(name.endswith(suffix) for name in stored.names)]
        begun = [suffix for suffix in absent if suffix != largest or second in absent]
        for suffix in begun:
            stored_shapes = {name: stored.rows(name).shape for name in self.tables.shapes if name in stored.names}
            for name, shape in {**self._layout.of_trainable.shapes, **self.tables.shapes, **stored_shapes}.items():
                stored.fill(name + suffix, shape, self._slot_values.get(suffix[1:], 0.0))

        def source(name: str) -> str:
            if name.endswith(f"/{AVERAGE}") and f"/{AVERAGE}" in begun:
                return name.removesuffix(f"/{AVERAGE}")
            is_largest = name.endswith(largest) and largest in absent and largest not in begun
            return name.removesuffix(largest) + second if is_largest else name

        self._restored = [stored.whole(source(name)) for name in (GLOBAL_STEP, *self._names)]
        if begun:
            slots = ", ".join(suffix[1:] for suffix in begun)
            logger.warning(f"{path} has no {slots}: the optimizer has changed, and its state begins anew")
        return stored

    def _add_snapshot(self, servers: Sequence[str]) -> None:
        """Add the ops of a snapshot, which read all vectors at once.

        Parameter servers keep what they have read in a staging area, from which the chief fetches it.
        """
        step = self._shards[0].updates.read_value()
        if not servers and not self._shards[0].tables:
            vectors = _variables(self._shards, self._slots)
            self._read = [step, *[variable.read_value() for variable in vectors]]
            return
        begun = [event.set() for event in self._saving]
        staged, fetched = [], {}
        for number, shard in enumerate(self._shards):
            own = _variables([shard], {suffix: [slots[number]] for suffix, slots in self._slots.items()})
            name = f"{shard.name}/snapshot"
            area = {"shared_name": name, "dtypes": [tf.float32] * len(own)}

            def stage(shard: Shard = shard, own: Sequence[Variable] = own, area: dict[str, Any] = area) -> Operation:
                read = [variable.read_value() for variable in own]
                with tf.control_dependencies([tf.raw_ops.StageClear(**area)]):  # an earlier chief's
                    kept = tf.raw_ops.Stage(values=read, shared_name=area["shared_name"])
                return tf.group(kept, *self.tables.stage(shard))

            with tf1.device(shard.device), tf.control_dependencies(begun):
                staged.append(shard.alone(stage) if shard.tables else stage())
            with tf1.device(shard.device):
                kept = tf.raw_ops.Unstage(**area)
            for variable, value in zip(own, kept, strict=True):
                fetched[variable.ref()] = tf.identity(value)  # as a tensor of this task, it has no limit of size
        with tf.control_dependencies(staged):
            self._stage = tf.identity(step)
        here = [fetched[variable.ref()] for variable in _variables(self._shards, self._slots)]
        with tf.control_dependencies(here):
            cleared = [event.clear() for event in self._saving]
        with tf.control_dependencies(cleared):
            self._fetch = [tf.identity(value) for value in here]

    def _add_restore(self) -> list[Operation]:
        """Add an op for each shard that restores it."""
        assigned, step = self._add_assignments()
        for shard, own in zip(self._shards, assigned, strict=True):
            own.append(shard.updates.assign(step, read_value=False))
            if shard.accepted_from is not None:
                own.append(shard.accepted_from.assign(tf.zeros([], tf.int64), read_value=False))
        return [tf.group(*own) for own in assigned]

    def _add_roll_back(self) -> Tensor:
        """Add a tensor that rolls all shards back and is the resulting global step."""
        accepted_from = [shard.accepted_from for shard in self._shards if shard.accepted_from is not None]
        assigned, _ = self._add_assignments()
        with tf.control_dependencies([each for own in assigned for each in own]):
            step = tf.identity(self._step)
            if accepted_from:
                counts = tf.stack([shard.updates.read_value() for shard in self._shards])
                step = tf.maximum(step, tf.reduce_max(counts) + 1)
        counted = [shard.updates.assign(step, read_value=False) for shard in self._shards]
        with tf.control_dependencies(counted):
            accepted = [each.assign(step, read_value=False) for each in accepted_from]
        with tf.control_dependencies([*counted, *accepted]):
            return tf.identity(step)

    def _add_assignments(self) -> tuple[list[list[Operation]], Tensor]:
        """Add ops that assign the restored arrays to the vectors; return those of each shard, and the global step."""
        trainable = self._layout.of_trainable
        types = [tf.int64, *[tf.float32] * len(self._names)]
        step, *arrays = tf.numpy_function(lambda: self._restored, [], types)
        restored = dict(zip(self._names, arrays, strict=True))
        assigned = []
        for shard, vector in zip(self._shards, _pack(self._layout, restored, ""), strict=True):
            parts = zip(shard.parameters, shard.split(vector), strict=True)
            assigned.append([each.assign(value, read_value=False) for each, value in parts])
        for suffix, variables in self._slots.items():
            values = zip(variables, _pack(trainable, restored, suffix), strict=True)
            for own, (variable, value) in zip(assigned, values, strict=True):
                own.append(variable.assign(value, read_value=False))
        return assigned, tf.reshape(step, [])


def _pack(layout: Layout, restored: Mapping[str, Tensor], suffix: str) -> list[Tensor]:
    """The shards of the vector, from the restored arrays of this suffix."""
    return layout.pack({name: tf.reshape(restored[name + suffix], shape) for name, shape in layout.shapes.items()})


def _accept(shard: Shard) -> Operation:
    """Add an op that makes the shard accept new gradients, if it accepts none."""
    with tf1.device(shard.device):
        variable = shard.accepted_from
        assert variable is not None  # noqa: S101
        current = variable.read_value()
        accepts_none = tf.equal(current, tf.int64.max)
        return variable.assign(tf.where(accepts_none, shard.updates.read_value(), current), read_value=False)


def _variables(shards: Sequence[Shard], slots: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The float variables of these shards but for tables: parameters, in the order of the flat vector, then slots."""
    parameters = [variable for shard in shards for variable in shard.parameters]
    return [*parameters, *(variable for variables in slots.values() for variable in variables)]


def _split(vectors: Sequence[Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The arrays of these shapes, from the parts of their flat vector. An array within one part is not copied."""
    found, number, start = {}, 0, 0
    for name, shape in shapes.items():
        parts, absent = [], math.prod(shape)
        while absent:
            part = vectors[number][start : start + absent]
            parts.append(part)
            absent -= len(part)
            start += len(part)
            if start == len(vectors[number]):
                number, start = number + 1, 0
        flat = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0, np.float32)])
        found[name] = flat.reshape(shape)
    return found


class _Writer:
    """Writes the values of snapshots to checkpoints, in a session of its own, which takes no thread from training."""

    def __init__(self, layout: Layout, shards: Sequence[Shard], slots: Sequence[str], tables: TableSaver) -> None:
        self._parameters = sum(len(shard.parameters) for shard in shards)
        """The number of vectors with parameters. They are the first ones; the others are slots."""
        of_slots = {f"/{slot}": (len(shards), layout.of_trainable.shapes) for slot in slots}
        self._vectors = {"": (self._parameters, layout.shapes), **of_slots}
        """By suffix: the number of vectors, and the shapes of the arrays in them."""
        self._tables = tables
        self._session: Session = None

    def _arrays_of(self, values: _Values) -> dict[str, Array]:
        """The arrays of the parameters and of the slots, by name."""
        arrays: dict[str, Array] = {}
        rest = list(values.arrays)
        for suffix, (count, shapes) in self._vectors.items():
            vectors, rest = rest[:count], rest[count:]
            arrays |= {name + suffix: array for name, array in _split(vectors, shapes).items()}
        return arrays

    def parameters(self, values: _Values, averaged: bool) -> dict[str, Array]:
        """The values of the parameters but for tables, by name."""
        arrays = self._arrays_of(values)
        names = self._vectors[""][1]
        suffix = f"/{AVERAGE}" if averaged else ""
        return {name: arrays.get(name + suffix, arrays[name]) for name in names}

    def is_finite(self, values: _Values) -> bool:
        """Whether all parameters are finite."""
        dense = values.arrays[: self._parameters]
        return all(bool(np.isfinite(each).all()) for each in dense) and self._tables.is_finite(values.tables)

    def write(self, path: str, step: int, values: _Values, may_merge: bool) -> None:
        """Write a checkpoint of these values."""
        arrays = {GLOBAL_STEP: np.array(step, np.int64), **values.more, **self._arrays_of(values)}
        if self._session is None:
            self._build(arrays)
        self._session.run(self._save, {self._path: path, **{self._arrays[name]: arrays[name] for name in arrays}})
        if values.tables.changes:
            self._tables.write(path, values.tables, may_merge)

    def _build(self, arrays: Mapping[str, Array]) -> None:
        graph = tf.Graph()
        with graph.as_default(), tf1.device("/device:CPU:0"):
            self._path = tf1.placeholder(tf.string, [])
            shapes = {name: [None] if name in OF_ANY_SIZE else each.shape for name, each in arrays.items()}
            self._arrays = {name: tf1.placeholder(array.dtype, shapes[name]) for name, array in arrays.items()}
            self._save = tf.raw_ops.SaveV2(
                prefix=self._path,
                tensor_names=list(self._arrays),
                shape_and_slices=[""] * len(self._arrays),
                tensors=list(self._arrays.values()),
            )
        config = tf1.ConfigProto(
            inter_op_parallelism_threads=1,
            intra_op_parallelism_threads=1,
            use_per_session_threads=True,
            device_count={"GPU": 0},
        )
        self._session = tf1.Session(graph=graph, config=config)
