"""The ops on rows that a step of a replica needs: those in C++ if they are there, otherwise TensorFlow's own."""

from collections.abc import Sequence

from trainer.kernels import library
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor


def distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Each id once, int64 [u], in the order of its first occurrence, and the place of each one among them, int32 [n].

    Args:
        ids: int64 [n].
    """
    ops = library.load()
    return tuple(ops.trainer_distinct_ids(ids) if ops else tf.unique(ids))


def sums(gradients: Sequence[Tensor], places: Sequence[Tensor], count: Tensor, dim: int) -> Tensor:
    """The sums of the gradients of rows that have the same place, float32 [count, dim].

    Args:
        gradients: Each [*shape, dim].
        places: For each, int32 [*shape].
        count: int32 scalar.
        dim: Numbers of a row.
    """
    floats = [tf.cast(each, tf.float32) for each in gradients]
    has_gpu = bool(tf.config.get_visible_devices("GPU"))  # it adds up the gradients that it has computed
    if (ops := library.load()) and not has_gpu:
        return ops.trainer_sum_of_rows(floats, places, count, dim=dim)
    joined = tf.concat([tf.reshape(each, [-1, dim]) for each in floats], axis=0)
    return tf.math.unsorted_segment_sum(joined, tf.concat([tf.reshape(each, [-1]) for each in places], axis=0), count)
