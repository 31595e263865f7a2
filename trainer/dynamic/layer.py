"""A layer whose table has rows for the ids that it has seen, without a vocabulary.

With parameter servers its rows are on these (`trainer.shards.dynamic_part`). Plain Keras trains it too: then this
process has the index of the rows, in Python.
"""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainer.dynamic import by_id
from trainer.dynamic.ids import NO_ID
from trainer.dynamic.index import Index
from trainer.dynamic.initial_rows import InitialRows

MOST_ADMITTED_AFTER = 255

Array = npt.NDArray[Any]


@keras.saving.register_keras_serializable(package="trainer")
class IsId(keras.layers.Layer):  # type: ignore[misc]
    """Tells which ids are none: 0 and empty texts. Keras has no such op for texts."""

    def call(self, inputs: Any) -> Any:
        """bool, of the shape of the ids."""
        ids = inputs.to_tensor() if isinstance(inputs, tf.RaggedTensor) else tf.convert_to_tensor(inputs)
        return tf.not_equal(ids, tf.zeros([], ids.dtype))

    def compute_output_spec(self, inputs: Any) -> Any:
        """That."""
        return keras.KerasTensor(inputs.shape, "bool")


@keras.saving.register_keras_serializable(package="trainer")
class DynamicEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """Embeddings of ids without a vocabulary, whose table grows with them: ids [...] to [..., output_dim].

    Ids are whole numbers of up to 64 bits, or texts, of which a hash of 63 bits is the id. In training, an id gets a
    row of its own; once there are `capacity` rows, the least recently used one leaves for it. In evaluation and in
    prediction, ids without a row give zeros.

    Args:
        capacity: The most rows. They take memory as they come; under plain Keras all of them do from the start.
        output_dim: The numbers of an embedding.
        embeddings_initializer: Of a new row: RandomUniform, RandomNormal, TruncatedNormal, Zeros, Ones or Constant.
        admit_after: An id gets a row with its sighting of this number, at most 255; until then it gives zeros. Batches
            are counted, approximately, and since the start of a process.
        expire_steps: A row leaves that was not used for so many steps; None: it does not. It may stay a quarter longer.
        expire_seconds: The same in seconds.
        mask_zero: Whether 0, or an empty text, is padding, which gives zeros and is masked.
        options: Those of a Keras layer.

    Raises:
        ValueError: an argument has another value.
    """

    def __init__(
        self,
        capacity: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        admit_after: int = 1,
        expire_steps: int | None = None,
        expire_seconds: int | None = None,
        mask_zero: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options, autocast=False)
        for name, value, most in (
            ("capacity", capacity, 2**40),
            ("output_dim", output_dim, 2**20),
            ("admit_after", admit_after, MOST_ADMITTED_AFTER),
            ("expire_steps", 1 if expire_steps is None else expire_steps, 2**31 - 1),
            ("expire_seconds", 1 if expire_seconds is None else expire_seconds, 2**31 - 1),
        ):
            if not isinstance(value, int) or not 1 <= value <= most:
                raise ValueError(f"{name}={value!r}, but a whole number from 1 to {most} was expected.")
        if expire_steps and expire_seconds:
            raise ValueError("expire_steps and expire_seconds: remove one of them.")
        self.capacity, self.output_dim = capacity, output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.admit_after, self.mask_zero = admit_after, mask_zero
        self.expire_steps, self.expire_seconds = expire_steps, expire_seconds
        self.supports_masking, self.supports_jit = mask_zero, False
        self._mask = IsId(name=f"{self.name}_mask")
        self.initial = InitialRows(self.embeddings_initializer, output_dim)
        self._index = Index(capacity, admit_after, expire_steps or expire_seconds or 0, bool(expire_seconds))

    def build(self, *_: Any) -> None:
        """Make the table."""
        shape = (self.capacity, self.output_dim)
        self.embeddings = self.add_weight(shape=shape, initializer="zeros", name="embeddings")

    def call(self, inputs: Any, training: bool = False) -> Any:
        """The embeddings of ids [...], [..., output_dim]."""
        ids = self._ids(inputs)
        if by_id.is_active():
            return tf.cast(tf.gather(tf.convert_to_tensor(self.embeddings), ids), self.compute_dtype)
        if training:
            rows, begun, values = tf.numpy_function(self._begin, [ids], [tf.int64, tf.int64, tf.float32])
            values = tf.reshape(values, [-1, self.output_dim])
            begun = self.embeddings.value.scatter_update(tf.IndexedSlices(values, tf.reshape(begun, [-1])))
        else:
            rows, begun = tf.numpy_function(self._index.find, [ids], tf.int64), tf.no_op()
        rows = tf.ensure_shape(rows, ids.shape)
        with tf.control_dependencies([begun]):
            found = tf.gather(self.embeddings.value, tf.maximum(rows, 0))
        has_row = tf.cast(rows >= 0, found.dtype)[..., None]
        return tf.cast(found * has_row, self.compute_dtype)

    def _ids(self, inputs: Any) -> Any:
        """Those of the inputs, int64 [...]; of padding `NO_ID`."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self._ids(inputs.flat_values)).to_tensor(NO_ID)
        ids = tf.convert_to_tensor(inputs)
        if ids.dtype == tf.string:
            found = tf.strings.to_hash_bucket_fast(ids, 2**63 - 1)
            return tf.where(ids == "", NO_ID, found) if self.mask_zero else found
        if not ids.dtype.is_integer:
            raise ValueError(f"{self.name}: whole numbers or texts were expected as ids, not {ids.dtype.name}.")
        ids = tf.cast(ids, tf.int64)
        return tf.where(ids == 0, NO_ID, ids) if self.mask_zero else ids

    def _begin(self, ids: Array) -> tuple[Array, Array, Array]:
        """The rows of ids, int64 like these, of which some may be new; the new ones, int64 [k], and their values."""
        rows, new = self._index.admit(ids)
        values = self.initial.of(np.array([*new.values()], np.int64))
        return rows, np.array([*new], np.int64), values

    def rows(self) -> tuple[Array, Array]:
        """The ids of all rows in ascending order, int64 [n], and their embeddings, float32 [n, output_dim]."""
        ids, rows = self._index.listed()
        return ids, self.embeddings.numpy()[rows]

    def set_rows(self, ids: Array, values: Array) -> None:
        """Let these be all rows, the first `capacity` ones: ids, int64 [n], and their embeddings [n, output_dim]."""
        ids, values = ids[: self.capacity], values[: self.capacity]
        self._index.set(ids)
        self.embeddings.value.scatter_update(tf.IndexedSlices(values, np.arange(len(ids))))

    def save_own_variables(self, store: Any) -> None:
        """Write the rows, with their ids."""
        store["ids"], store["embeddings"] = self.rows()

    def load_own_variables(self, store: Any) -> None:
        """Read them."""
        self.set_rows(np.array(store["ids"]), np.array(store["embeddings"]))

    def compute_mask(self, inputs: Any, previous: Any = None) -> Any:
        """Which ids are no padding; None without `mask_zero`."""
        return self._mask(inputs) if self.mask_zero else None

    def compute_output_shape(self, shape: Any) -> tuple[int | None, ...]:
        """[..., output_dim]."""
        return (*shape, self.output_dim)

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        """Not ragged, also of ragged ids."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        names = ("capacity", "output_dim", "admit_after", "expire_steps", "expire_seconds", "mask_zero")
        initializer = keras.initializers.serialize(self.embeddings_initializer)
        own = {name: getattr(self, name) for name in names} | {"embeddings_initializer": initializer}
        return {**super().get_config(), **own}
