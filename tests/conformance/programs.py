"""Rows beside Keras's lists: forms of data, own classes, and what models do beyond their layers."""

import textwrap
from typing import Any

from tests.conformance.row import HEAD, LONG, Row

X = "random.normal(size=(8, 6))"
USUAL = "optimizers.SGD(0.05, momentum=0.9), 'mse', metrics=['mae']"
SEQUENCES = "random.normal(size=(8, 5, 4))"
VALUES = "1 + random.normal(size=(8, 2))"


def program(text: str, inputs: str = X, targets: str = VALUES, **more: Any) -> Row:
    """The row of a model file with this rest, on these inputs and targets."""
    head = HEAD.replace("{inputs}", inputs).replace("{targets}", targets)
    return Row(f"{head}\n\n{textwrap.dedent(text).strip()}\n", **more)


def stack(
    layers: str, inputs: str = X, targets: str = VALUES, compiled: str = "", before: str = "", **more: Any
) -> Row:
    """The row of a `Sequential` of these layers."""
    text = f"def model():\n    {before or 'pass'}\n    network = keras.Sequential([{layers}])\n"
    text += f"    network.compile({compiled or USUAL})\n"
    return program(text + "    return network\n", inputs, targets, **more)


def optimized(optimizer: str, **more: Any) -> Row:
    """The row of an option of an optimizer, on a model whose bias of the last layer has a steep gradient."""
    return stack("layers.Dense(5, 'tanh'), layers.Dense(2)", compiled=f"optimizers.{optimizer}, 'mse'", **more)


def steep(optimizer: str, **more: Any) -> Row:
    """The row of an option of an optimizer, on a model some of whose gradients are in the hundreds."""
    layers = "layers.Dense(5, 'tanh'), layers.Rescaling(100.0), layers.Dense(2)"
    return stack(layers, compiled=f"optimizers.{optimizer}, 'mae'", **more)


def noisy(noise: str) -> Row:
    """The row of a layer that adds this noise."""
    text = f"""
        class Noise(layers.Layer):
            def call(self, x, training=False):
                return x + {noise} if training else x

        def model():
            network = keras.Sequential([layers.Dense(5), Noise(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.02), "mse")
            return network
        """
    return program(text, compared="learning", steps=LONG)


