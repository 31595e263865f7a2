"""Checkpoints of the flat parameters: whole arrays under the model's names, as any other TensorFlow program expects.

Beside each parameter `NAME` the optimiser's slots are saved as `NAME/SLOT`, named as TensorFlow's own optimisers name
them. A checkpoint does not tell how the parameters were cut. Its file's name ends in the global step that is in it.
"""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.data.files import write_atomically
from trainer.graph.optimizer import LARGEST_MOMENT, MOMENTS
from trainer.graph.parameters import Layout, Shard
from trainer.graph.shared_event import SAVING, SharedEvent
from trainer.tensorflow import tf, tf1

GLOBAL_STEP = "global_step"


class Saver:
    """The ops that save and restore all shards."""

    def __init__(
        self,
        layout: Layout,
        shards: Sequence[Shard],
        slots: Sequence[str],
        servers: Sequence[str],
        rolls_back: bool = False,
    ) -> None:
        """Add them to the default graph, on the device in force.

        Args:
            layout: Of the parameters.
            shards: Where they are.
            slots: Names of the optimiser's slots.
            servers: The parameter servers' devices, whose flag `flags.SAVING` is up meanwhile.
            rolls_back: Whether `roll_back` may be called.
        """
        self._layout, self._parts = layout, shards
        self._vectors = {"": [shard.values for shard in shards]}
        self._vectors |= {f"/{slot}": [shard.slots[index] for shard in shards] for index, slot in enumerate(slots)}
        self._path = tf1.placeholder(tf.string, [], "checkpoint")
        self._save = self._add_save(servers)
        self._has_largest = LARGEST_MOMENT in slots
        self._step = tf1.placeholder(tf.int64, [], "step")
        ages = {False, self._has_largest}
        self._restore = {is_older: self._add_restore(is_older) for is_older in ages}
        self._roll_back = {is_older: self._add_roll_back(is_older) for is_older in ages if rolls_back}
        self._accept = tf.group(*[_accept(shard) for shard in shards if shard.accepted_from is not None])
        self._are_finite = tf.reduce_all(tf.stack([_is_finite(shard) for shard in shards]))

    def save(self, session: Any, stem: Path) -> str:
        """Save a checkpoint; its path, STEM-STEP."""
        return str(session.run(self._save, {self._path: str(stem)}).decode())

    def restore(self, session: Any, path: str) -> None:
        """Give all shards the values of a checkpoint.

        One that was saved without AMSGrad has no largest second moment: it goes on from the second moment.

        Raises:
            tf.errors.OpError, ValueError: it cannot be read.
        """
        session.run(self._restore[self._is_older(path)], {self._path: path})

    def roll_back(self, session: Any, path: str, step: int) -> int:
        """Give shards that have values those of a checkpoint, and this global step; the step that they have then.

        Where other replicas go on meanwhile, the step is a later one if theirs is, and what they have computed with
        earlier parameters is dropped.

        Raises:
            tf.errors.OpError, ValueError: it cannot be read.
        """
        return int(session.run(self._roll_back[self._is_older(path)], {self._path: path, self._step: step}))

    def accept(self, session: Any) -> None:
        """Let shards accept gradients again on which a roll-back was interrupted."""
        session.run(self._accept)

    def _is_older(self, path: str) -> bool:
        """Whether a checkpoint lacks the largest second moment that the shards have."""
        try:
            names = tf1.train.load_checkpoint(path).get_variable_to_shape_map()
        except tf.errors.OpError as error:  # of no particular kind
            raise tf.errors.DataLossError(None, None, error.message) from error
        return self._has_largest and not any(name.endswith(f"/{LARGEST_MOMENT}") for name in names)

    def are_finite(self, session: Any) -> bool:
        """Whether all parameters are finite now."""
        return bool(session.run(self._are_finite))

    def _add_save(self, servers: Sequence[str]) -> Any:
        step = self._parts[0].updates.read_value()
        tensors = {GLOBAL_STEP: step}
        for suffix, variables in self._vectors.items():
            arrays = self._layout.unpack([variable.read_value() for variable in variables])
            tensors |= {name + suffix: array for name, array in arrays.items()}
        path = tf.strings.join([self._path, tf.strings.as_string(step)], "-")
        saving = [SharedEvent(SAVING, device) for device in servers]
        with tf.control_dependencies([flag.set() for flag in saving]):
            saved = tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
        with tf.control_dependencies([saved]):
            down = [flag.clear() for flag in saving]
        with tf.control_dependencies([saved, *down]):
            return tf.identity(path)

    def _add_restore(self, is_older: bool) -> Any:
        """An op that restores."""
        assigned, step = self._add_assignments(is_older)
        for shard in self._parts:
            assigned.append(shard.updates.assign(step, read_value=False))
            if shard.accepted_from is not None:
                assigned.append(shard.accepted_from.assign(tf.zeros([], tf.int64), read_value=False))
        return tf.group(*assigned)

    def _add_roll_back(self, is_older: bool) -> Any:
        """A tensor that is the global step when the shards are rolled back."""
        dropping = [shard.accepted_from for shard in self._parts if shard.accepted_from is not None]
        with tf.control_dependencies([each.assign(tf.int64.max, read_value=False) for each in dropping]):
            assigned, _ = self._add_assignments(is_older)
        with tf.control_dependencies(assigned):
            step = tf.identity(self._step)
            if dropping:
                counts = tf.stack([shard.updates.read_value() for shard in self._parts])
                step = tf.maximum(step, tf.reduce_max(counts) + 1)
        counted = [shard.updates.assign(step, read_value=False) for shard in self._parts]
        with tf.control_dependencies(counted):
            accepted = [each.assign(step, read_value=False) for each in dropping]
        with tf.control_dependencies([*counted, *accepted]):
            return tf.identity(step)

    def _add_assignments(self, is_older: bool) -> tuple[list[Any], Any]:
        """Ops that give all vectors their restored arrays, and the restored global step."""
        second, largest = f"/{MOMENTS[1]}", f"/{LARGEST_MOMENT}"
        saved = {suffix: second if is_older and suffix == largest else suffix for suffix in self._vectors}
        names = [name + suffix for suffix in dict.fromkeys(saved.values()) for name in self._layout.shapes]
        found = tf.raw_ops.RestoreV2(
            prefix=self._path,
            tensor_names=[GLOBAL_STEP, *names],
            shape_and_slices=[""] * (1 + len(names)),
            dtypes=[tf.int64] + [tf.float32] * len(names),
        )
        restored = dict(zip(names, found[1:], strict=True))
        assigned = []
        for suffix, variables in self._vectors.items():
            shapes = self._layout.shapes.items()
            arrays = {name: tf.reshape(restored[name + saved[suffix]], shape) for name, shape in shapes}
            values = self._layout.pack(arrays)
            assigned += [each.assign(value, read_value=False) for each, value in zip(variables, values, strict=True)]
        return assigned, tf.reshape(found[0], [])


