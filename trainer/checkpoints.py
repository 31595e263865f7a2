"""Checkpoints of the flat parameters: whole arrays under the model's names, as any other TensorFlow program expects.

Beside each parameter `NAME` the optimiser's slots are saved as `NAME/SLOT`, named as TensorFlow's own optimisers name
them. A checkpoint does not tell how the parameters were cut. Its file's name ends in the global step that is in it.
"""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.files import write_atomically
from trainer.flags import SAVING, Flag
from trainer.optimizer import LARGEST_MOMENT, MOMENTS
from trainer.parameters import Layout, Part
from trainer.tensorflow import tf, tf1

GLOBAL_STEP = "global_step"


class Saver:
    """The ops that save and restore all parts."""

    def __init__(self, layout: Layout, parts: Sequence[Part], slots: Sequence[str], servers: Sequence[str]) -> None:
        """Add them to the default graph, on the device in force.

        Args:
            layout: Of the parameters.
            parts: Where they are.
            slots: Names of the optimiser's slots.
            servers: The parameter servers' devices, whose flag `flags.SAVING` is up meanwhile.
        """
        self._layout, self._parts = layout, parts
        self._vectors = {"": [part.values for part in parts]}
        self._vectors |= {f"/{slot}": [part.slots[index] for part in parts] for index, slot in enumerate(slots)}
        self._path = tf1.placeholder(tf.string, [], "checkpoint")
        self._save = self._add_save(servers)
        self._step = tf1.placeholder_with_default(tf.constant(-1, tf.int64), [], "step")
        self._restore = self._add_restore({})
        self._restore_older = None
        if LARGEST_MOMENT in slots:
            self._restore_older = self._add_restore({f"/{LARGEST_MOMENT}": f"/{MOMENTS[1]}"})
        self._are_finite = tf.reduce_all(tf.stack([_is_finite(part) for part in parts]))

    def save(self, session: Any, stem: Path) -> str:
        """Save a checkpoint; its path, STEM-STEP."""
        return str(session.run(self._save, {self._path: str(stem)}).decode())

    def restore(self, session: Any, path: str, at_step: int = -1) -> None:
        """Give all parts the values of a checkpoint.

        One that was saved without AMSGrad has no largest second moment: it goes on from the second moment.

        Args:
            session: On the parts' devices.
            path: Of the checkpoint.
            at_step: The global step from then on; -1 for the checkpoint's own. Gradients of parameters that were read
                before are dropped.

        Raises:
            tf.errors.OpError, ValueError: it cannot be read.
        """
        try:
            names = tf1.train.load_checkpoint(path).get_variable_to_shape_map()
        except tf.errors.OpError as error:  # of no particular kind
            raise tf.errors.DataLossError(None, None, error.message) from error
        is_older = self._restore_older is not None and not any(name.endswith(f"/{LARGEST_MOMENT}") for name in names)
        session.run(self._restore_older if is_older else self._restore, {self._path: path, self._step: at_step})

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
        saving = [Flag(SAVING, device) for device in servers]
        with tf.control_dependencies([flag.put_up() for flag in saving]):
            saved = tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
        with tf.control_dependencies([saved]):
            down = [flag.take_down() for flag in saving]
        with tf.control_dependencies([saved, *down]):
            return tf.identity(path)

    def _add_restore(self, instead: dict[str, str]) -> Any:
        """An op that restores, taking for some suffixes the arrays of others."""
        suffixes = {suffix: instead.get(suffix, suffix) for suffix in self._vectors}
        names = [name + suffix for suffix in dict.fromkeys(suffixes.values()) for name in self._layout.shapes]
        found = tf.raw_ops.RestoreV2(
            prefix=self._path,
            tensor_names=[GLOBAL_STEP, *names],
            shape_and_slices=[""] * (1 + len(names)),
            dtypes=[tf.int64] + [tf.float32] * len(names),
        )
        restored = dict(zip(names, found[1:], strict=True))
        step = tf.where(self._step >= 0, self._step, tf.reshape(found[0], []))
        dropping = [part.accepted_from for part in self._parts if part.accepted_from is not None]
        with tf.control_dependencies([each.assign(tf.int64.max, read_value=False) for each in dropping]):
            assigned = self._add_assignments(restored, suffixes)
        with tf.control_dependencies(assigned):
            assigned = [part.updates.assign(step, read_value=False) for part in self._parts]
        with tf.control_dependencies(assigned):
            return tf.group(*assigned, *(each.assign(tf.maximum(self._step, 0), read_value=False) for each in dropping))

    def _add_assignments(self, restored: dict[str, Any], suffixes: dict[str, str]) -> list[Any]:
        """Ops that give all vectors their restored arrays."""
        assigned = []
        for suffix, variables in self._vectors.items():
            shapes = self._layout.shapes.items()
            arrays = {name: tf.reshape(restored[name + suffixes[suffix]], shape) for name, shape in shapes}
            values = self._layout.pack(arrays)
            assigned += [each.assign(value, read_value=False) for each, value in zip(variables, values, strict=True)]
        return assigned


def _is_finite(part: Part) -> Any:
    with tf1.device(part.device):
        return tf.reduce_all(tf.math.is_finite(part.values.read_value()))


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