DATA: dict[str, Row] = {
    "inputs_and_outputs_in_dictionaries": program(
        """
        def model():
            inputs = {"age": keras.Input((6,), name="age"), "size": keras.Input((6,), name="size")}
            x = layers.Concatenate()([inputs["age"], inputs["size"]])
            outputs = {"price": layers.Dense(2, name="price")(x), "kind": layers.Dense(3, "softmax", name="kind")(x)}
            network = keras.Model(inputs, outputs)
            network.compile(
                optimizers.SGD(0.05),
                {"price": "mse", "kind": "sparse_categorical_crossentropy"},
                loss_weights={"price": 0.5, "kind": 2.0},
                metrics={"price": ["mae"], "kind": ["accuracy"]},
            )
            return network
        """,
        f'{{"age": {X}, "size": {X}}}',
        f'{{"price": {VALUES}, "kind": random.permutation(8) % 3}}',
        quick=True,
    ),
    "outputs_in_a_list": program(
        """
        def model():
            inputs = keras.Input((6,))
            x = layers.Dense(5, "tanh")(inputs)
            network = keras.Model(inputs, [layers.Dense(2)(x), layers.Dense(1, "sigmoid")(x)])
            network.compile(optimizers.SGD(0.05), ["mse", "binary_crossentropy"], metrics=[["mae"], ["accuracy"]])
            return network
        """,
        targets=f"[{VALUES}, random.integers(0, 2, size=(8, 1))]",
    ),
    "a_loss_for_one_of_two_outputs": program(
        """
        def model():
            inputs = keras.Input((6,))
            x = layers.Dense(5, "tanh", name="features")(inputs)
            network = keras.Model(inputs, {"features": x, "price": layers.Dense(2, name="price")(x)})
            network.compile(optimizers.SGD(0.05), {"price": "mse"})
            return network
        """,
        targets=f'{{"price": {VALUES}}}',
    ),
    "odd_names": program(
        """
        def model():
            inputs = {name: keras.Input((6,), name=name) for name in ("1st size (cm)", "größe")}
            x = layers.Concatenate(name="both.of>them")([*inputs.values()])
            x = layers.Dense(5, "tanh", name="a-b.c")(x)
            x = layers.Dense(5, "tanh", name="1")(x)
            network = keras.Model(inputs, layers.Dense(2, name="last-")(x), name="my.model-2")
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        f'{{"1st size (cm)": {X}, "größe": {X}}}',
    ),
    "layer_name_with_an_underscore": program(
        """
        def model():
            inputs = keras.Input((6,))
            network = keras.Model(inputs, layers.Dense(2, name="_last")(inputs))
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "weights_of_examples": program(
        """
        def model():
            network = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse", metrics=["mae"], weighted_metrics=["mse"])
            return network

        def train_data(context):
            return *data(0), np.linspace(0, 2, 8)

        def test_data(context):
            return *data(1), np.linspace(1, 3, 8)
        """,
        quick=True,
    ),
    "weights_of_classes": program(
        """
        def model():  # the weights of examples are what class_weight of fit gives
            network = keras.Sequential([layers.Dense(3, "softmax")])
            network.compile(optimizers.SGD(0.05), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
            return network

        def weighted(x, y):
            return x, y, np.array([1.0, 2.0, 0.5])[y]

        def train_data(context):
            return weighted(*data(0))

        def test_data(context):
            return weighted(*data(1))
        """,
        targets="random.permutation(8) % 3",
    ),
    "lookups_of_texts_and_numbers": program(
        """
        def model():
            numbers = keras.Input((1,), dtype="int64")
            texts = layers.Lambda(tf.strings.as_string, dtype="string")(numbers)
            options = {"num_oov_indices": 1, "output_mode": "one_hot"}
            found = [
                layers.IntegerLookup(vocabulary=[1, 3, 5], **options)(numbers),
                layers.StringLookup(vocabulary=["1", "2"], **options)(texts),
            ]
            network = keras.Model(numbers, layers.Dense(2)(layers.Concatenate()(found)))
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        "random.integers(0, 6, size=(8, 1))",
        "random.normal(size=(8, 2))",
        quick=True,
    ),
    "a_weight_for_each_output": program(
        """
        def model():
            inputs = keras.Input((6,))
            network = keras.Model(inputs, [layers.Dense(2)(inputs), layers.Dense(2)(inputs)])
            network.compile(optimizers.SGD(0.05), ["mse", "mae"])
            return network

        def train_data(context):
            return *data(0), [np.linspace(0, 2, 8), np.linspace(2, 0, 8)]

        def test_data(context):
            return *data(1), [np.linspace(0, 2, 8), np.linspace(2, 0, 8)]
        """,
        targets=f"[{VALUES}, {VALUES}]",
    ),
    "weights_of_time_steps": program(
        """
        def model():
            network = keras.Sequential([layers.SimpleRNN(5, return_sequences=True), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse", weighted_metrics=["mae"])
            return network

        def train_data(context):
            return *data(0), np.linspace(0, 2, 40).reshape(8, 5)

        def test_data(context):
            return *data(1), np.linspace(0, 2, 40).reshape(8, 5)
        """,
        SEQUENCES,
        "random.normal(size=(8, 5, 2))",
    ),
    "a_dataset": program(
        """
        def model():
            network = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
            return network

        def train_data(context):
            return tf.data.Dataset.from_tensor_slices(data(0))

        def test_data(context):
            return tf.data.Dataset.from_tensor_slices(data(1))
        """,
        "random.normal(size=(24, 6))",
        "random.normal(size=(24, 2))",
        quick=True,
    ),
    "mixed_examples": program(
        """
        def model():
            network = keras.Sequential([layers.Flatten(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.01), "mse")
            return network

        def mixed(seed):
            layer = layers.MixUp(0.2)
            mix = lambda x, y: layer({"images": x, "labels": y}, training=True)
            found = tf.data.Dataset.from_tensor_slices(data(seed)).batch(8)
            return found.map(mix).map(lambda each: (each["images"], each["labels"])).unbatch()

        def train_data(context):
            return mixed(0)

        def test_data(context):
            return mixed(1)
        """,
        "random.normal(size=(8, 6, 6, 1)).astype('float32')",
        "(1 + random.normal(size=(8, 2))).astype('float32')",
        compared="learning",
        steps=LONG,
    ),
    "texts_in_the_pipeline": program(
        """
        TEXTS = np.array(["a good film", "a bad film"])
        encode = layers.TextVectorization(output_sequence_length=4)
        encode.adapt(TEXTS)

        def model():
            network = keras.Sequential([layers.Embedding(6, 3, mask_zero=True), layers.LSTM(3), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network

        def data(seed):
            labels = np.arange(8) % 2
            targets = np.random.default_rng(seed).normal(size=(8, 2))
            return tf.data.Dataset.from_tensor_slices((TEXTS[labels], targets)).map(lambda x, y: (encode(x), y))
        """
    ),
    "inputs_of_bytes": stack("layers.Rescaling(1 / 255), layers.Dense(2)", "random.integers(0, 255, (8, 6), 'uint8')"),
    "inputs_of_booleans": stack("layers.Dense(2)", "random.normal(size=(8, 6)) > 0"),
    "inputs_of_16_bits": stack("layers.Dense(2)", f"{X}.astype('float16')"),
    "inputs_of_short_integers": stack("layers.Dense(2)", "random.integers(-9, 9, (8, 6), 'int16')"),
    "inputs_of_texts": stack(
        "layers.TextVectorization(vocabulary=['good', 'bad'], output_sequence_length=3), layers.Embedding(4, 2), "
        "layers.Flatten(), layers.Dense(2)",
        "tf.constant(['a good film', 'a bad film'] * 4)",
    ),
    "texts_of_a_dataset": program(
        """
        def model():
            encode = layers.TextVectorization(vocabulary=["good", "bad"], output_sequence_length=3)
            network = keras.Sequential([encode, layers.Embedding(4, 2), layers.Flatten(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network

        def train_data(context):
            return tf.data.Dataset.from_tensor_slices(data(0))

        def test_data(context):
            return tf.data.Dataset.from_tensor_slices(data(1))
        """,
        "np.array(['a good film', 'a bad film'] * 4)",
    ),
    "labels_of_floats": stack(
        "layers.Dense(3, 'softmax')",
        targets="(random.permutation(8) % 3).astype('float32')",
        compiled="optimizers.SGD(0.05), 'sparse_categorical_crossentropy', metrics=['accuracy']",
    ),
    "labels_in_a_column": stack(
        "layers.Dense(3)",
        targets="(random.permutation(8) % 3)[:, None]",
        compiled="optimizers.SGD(0.05), losses.SparseCategoricalCrossentropy(from_logits=True), metrics=['accuracy']",
    ),
    "labels_of_each_time_step": stack(
        "layers.GRU(4, return_sequences=True), layers.Dense(3, 'softmax')",
        SEQUENCES,
        "random.integers(0, 3, (8, 5))",
        "optimizers.SGD(0.05), 'sparse_categorical_crossentropy', metrics=['accuracy']",
    ),
    "one_label_of_bytes": stack(
        "layers.Dense(1, 'sigmoid')",
        targets="random.integers(0, 2, 8, 'uint8')",
        compiled="optimizers.SGD(0.05), 'binary_crossentropy', metrics=['accuracy', 'AUC']",
    ),
    "several_labels": stack(
        "layers.Dense(3, 'sigmoid')",
        targets="random.integers(0, 2, (8, 3))",
        compiled="optimizers.SGD(0.05), 'binary_crossentropy', metrics=['binary_accuracy']",
    ),
    "labels_to_ignore": stack(
        "layers.Dense(3)",
        targets="random.permutation(8) % 4 - 1",
        compiled="optimizers.SGD(0.05), losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)",
    ),
    "labels_of_each_pixel": stack(
        "layers.Conv2D(3, 3, padding='same')",
        "random.normal(size=(8, 6, 6, 3))",
        "random.integers(0, 3, (8, 6, 6, 1))",
        "optimizers.SGD(0.05), losses.SparseCategoricalCrossentropy(from_logits=True), metrics=['accuracy']",
    ),
    "targets_without_a_dimension": stack("layers.Dense(1)", targets="random.normal(size=8)"),
    "fewer_examples_than_a_batch": stack("layers.Dense(2)", batch_size=32),
    "one_example": stack("layers.Dense(2)", "random.normal(size=(1, 6))", "random.normal(size=(1, 2))", batch_size=1),
    "no_targets": program(
        """
        class Reconstruct(keras.Model):
            def __init__(self):
                super().__init__()
                self.inner = layers.Dense(2, "tanh")
                self.outer = layers.Dense(6)

            def call(self, x):
                found = self.outer(self.inner(x))
                self.add_loss(keras.ops.mean((x - found) ** 2))
                return found

        def model():
            network = Reconstruct()
            network.compile(optimizers.SGD(0.05))
            return network

        def train_data(context):
            return data(0)[0], None

        def test_data(context):
            return data(1)[0], None
        """
    ),
    "batches_of_other_lengths": program(
        """
        def model():
            network = keras.Sequential([layers.Embedding(9, 3, mask_zero=True), layers.LSTM(3), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network

        HAS_BATCHES = True

        def padded(seed):
            random = np.random.default_rng(seed)
            targets = random.normal(size=(16, 2))
            def read():
                for number in range(16):
                    yield 1 + np.arange(1 + number // 8 * 3 + number % 3), targets[number]
            spec = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([2], tf.float32))
            return tf.data.Dataset.from_generator(read, output_signature=spec).padded_batch(8)

        def train_data(context):
            return padded(0)

        def test_data(context):
            return padded(1)
        """,
    ),
    "ragged_inputs": program(
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.embed, self.dense = layers.Embedding(4, 3), layers.Dense(2)

            def call(self, words):
                return self.dense(tf.reduce_sum(self.embed(words.to_tensor()), axis=1))

        def model():
            network = Mine()
            network.compile("sgd", "mse")
            return network

        def train_data(context):
            return tf.ragged.constant([[1, 2], [3]] * 4), data(0)[1]

        test_data = train_data
        """,
    ),
    "a_py_dataset": program(
        """
        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return 1

            def __getitem__(self, index):
                return data(0)

        def model():
            network = keras.Sequential([layers.Dense(2)])
            network.compile("sgd", "mse")
            return network

        def train_data(context):
            return Batches()

        test_data = train_data
        """
    ),
}

MODELS: dict[str, Row] = {
    "inputs_in_a_tuple": program(
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(2)

            def call(self, given):
                first, second = given
                return self.dense(first * second)

        def model():
            network = Mine()
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        f"({X}, {X})",
    ),
    "fixed_batch_size": program(
        """
        def model():
            inputs = keras.Input((6,), batch_size=8)
            x = keras.ops.reshape(layers.Dense(4)(inputs), (8, 2, 2))
            network = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "a_variable_of_the_model": program(
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.scale = keras.Variable(np.ones(6, "float32"), name="scale")
                self.shift = self.add_weight((6,), initializer="zeros", name="shift")
                self.dense = layers.Dense(2)

            def call(self, x):
                return self.dense(x * self.scale + self.shift)

        def model():
            network = Mine()
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "gradient_penalty": program(
        """
        class Mine(keras.Sequential):
            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                x = tf.convert_to_tensor(x)
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    found = self(x, training=training)
                penalty = tf.reduce_mean(tape.gradient(found, x) ** 2)
                return super().compute_loss(x, y, y_pred, sample_weight, training) + penalty

        def model():
            network = Mine([layers.Dense(5, "tanh"), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        f"{X}.astype('float32')",
    ),
    "random_numbers_of_keras_without_a_seed": noisy("keras.random.normal(keras.ops.shape(x))"),
    "random_numbers_of_tensorflow": noisy("tf.random.normal(tf.shape(x))"),
    "shared_layer": program(
        """
        def model():
            first, second = keras.Input((6,)), keras.Input((6,))
            shared = layers.Dense(3, "tanh")
            x = layers.Concatenate()([shared(first), shared(second)])
            network = keras.Model([first, second], layers.Dense(2)(x))
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        f"[{X}, {X}]",
    ),
    "nested_models": program(
        """
        def model():
            inner = keras.Sequential([layers.Dense(6), layers.BatchNormalization(), layers.ReLU()], name="inner")
            inputs = keras.Input((6,))
            middle = keras.Model(inputs, inner(inner(layers.Dense(6)(inputs))), name="middle")
            network = keras.Sequential([middle, layers.Dense(2)])
            network.compile(optimizers.SGD(0.01), "mse")
            return network
        """,
    ),
    "subclassed_model": program(
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.blocks = [layers.Dense(5, "tanh") for _ in range(2)]
                self.by_name = {"last": layers.Dense(2)}
                self.normalize = layers.BatchNormalization()

            def call(self, x, training=False):
                for block in self.blocks:
                    x = block(x)
                if training:
                    x = x * 2.0
                return self.by_name["last"](self.normalize(x, training=training))

        def model():
            network = Mine()
            network.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
            return network
        """,
        quick=True,
    ),
    "subclassed_model_with_a_dictionary": program(
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(2)

            def call(self, given):
                return {"sum": self.dense(given["a"] + given["b"]), "product": self.dense(given["a"] * given["b"])}

        def model():
            network = Mine()
            network.compile(optimizers.SGD(0.05), {"sum": "mse", "product": "mae"})
            return network
        """,
        f'{{"a": {X}, "b": {X}}}',
        f'{{"sum": {VALUES}, "product": {VALUES}}}',
    ),
    "layer_with_state": program(
        """
        class Average(layers.Layer):
            def build(self, shape):
                self.average = self.add_weight((shape[-1],), initializer="zeros", trainable=False, name="average")

            def call(self, x, training=False):
                if training:
                    self.average.assign(0.9 * self.average + 0.1 * keras.ops.mean(x, axis=0))
                return x - self.average

        def model():
            network = keras.Sequential([layers.Dense(5), Average(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        quick=True,
    ),
    "layer_with_a_counter": program(
        """
        class Counter(layers.Layer):
            def build(self, shape):
                self.steps = self.add_weight((), initializer="zeros", dtype="int32", trainable=False, name="steps")

            def call(self, x, training=False):
                if training:
                    self.steps.assign_add(1)
                return x * keras.ops.cast(self.steps + 1, x.dtype) ** -0.5

        def model():
            network = keras.Sequential([layers.Dense(5), Counter(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        quick=True,
    ),
    "layer_with_a_tensorflow_variable": program(
        """
        class Scale(layers.Layer):
            def __init__(self):
                super().__init__()
                self.scale = tf.Variable(2.0)
                self.shifts = tf.constant([0.1, 0.2, 0.3, 0.4, 0.5])
                entries = tf.lookup.KeyValueTensorInitializer(["low", "high"], [0.1, 0.5])
                self.table = tf.lookup.StaticHashTable(entries, 0.0)

            def call(self, x):
                return x * self.scale + self.shifts + self.table.lookup(tf.constant(["high"]))

        def model():
            network = keras.Sequential([layers.Dense(5), Scale(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        quick=True,
    ),
    "layer_with_its_own_random_numbers": program(
        """
        class Noise(layers.Layer):
            def __init__(self):
                super().__init__()
                self.seeds = keras.random.SeedGenerator(1)

            def call(self, x, training=False):
                return x + keras.random.normal(keras.ops.shape(x), seed=self.seeds) if training else x

        def model():
            network = keras.Sequential([layers.Dense(5), Noise(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.02), "mse")
            return network
        """,
        compared="learning",
        steps=LONG,
    ),
    "layer_without_get_config": program(
        """
        class Scale(layers.Layer):
            def __init__(self, units, activation):
                super().__init__()
                self.dense, self.activation = layers.Dense(units), activation

            def call(self, x):
                return self.activation(self.dense(x))

        def model():
            network = keras.Sequential([Scale(5, lambda each: tf.tanh(each)), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "layer_with_a_gradient_of_its_own": program(
        """
        @tf.custom_gradient
        def straight(x):
            return tf.round(x), lambda upstream: upstream

        class Round(layers.Layer):
            def call(self, x):
                return straight(x)

        def model():
            network = keras.Sequential([layers.Dense(5), Round(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "layer_with_control_flow": program(
        """
        class Repeat(layers.Layer):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(6, "tanh")

            def call(self, x):
                again = lambda number, x: (number + 1, self.dense(x))
                _, x = tf.while_loop(lambda number, x: number < 3, again, (0, x))
                return tf.cond(tf.reduce_mean(x) > 0, lambda: x * 2.0, lambda: x)

        def model():
            network = keras.Sequential([Repeat(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "layer_with_a_python_function": program(
        """
        class Double(layers.Layer):
            def call(self, x):
                found = tf.numpy_function(lambda each: each * 2, [tf.stop_gradient(x)], tf.float32)
                return x + tf.ensure_shape(found, x.shape)

        def model():
            network = keras.Sequential([keras.Input((6,)), layers.Dense(5), Double(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse", jit_compile=False)
            return network
        """,
    ),
    "add_loss": program(
        """
        class Penalty(layers.Layer):
            def call(self, x):
                self.add_loss(0.1 * keras.ops.mean(x**2))
                return x

        def model():
            network = keras.Sequential([keras.Input((6,)), layers.Dense(5), Penalty(), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
            return network
        """,
    ),
    "variational_autoencoder": program(
        """
        class Sample(layers.Layer):
            def __init__(self):
                super().__init__()
                self.seeds = keras.random.SeedGenerator(1)

            def call(self, given, training=False):
                mean, log_variance = given
                self.add_loss(-0.01 * keras.ops.mean(1 + log_variance - mean**2 - keras.ops.exp(log_variance)))
                noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
                return mean + keras.ops.exp(0.5 * log_variance) * noise if training else mean

        def model():
            inputs = keras.Input((6,))
            x = layers.Dense(5, "tanh")(inputs)
            x = Sample()([layers.Dense(2)(x), layers.Dense(2)(x)])
            network = keras.Model(inputs, layers.Dense(6)(x))
            network.compile(optimizers.SGD(0.05), "mse")
            return network

        def train_data(context):
            x, _ = data(0)
            return 2 + x, 2 + x

        def test_data(context):
            x, _ = data(1)
            return 2 + x, 2 + x
        """,
        compared="learning",
        steps=LONG,
    ),
    "regularizers": stack(
        "layers.Dense(5, kernel_regularizer='l2', bias_regularizer=keras.regularizers.L1(0.1)), "
        "layers.Dense(2, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.1))",
    ),
    "activity_regularizer": stack("layers.Dense(5, activity_regularizer='l2'), layers.Dense(2)"),
    "constraints": stack(
        "layers.Dense(5, kernel_constraint=keras.constraints.MaxNorm(0.5), bias_constraint='non_neg'), "
        "layers.Dense(2, kernel_constraint='unit_norm')",
        compiled="optimizers.SGD(0.05, momentum=0.9), 'mse'",
        quick=True,
    ),
    "frozen_layers": stack(
        "layers.Dense(5, trainable=False), layers.BatchNormalization(trainable=False), layers.Dense(2)",
        compiled="optimizers.AdamW(0.01, weight_decay=0.1), 'mse'",
        quick=True,
    ),
    "frozen_base": program(
        """
        def model():
            base = keras.Sequential([layers.Dense(5), layers.BatchNormalization()])
            base.trainable = False
            inputs = keras.Input((6,))
            network = keras.Model(inputs, layers.Dense(2)(base(inputs, training=False)))
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "a_layer_frozen_after_compile": program(
        """
        def model():
            network = keras.Sequential([keras.Input((6,)), layers.Dense(5), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            network.layers[0].trainable = False
            return network
        """,
    ),
    "unused_layer": program(
        """
        def model():
            inputs = keras.Input((6,))
            network = keras.Model(inputs, [layers.Dense(2)(inputs), layers.Dense(3)(inputs)])
            network.compile(optimizers.AdamW(0.01, weight_decay=0.5), ["mse", None])
            return network
        """,
        targets=f"[{VALUES}, np.zeros((8, 3))]",
        quick=True,
    ),
    "tied_weights": program(
        """
        class Tied(keras.Model):
            def __init__(self):
                super().__init__()
                self.embed = layers.Embedding(9, 4)

            def call(self, words):
                return keras.ops.matmul(self.embed(words), keras.ops.transpose(self.embed.embeddings))

        def model():
            network = Tied()
            network.compile(optimizers.SGD(0.1), losses.SparseCategoricalCrossentropy(from_logits=True))
            return network
        """,
        "random.integers(0, 9, (8, 5))",
        "random.integers(0, 9, (8, 5))",
    ),
    "masked_loss": stack(
        "layers.Embedding(9, 4, mask_zero=True), layers.GRU(4, return_sequences=True), layers.Dense(2)",
        "random.integers(0, 3, (8, 5))",
        "random.normal(size=(8, 5, 2))",
        quick=True,
    ),
    "causal_attention": program(
        """
        def model():
            words = keras.Input((5,), dtype="int32")
            x = layers.Embedding(9, 4, mask_zero=True)(words)
            x = x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
            x = layers.LayerNormalization()(x)
            network = keras.Model(words, layers.Dense(9)(x))
            network.compile(optimizers.SGD(0.1), losses.SparseCategoricalCrossentropy(from_logits=True))
            return network
        """,
        "random.integers(0, 9, (8, 5))",
        "random.integers(0, 9, (8, 5))",
    ),
    "states_of_a_recurrent_layer": program(
        """
        def model():
            first, second = keras.Input((5, 4)), keras.Input((None, 4))
            _, *states = layers.LSTM(3, return_state=True)(first)
            x = layers.LSTM(3, go_backwards=True)(second, initial_state=states)
            network = keras.Model([first, second], layers.Dense(2)(x))
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        f"[{SEQUENCES}, {SEQUENCES}]",
    ),
    "stateful_recurrent_layer": program(
        """
        def model():
            first = keras.Input(batch_shape=(8, 5, 4))
            network = keras.Sequential([first, layers.GRU(3, stateful=True), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network

        def train_data(context):
            return tf.data.Dataset.from_tensor_slices(data(0))

        def test_data(context):
            return tf.data.Dataset.from_tensor_slices(data(1))
        """,
        SEQUENCES,
    ),
    "dropout_in_a_recurrent_layer": stack(
        "layers.LSTM(4, dropout=0.2, recurrent_dropout=0.2), layers.Dense(2)",
        SEQUENCES,
        compared="learning",
        steps=LONG,
    ),
    "adapted_normalization": program(
        """
        scale = layers.Normalization()  # made in eager mode, at the top of the file

        def model():
            scale.adapt(3 + 2 * data(0)[0])
            network = keras.Sequential([scale, layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
        quick=True,
    ),
    "lora": program(
        """
        def model():
            network = keras.Sequential([keras.Input((6,)), layers.Dense(5), layers.Dense(2)])
            network.layers[0].enable_lora(2)
            network.compile(optimizers.SGD(0.05), "mse")
            return network

        IS_SAVED_OTHERWISE = True  # with the product of its matrices in the kernel
        """,
    ),
    "equal_names": program(
        """
        class Pair(layers.Layer):
            def __init__(self, name):
                super().__init__(name=name)
                self.first, self.second = layers.Dense(5, name="dense"), layers.Dense(5, name="dense")

            def call(self, x):
                return self.second(self.first(x))

        def model():
            network = keras.Sequential([Pair("a"), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "a_function_of_ops": program(
        """
        from keras import ops

        def model():
            inputs = keras.Input((6,))
            x = ops.tanh(layers.Dense(4)(inputs))
            x = ops.einsum("ab,ac->abc", x, x) / 2
            network = keras.Model(inputs, layers.Dense(2)(ops.reshape(x, (-1, 16))))
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "mixed_bfloat16": stack(
        "layers.Dense(5, 'tanh'), layers.BatchNormalization(), layers.Dense(2, dtype='float32')",
        before="keras.mixed_precision.set_global_policy('mixed_bfloat16')",
        tolerance=1e-1,
        quick=True,
    ),
    "bfloat16_weights": stack("layers.Dense(5, 'tanh', dtype='bfloat16'), layers.Dense(2)", tolerance=1e-1),
    "mixed_float16": stack(
        "layers.Dense(5, 'tanh'), layers.Dense(2, dtype='float32')",
        before="keras.mixed_precision.set_global_policy('mixed_float16')",
        tolerance=1e-2,
    ),
    "float64_weights": stack("layers.Dense(5, 'tanh', dtype='float64'), layers.Dense(2)"),
}

COMPILED: dict[str, Row] = {
    "own_loss": program(
        """
        class Own(losses.Loss):
            def call(self, targets, outputs):
                return keras.ops.sum((targets - outputs) ** 4, axis=-1)

        def model():
            network = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(2)])
            network.compile(optimizers.SGD(0.001), Own())
            return network
        """,
    ),
    "trainers_loss_of_negatives_in_the_batch": program(
        """
        from trainer.layers import ExampleKey
        from trainer.losses import InBatchSoftmax

        def model():
            x, item = keras.Input((6,), name="x"), keras.Input((), dtype="int64", name="item")
            vectors = keras.ops.stack([layers.Dense(3)(x), layers.Dense(3)(x)], axis=1)
            network = keras.Model({"x": x, "item": item}, ExampleKey()([vectors, item]))
            network.compile(optimizers.SGD(0.1), InBatchSoftmax(0.5))
            return network
        """,
        f'{{"x": {X}, "item": 2**40 + random.integers(0, 4, size=8)}}',
        "np.log(random.uniform(0.1, 0.9, size=8))",
        quick=True,
    ),
    "trainers_metrics_by_sums": program(
        """
        from trainer.metrics import Calibration, NormalizedEntropy

        def model():
            network = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(1, "sigmoid")])
            network.compile(optimizers.SGD(0.1), "binary_crossentropy", metrics=[NormalizedEntropy(), Calibration()])
            return network
        """,
        targets="np.arange(8)[:, None] % 3 // 2",
    ),
    "own_loss_function": program(
        """
        def own(targets, outputs):
            return tf.reduce_mean(tf.abs(targets - outputs) ** 1.5)

        def distance(targets, outputs):
            return tf.reduce_max(tf.abs(targets - outputs), axis=-1)

        def model():
            network = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), own, metrics=[distance])
            return network
        """,
    ),
    "loss_with_a_python_function": program(
        """
        def weigh(targets):
            return 1 + targets**2

        def own(targets, outputs):
            weights = tf.ensure_shape(tf.numpy_function(weigh, [targets], tf.float32), targets.shape)
            return tf.reduce_mean(weights * (targets - outputs) ** 2)

        def model():
            network = keras.Sequential([layers.Dense(2)])
            network.compile(optimizers.SGD(0.01), own, jit_compile=False)
            return network
        """,
    ),
    "own_metric": program(
        """
        class Largest(metrics.Metric):
            def __init__(self, name="largest"):
                super().__init__(name=name)
                self.value = self.add_variable((), initializer="zeros", name="value")
                self.batches = self.add_variable((), initializer="zeros", dtype="int32", name="batches")

            def update_state(self, targets, outputs, sample_weight=None):
                self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(targets - outputs))))
                self.batches.assign_add(1)

            def result(self):
                return self.value

        def model():
            network = keras.Sequential([layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse", metrics=[Largest()])
            return network
        """,
    ),
    "compute_loss": program(
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(2)
                self.tracker = metrics.Mean(name="distance")

            def call(self, x):
                return self.dense(x)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                loss = keras.ops.mean((y - y_pred) ** 2)
                self.tracker.update_state(loss)
                return loss

            @property
            def metrics(self):
                return [self.tracker]

        def model():
            network = Mine()
            network.compile(optimizers.SGD(0.05))
            return network
        """,
    ),
    "compute_metrics": program(
        """
        class Mine(keras.Sequential):
            def compute_metrics(self, x, y, y_pred, sample_weight=None):
                found = super().compute_metrics(x, y, y_pred, sample_weight)
                return {**found, "twice": 2 * found["mae"]}

        def model():
            network = Mine([layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
            return network
        """,
    ),
    "train_step": program(
        """
        class Mine(keras.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    outputs = self(x, training=True)
                    loss = 2 * self.compute_loss(y=y, y_pred=outputs)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                for metric in self.metrics:
                    if metric.name == "loss":
                        metric.update_state(loss)
                    else:
                        metric.update_state(y, outputs)
                return {metric.name: metric.result() for metric in self.metrics}

        def model():
            network = Mine([layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
            return network
        """,
        quick=True,
    ),
    "test_step": program(
        """
        class Mine(keras.Sequential):
            def test_step(self, data):
                x, y = data
                loss = self.compute_loss(y=y, y_pred=self(x, training=False))
                return {"loss": loss, "half": 0.5 * loss}

        def model():
            network = Mine([layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "predict_step": program(
        """
        class Mine(keras.Sequential):
            def predict_step(self, data):
                return 2 * super().predict_step(data)

        def model():
            network = Mine([layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), "mse")
            return network
        """,
    ),
    "own_optimizer": program(
        """
        class Own(optimizers.Optimizer):
            def build(self, variables):
                if not self.built:
                    super().build(variables)
                    self.sums = [self.add_variable_from_reference(each, "sum") for each in variables]

            def update_step(self, gradient, variable, learning_rate):
                total = self.sums[self._get_variable_index(variable)]
                self.assign_add(total, gradient * 0.5)
                self.assign_sub(variable, gradient * keras.ops.cast(learning_rate, "float32") + 0.01 * total)

        def model():
            network = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(2)])
            network.compile(Own(learning_rate=0.05), "mse")
            return network
        """,
    ),
    "own_schedule": program(
        """
        class Warmup(optimizers.schedules.LearningRateSchedule):
            def __init__(self):
                super().__init__()
                self.rate = tf.constant(0.02)

            def __call__(self, step):
                return self.rate * (tf.cast(step, tf.float32) + 1)

        def model():
            network = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(2)])
            network.compile(optimizers.SGD(Warmup()), "mse")
            return network
        """,
        quick=True,
    ),
    "run_eagerly": program(
        """
        def own(targets, outputs):
            found = keras.ops.mean((targets - outputs) ** 2)
            assert found.numpy() >= 0
            return found

        def model():
            network = keras.Sequential([layers.Dense(2)])
            network.compile(optimizers.SGD(0.05), own, run_eagerly=True)
            return network
        """,
    ),
    "accuracy_of_one_of_three": stack(
        "layers.Dense(3, 'softmax')",
        targets="np.eye(3)[random.permutation(8) % 3]",
        compiled="'adam', 'categorical_crossentropy', metrics=['accuracy', 'top_k_categorical_accuracy']",
    ),
    "clipnorm": optimized("SGD(0.1, clipnorm=0.1)"),
    "clipnorm_that_does_not_bind": optimized("SGD(0.1, clipnorm=1000.0)"),
    "clipnorm_of_a_steep_loss": steep("SGD(1e-4, clipnorm=50.0)", quick=True),
    "clipvalue_of_a_steep_loss": steep("SGD(1e-4, clipvalue=50.0)", quick=True),
    "global_clipnorm_of_a_steep_loss": steep("SGD(1e-4, global_clipnorm=50.0)", quick=True),
    "clipnorm_of_0": optimized("SGD(0.1, clipnorm=0.0)"),
    "clipvalue": optimized("SGD(0.1, clipvalue=0.05)"),
    "global_clipnorm": optimized("SGD(0.1, global_clipnorm=0.1)"),
    "moving_averages": optimized("SGD(0.1, use_ema=True, ema_momentum=0.9)", quick=True),
    "moving_averages_that_overwrite": optimized(
        "SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2)", quick=True
    ),
    "weight_decay": optimized("SGD(0.1, weight_decay=0.1)"),
    "loss_scale_factor": optimized("SGD(0.1, loss_scale_factor=4.0)"),
    "gradient_accumulation": optimized("SGD(0.1, gradient_accumulation_steps=2)"),
    "amsgrad": optimized("Adam(0.01, amsgrad=True)"),
    "learning_rate_of_a_function": optimized("SGD(lambda: 0.05)"),
    "weights_without_decay": program(
        """
        def model():
            network = keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(2)])
            optimizer = optimizers.AdamW(0.01, weight_decay=1.0)
            optimizer.exclude_from_weight_decay(var_names=["bias"])
            network.compile(optimizer, "mse")
            return network
        """,
        quick=True,
    ),
}

PROGRAMS = {**DATA, **MODELS, **COMPILED}
