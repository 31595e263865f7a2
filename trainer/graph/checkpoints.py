"""Checkpoints of the flat parameters: full arrays under the model's names, which any TensorFlow program can read.

The optimizer slots of parameter `NAME` are saved as `NAME/SLOT`, with the slot names of TensorFlow's optimizers. A
checkpoint does not depend on the sharding of the parameters. Its file name ends with its global step.
"""

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.data.files import write_atomically
from trainer.graph.optimizer import LARGEST_MOMENT, MOMENTS
from trainer.graph.parameters import Layout, Shard
from trainer.graph.shared_event import SAVING, SharedEvent
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Session, Tensor

GLOBAL_STEP = "global_step"
STEP = re.compile(r"-([0-9]{1,18})$")
"""The step at the end of a checkpoint's name."""


class Saver:
    """Ops that save and restore all shards."""

    def __init__(
        self,
        layout: Layout,
        shards: Sequence[Shard],
        slots: Sequence[str],
        servers: Sequence[str],
        can_roll_back: bool = False,
    ) -> None:
        """Add the ops to the default graph, on the current device.

        Args:
            layout: Layout of the parameters.
            shards: Shards of the parameters.
            slots: Slot names of the optimizer.
            servers: Devices of the parameter servers on which the event `SAVING` is set during a save.
            can_roll_back: Whether to add the ops of `roll_back`.
        """
        self._layout, self._shards = layout, shards
        self._slots = {f"/{slot}": [shard.slots[index] for shard in shards] for index, slot in enumerate(slots)}
        self._path = tf1.placeholder(tf.string, [], "checkpoint")
        self._save = self._add_save(servers)
        self._has_largest = LARGEST_MOMENT in slots
        self._step = tf1.placeholder(tf.int64, [], "step")
        ages = {False, self._has_largest}
        self._restore = {lacks_largest: self._add_restore(lacks_largest) for lacks_largest in ages}
        self._roll_back = {lacks_largest: self._add_roll_back(lacks_largest) for lacks_largest in ages if can_roll_back}
        self._accept = tf.group(*[_accept(shard) for shard in shards if shard.accepted_from is not None])
        self._are_finite = tf.reduce_all(tf.stack([_is_finite(shard) for shard in shards]))

    def save(self, session: Session, stem: Path) -> str:
        """Save a checkpoint and return its path, STEM-STEP."""
        return str(session.run(self._save, {self._path: str(stem)}).decode())

    def restore(self, session: Session, path: str) -> None:
        """Restore all shards from a checkpoint.

        A checkpoint that was saved without AMSGrad has no largest second moment; its second moment is used instead.

        Raises:
            tf.errors.OpError, ValueError: the checkpoint cannot be read.
        """
        session.run(self._restore[self._lacks_largest(path)], {self._path: path})

    def roll_back(self, session: Session, path: str, step: int) -> int:
        """Restore initialized shards from a checkpoint, set this global step, and return the resulting global step.

        If other replicas continue to train meanwhile, the resulting step is later than all of theirs, and the gradients
        that they computed from earlier parameters are dropped.

        Raises:
            tf.errors.OpError, ValueError: the checkpoint cannot be read.
        """
        return int(session.run(self._roll_back[self._lacks_largest(path)], {self._path: path, self._step: step}))

    def accept(self, session: Session) -> None:
        """Make shards accept gradients again after an interrupted rollback."""
        session.run(self._accept)

    def _lacks_largest(self, path: str) -> bool:
        """Whether the checkpoint lacks the largest second moment (AMSGrad) that the shards have."""
        try:
            names = tf1.train.load_checkpoint(path).get_variable_to_shape_map()
        except tf.errors.OpError as error:  # of the base class; raise a specific one
            raise tf.errors.DataLossError(None, None, error.message) from error
        return self._has_largest and not any(name.endswith(f"/{LARGEST_MOMENT}") for name in names)

    def are_finite(self, session: Session) -> bool:
        """Whether all parameters are currently finite."""
        return bool(session.run(self._are_finite))

    def _add_save(self, servers: Sequence[str]) -> Tensor:
        step = self._shards[0].updates.read_value()
        tensors = {GLOBAL_STEP: step}
        tensors |= self._layout.unpack([shard.read_parameters() for shard in self._shards])
        for suffix, variables in self._slots.items():
            arrays = self._layout.of_trainable.unpack([variable.read_value() for variable in variables])
            tensors |= {name + suffix: array for name, array in arrays.items()}
        path = tf.strings.join([self._path, tf.strings.as_string(step)], "-")
        saving = [SharedEvent(SAVING, device) for device in servers]
        with tf.control_dependencies([event.set() for event in saving]):
            saved = tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
        with tf.control_dependencies([saved]):
            cleared = [event.clear() for event in saving]
        with tf.control_dependencies([saved, *cleared]):
            return tf.identity(path)

    def _add_restore(self, lacks_largest: bool) -> Operation:
        """Add an op that restores all shards."""
        assigned, step = self._add_assignments(lacks_largest)
        for shard in self._shards:
            assigned.append(shard.updates.assign(step, read_value=False))
            if shard.accepted_from is not None:
                assigned.append(shard.accepted_from.assign(tf.zeros([], tf.int64), read_value=False))
        return tf.group(*assigned)

    def _add_roll_back(self, lacks_largest: bool) -> Tensor:
        """Add a tensor that rolls all shards back and is the resulting global step."""
        accepted_from = [shard.accepted_from for shard in self._shards if shard.accepted_from is not None]
        with tf.control_dependencies([each.assign(tf.int64.max, read_value=False) for each in accepted_from]):
            assigned, _ = self._add_assignments(lacks_largest)
        with tf.control_dependencies(assigned):
            step = tf.identity(self._step)
            if accepted_from:
                counts = tf.stack([shard.updates.read_value() for shard in self._shards])
                step = tf.maximum(step, tf.reduce_max(counts) + 1)
        counted = [shard.updates.assign(step, read_value=False) for shard in self._shards]
        with tf.control_dependencies(counted):
            accepted = [each.assign(step, read_value=False) for each in accepted_from]
        with tf.control_dependencies([*counted, *accepted]):
            return tf.identity(step)

    def _add_assignments(self, lacks_largest: bool) -> tuple[list[Operation], Tensor]:
        """Add ops that assign the restored arrays to all vectors; return these ops and the restored global step."""
        second, largest = f"/{MOMENTS[1]}", f"/{LARGEST_MOMENT}"
        saved = {suffix: second if lacks_largest and suffix == largest else suffix for suffix in self._slots}
        trainable = self._layout.of_trainable
        names = [*self._layout.shapes]
        names += [name + suffix for suffix in dict.fromkeys(saved.values()) for name in trainable.shapes]
        tensors = tf.raw_ops.RestoreV2(
            prefix=self._path,
            tensor_names=[GLOBAL_STEP, *names],
            shape_and_slices=[""] * (1 + len(names)),
            dtypes=[tf.int64] + [tf.float32] * len(names),
        )
        restored = dict(zip(names, tensors[1:], strict=True))
        assigned = []
        for shard, vector in zip(self._shards, _pack(self._layout, restored, ""), strict=True):
            parts = zip(shard.parameters, shard.split(vector), strict=True)
            assigned += [each.assign(value, read_value=False) for each, value in parts]
        for suffix, variables in self._slots.items():
            values = _pack(trainable, restored, saved[suffix])
            assigned += [each.assign(value, read_value=False) for each, value in zip(variables, values, strict=True)]
        return assigned, tf.reshape(tensors[0], [])


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


