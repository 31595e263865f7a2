"""Rows with tables: parameters that the model's graph reads by ids alone, and some that look like it and are none.

No id occurs twice in a batch, except with SGD: Keras on TensorFlow, but not on JAX, squares the gradient of each
occurrence by itself, and clips by their norm. The trainer squares and clips their sum.
"""

from tests.conformance.programs import program
from tests.conformance.row import Row

IDS = "random.permutation(60)[:40].reshape(8, 5)"
REPEATED = "random.integers(0, 60, size=(8, 5))"
LABELS = "random.integers(0, 2, size=8)"
COMPILED = "optimizers.Adam(0.01, global_clipnorm=0.5), 'mse'"
POOLED = """
    def model():
        ids = keras.Input((5,), dtype="int64")
        pooled = layers.GlobalAveragePooling1D()({embedded})
        network = keras.Model(ids, layers.Dense(2)(pooled))
        network.compile({compiled})
        return network
    """


def embedded(layer: str, compiled: str = COMPILED, inputs: str = IDS, tables: str = "embedding/embeddings") -> Row:
    """The row of a model that averages what a layer gives for ids."""
    text = POOLED.format(embedded=layer, compiled=compiled)
    return program(text, inputs, table_rows=10, tables=tuple(tables.split()))


BAG = """
    from trainer.layers import EmbeddingBag

    def model():
        ids, weights = keras.Input((None,), dtype="int64", name="ids"), keras.Input((None,), name="weights")
        bags = [EmbeddingBag(60, 4, "sqrtn")(ids, weights), EmbeddingBag(60, 4, mask_zero=True)(ids)]
        network = keras.Model({"ids": ids, "weights": weights}, layers.Dense(2)(layers.Concatenate()(bags)))
        network.compile(optimizers.SGD(0.1), "mse")
        return network
    """
BAG_OF_RAGGED = """
    from trainer.layers import EmbeddingBag

    def examples(seed):
        random = np.random.default_rng(seed)
        lengths = random.integers(0, 6, size=8)
        values = random.integers(0, 60, size=lengths.sum()), random.random(lengths.sum()).astype("float32")
        ids, weights = (tf.RaggedTensor.from_row_lengths(each, lengths) for each in values)
        targets = random.normal(size=(8, 2)).astype("float32")
        return tf.data.Dataset.from_tensor_slices(({"ids": ids, "weights": weights}, targets))

    def train_data(context):
        return examples(0)

    def test_data(context):
        return examples(1)
    """