def _accept(shard: Shard) -> Any:
    """An op that accepts gradients from now on, if none are accepted."""
    with tf1.device(shard.device):
        accepted = shard.accepted_from
        assert accepted is not None  # noqa: S101
        now = accepted.read_value()
        return accepted.assign(tf.where(tf.equal(now, tf.int64.max), shard.updates.read_value(), now), read_value=False)


def _is_finite(shard: Shard) -> Any:
    with tf1.device(shard.device):
        return tf.reduce_all(tf.math.is_finite(shard.values.read_value()))


class CheckpointList:
    """The checkpoints of a directory, as its file `checkpoint` lists them, and how many of them are kept."""

    def __init__(self, directory: Path, keep: int) -> None:
        """Read the list."""
        self._directory, self._keep = directory.resolve(), keep
        state = tf1.train.get_checkpoint_state(str(directory))
        self.paths: list[str] = list(state.all_model_checkpoint_paths) if state else []
        """Oldest first."""

    def add(self, path: str) -> None:
        """List a new one, and remove the oldest beyond those that are kept."""
        paths = [*(each for each in self.paths if Path(each).name != Path(path).name), path]
        removed, self.paths = paths[: -self._keep], paths[-self._keep :]
        write_state(self._directory, self.paths)
        for each in removed:
            for file in files_of(each):
                file.unlink(missing_ok=True)


def write_state(directory: Path, paths: Sequence[str]) -> None:
    """Write the file `checkpoint` by which TensorFlow finds the checkpoints of a directory, the newest last.

    It has names without their folder: a directory that is copied or mounted elsewhere has its own checkpoints.
    """
    names = [Path(each).name for each in paths]
    state = tf1.train.generate_checkpoint_state_proto(str(directory.resolve()), names[-1], names)
    write_atomically(directory / "checkpoint", str(state).encode())


def files_of(path: str) -> list[Path]:
    """The files of a checkpoint."""
    stem = Path(path)
    return [stem.with_name(f"{stem.name}.index"), *stem.parent.glob(f"{glob.escape(stem.name)}.data-*")]