def _is_finite(shard: Shard) -> Tensor:
    with tf1.device(shard.device):
        return tf.reduce_all(tf.math.is_finite(shard.read_parameters()))


class CheckpointList:
    """The checkpoints that the file `checkpoint` of a directory lists, with a limit on their number."""

    def __init__(self, directory: Path, keep: int) -> None:
        """Read the list of the directory; `keep` is the limit."""
        self._directory, self._keep = directory.resolve(), keep
        self.paths = read_state(directory)
        """Oldest first."""

    def add(self, path: str) -> None:
        """Append a checkpoint, and delete the oldest ones above the limit."""
        paths = [*(each for each in self.paths if Path(each).name != Path(path).name), path]
        removed, self.paths = paths[: -self._keep], paths[-self._keep :]
        write_state(self._directory, self.paths)
        for each in removed:
            for file in files_of(each):
                file.unlink(missing_ok=True)


def read_state(directory: Path) -> list[str]:
    """The checkpoints that the file `checkpoint` lists, oldest first; if it is damaged, those of the directory."""
    try:
        state = tf1.train.get_checkpoint_state(str(directory))
    except ValueError:
        state = None
    listed = [path for path in state.all_model_checkpoint_paths if STEP.search(path)] if state else []
    if listed or not (directory / "checkpoint").exists():
        return listed
    files = [str(file.with_suffix("")) for file in directory.resolve().glob("*.index")]
    steps = {path: int(step[1]) for path in files if (step := STEP.search(path))}
    return sorted(steps, key=lambda path: steps[path])


def write_state(directory: Path, paths: Sequence[str]) -> None:
    """Write the file `checkpoint`, in which TensorFlow looks up the checkpoints of a directory, newest last.

    The file has names without directories, so the directory can be copied or mounted elsewhere.
    """
    names = [Path(each).name for each in paths]
    state = tf1.train.generate_checkpoint_state_proto(str(directory.resolve()), names[-1], names)
    write_atomically(directory / "checkpoint", str(state).encode())


def files_of(path: str) -> list[Path]:
    """The files of a checkpoint."""
    stem = Path(path)
    return [stem.with_name(f"{stem.name}.index"), *stem.parent.glob(f"{glob.escape(stem.name)}.data-*")]