TABLES: dict[str, Row] = {
    "adagrad": embedded("layers.Embedding(60, 4)(ids)", "optimizers.Adagrad(0.1), 'mse'"),
    "sgd_with_momentum": embedded(
        "layers.Embedding(60, 4)(ids)", "optimizers.SGD(0.1, momentum=0.9), 'mse'", inputs=REPEATED
    ),
    "python_function_after_the_lookup": program(
        """
        class Same(layers.Layer):
            def call(self, x, training=False):
                if not training:  # a SavedModel has no Python
                    return x
                found = tf.numpy_function(lambda each: each, [tf.reduce_sum(tf.stop_gradient(x))], tf.float32)
                with tf.control_dependencies([found]):
                    return tf.identity(x)

        def model():
            ids = keras.Input((5,), dtype="int64")
            x = Same()(layers.Flatten()(layers.Embedding(60, 4)(ids)))
            network = keras.Model(ids, layers.Dense(2)(x))
            network.compile(optimizers.Adagrad(0.1), "mse", metrics=["mae"], jit_compile=False)
            return network
        """,
        IDS,
        table_rows=10,
        tables=("embedding/embeddings",),
    ),
    "adam_clipped_by_global_norm": embedded("layers.Embedding(60, 4)(ids)"),
    "a_schedule": embedded(
        "layers.Embedding(60, 4)(ids)", "optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)), 'mse'"
    ),
    "ids_by_hashing": embedded(
        "layers.Embedding(12, 4)(layers.Hashing(12)(ids))",
        "optimizers.SGD(0.1), 'mse'",
        inputs="random.integers(0, 2**31 - 1, size=(8, 5))",
    ),
    "ids_of_64_bits_by_hashing": embedded(
        "layers.Embedding(12, 4)(layers.Hashing(12)(ids))",
        "optimizers.SGD(0.1), 'mse'",
        inputs="random.integers(0, 2**62, size=(8, 5))",
    ),
    "mixed_bfloat16": program(
        """
        def model():
            keras.mixed_precision.set_global_policy("mixed_bfloat16")
            ids = keras.Input((5,), dtype="int32")
            pooled = layers.GlobalAveragePooling1D()(layers.Embedding(60, 4)(ids))
            network = keras.Model(ids, layers.Dense(2, dtype="float32")(pooled))
            network.compile(optimizers.SGD(0.1), "mse")
            keras.mixed_precision.set_global_policy("float32")
            return network
        """,
        "random.permutation(60)[:40].reshape(8, 5)",
        table_rows=10,
        tables=("embedding/embeddings",),
    ),
    "a_type_of_its_own": embedded("layers.Embedding(60, 4, dtype='mixed_bfloat16')(ids)", "optimizers.SGD(0.1), 'mse'"),
    "texts_by_hashing": embedded(
        "layers.Embedding(12, 4)(layers.Hashing(12)(layers.Lambda(tf.strings.as_string, dtype='string')(ids)))",
        "optimizers.SGD(0.1), 'mse'",
    ),
    "lists_divided_by_the_root_of_their_lengths": program(
        """
        def model():
            ids = keras.Input((5,), dtype="int32")
            is_there = keras.ops.cast(ids > 0, "float32")[..., None]
            rows = layers.Embedding(60, 4)(ids)
            count = keras.ops.maximum(keras.ops.sum(is_there, axis=1), 1.0)
            network = keras.Model(ids, layers.Dense(2)(keras.ops.sum(rows * is_there, axis=1) / keras.ops.sqrt(count)))
            network.compile(optimizers.SGD(0.1), "mse")
            return network
        """,
        "random.integers(0, 4, size=(8, 5))",
        table_rows=10,
        tables=("embedding/embeddings",),
    ),
    "an_embedding_bag_of_padded_lists": program(
        BAG,
        '{"ids": random.integers(-3, 60, size=(8, 5)), "weights": random.random((8, 5))}',
        table_rows=10,
        tables=("embedding_bag/embeddings", "embedding_bag_1/embeddings"),
        quick=True,
    ),
    "an_embedding_bag_of_ragged_lists": program(
        BAG_OF_RAGGED + BAG.replace("(None,), ", "(None,), ragged=True, "),
        table_rows=10,
        tables=("embedding_bag/embeddings", "embedding_bag_1/embeddings"),
        quick=True,
    ),
    "negative_ids": embedded("layers.Embedding(60, 4)(ids)", inputs=f"{IDS} - 30"),
    "masked": program(
        """
        def model():
            network = keras.Sequential([layers.Embedding(60, 4, mask_zero=True), layers.LSTM(3), layers.Dense(2)])
            network.compile(optimizers.SGD(0.1), "mse")
            return network
        """,
        "random.integers(0, 4, size=(8, 5))",
        table_rows=10,
        tables=("sequential/embedding/embeddings",),
    ),
    "several_and_one_for_two_inputs": program(
        """
        def model():
            user, item, seen = (keras.Input(shape, dtype="int64") for shape in ((), (), (5,)))
            of_users, of_items = layers.Embedding(40, 3, name="users"), layers.Embedding(80, 4, name="items")
            small = layers.Embedding(8, 2, name="small")(keras.ops.mod(user, 8))
            history = layers.GlobalMaxPooling1D()(of_items(seen))
            x = layers.Concatenate()([of_users(user), of_items(item), history, small])
            network = keras.Model([user, item, seen], layers.Dense(2)(layers.Dense(6, "relu")(x)))
            network.compile(optimizers.Adam(0.01), "mse")
            return network
        """,
        f"[random.permutation(8), 60 + random.permutation(20)[:8], {IDS}]",
        table_rows=10,
        tables=("items/embeddings", "users/embeddings"),
        quick=True,
    ),
    "nothing_but_tables": program(
        """
        def model():
            user, item = (keras.Input((), dtype="int64") for _ in range(2))
            of_users = layers.Embedding(40, 3, name="users")(user)
            of_items = layers.Embedding(30, 3, name="items")(item)
            network = keras.Model([user, item], layers.Dot(1)([of_users, of_items]))
            network.compile(optimizers.Adam(0.05), "mse")
            return network
        """,
        "[random.permutation(40)[:8], random.permutation(30)[:8]]",
        "random.normal(size=(8, 1))",
        table_rows=10,
        tables=("users/embeddings", "items/embeddings"),
    ),
    "take_and_lookup_of_own_weights": program(
        """
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.out = layers.Dense(2)

            def build(self, shape):
                self.a = self.add_weight((60, 4), name="a")
                self.b = self.add_weight((60, 4), name="b")

            def call(self, ids):
                found = keras.ops.take(self.a, ids, axis=0)
                return self.out(keras.ops.mean(found + tf.nn.embedding_lookup(tf.convert_to_tensor(self.b), ids), 1))

        def model():
            network = Own()
            network.compile(optimizers.SGD(0.1), "mse")
            return network
        """,
        IDS,
        table_rows=10,
        tables=("own/a", "own/b"),
    ),
    "weights_that_the_file_sets": program(
        """
        def model():
            network = keras.Sequential([keras.Input((5,)), layers.Embedding(60, 4), layers.Flatten(), layers.Dense(2)])
            network.layers[0].set_weights([np.arange(240, dtype="float32").reshape(60, 4) / 240])
            network.compile(optimizers.SGD(0.1), "mse")
            return network
        """,
        IDS,
        table_rows=10,
        tables=("sequential/embedding/embeddings",),
    ),
    "weights_that_the_file_copies": program(
        """
        def model():
            ids = keras.Input((5,))
            first, second = layers.Embedding(60, 4, name="first"), layers.Embedding(60, 4, name="second")
            pooled = layers.GlobalAveragePooling1D()(first(ids) * second(ids))
            second.set_weights(first.get_weights())
            network = keras.Model(ids, layers.Dense(2)(pooled))
            network.compile(optimizers.SGD(0.5), "mse")
            return network
        """,
        IDS,
        table_rows=10,
        tables=("first/embeddings", "second/embeddings"),
    ),
    "initialized_by_the_shape": embedded("layers.Embedding(60, 4, embeddings_initializer='glorot_normal')(ids)"),
    "regularized": embedded("layers.Embedding(60, 4, embeddings_regularizer='l2')(ids)", tables=""),
    "constrained": embedded("layers.Embedding(60, 4, embeddings_constraint='non_neg')(ids)", tables=""),
    "ids_that_depend_on_another_table": embedded(
        "layers.Embedding(20, 4)(keras.ops.argmax(layers.Embedding(60, 20)(ids), -1))",
        "optimizers.SGD(0.1), 'mse'",
        tables="embedding_1/embeddings",
    ),
    "an_optimizer_by_norms": embedded("layers.Embedding(60, 4)(ids)", "optimizers.Lamb(0.01), 'mse'", tables=""),
    "clipnorm": embedded("layers.Embedding(60, 4)(ids)", "optimizers.Adam(0.01, clipnorm=5.0), 'mse'", tables=""),
    "moving_averages": embedded("layers.Embedding(60, 4)(ids)", "optimizers.SGD(0.1, use_ema=True), 'mse'", tables=""),
}
