"""Checkpoints of the flat parameters: whole arrays under the model's names, as any other TensorFlow program expects.

Beside each parameter `NAME` its moments are saved as `NAME/Adam` and `NAME/Adam_1`, as TensorFlow's own optimiser names
them. A checkpoint does not tell how the parameters were cut.
"""

import math
from collections.abc import Sequence
from typing import Any

from trainer.flags import SAVING, Flag
from trainer.parameters import Layout, Part
from trainer.tensorflow import tf, tf1

GLOBAL_STEP = "global_step"
MOMENTS = ("Adam", "Adam_1")


def make_saver(layout: Layout, parts: Sequence[Part], keep: int, servers: Sequence[str] = ()) -> Any:
    """Add ops that save and restore all parts, and give a `tf.compat.v1.train.Saver` that runs them.

    Args:
        layout: Of the parameters.
        parts: Where they are.
        keep: How many checkpoints to keep.
        servers: The parameter servers' devices, whose flag `flags.SAVING` is up meanwhile.
    """
    vectors = {"": [part.values for part in parts]}
    vectors |= {f"/{kind}": [part.moments[index] for part in parts] for index, kind in enumerate(MOMENTS)}
    prefix = tf1.placeholder(tf.string, [], "checkpoint")

    tensors = {GLOBAL_STEP: parts[0].updates.read_value()}
    for suffix, variables in vectors.items():
        arrays = layout.unpack([variable.read_value() for variable in variables])
        tensors |= {name + suffix: array for name, array in arrays.items()}
    names, whole = list(tensors), [""] * len(tensors)
    saving = [Flag(SAVING, device) for device in servers]
    with tf.control_dependencies([flag.put_up() for flag in saving]):
        saved = tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names, shape_and_slices=whole, tensors=[*tensors.values()]
        )
    with tf.control_dependencies([saved]):
        down = [flag.take_down() for flag in saving]
    with tf.control_dependencies([saved, *down]):
        save = tf.identity(prefix)

    dtypes = [tensor.dtype for tensor in tensors.values()]
    found = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=names, shape_and_slices=whole, dtypes=dtypes)
    restored = dict(zip(names, found, strict=True))
    assigned = [part.updates.assign(tf.reshape(restored[GLOBAL_STEP], []), read_value=False) for part in parts]
    for suffix, variables in vectors.items():
        arrays = {name: tf.reshape(restored[name + suffix], shape) for name, shape in layout.shapes.items()}
        values = layout.pack(arrays)
        assigned += [each.assign(value, read_value=False) for each, value in zip(variables, values, strict=True)]
    restore = tf.group(*assigned)

    definition = tf1.train.SaverDef(
        filename_tensor_name=prefix.name,
        save_tensor_name=save.name,
        restore_op_name=restore.name,
        max_to_keep=keep,
        keep_checkpoint_every_n_hours=math.inf,  # besides those; 0 would keep every one
        version=tf1.train.SaverDef.V2,
    )
    # Relative paths: a directory that is copied or mounted elsewhere has its own checkpoints.
    return tf1.train.Saver(saver_def=definition, save_relative_paths=True)
