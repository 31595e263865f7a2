"""The smallest model of each family of `keras.applications`, with few classes, small images and no dropout.

Deep networks amplify rounding: `fit` differs from `fit`, by 1e-3 to 8e-2 in the gradients of the first step, if the
examples of a batch change places, or if Grappler rewrites the graph. Here both train on the same batches in the same
order, without Grappler. So they add in the same order, and the tolerance is that of small models.
"""

from tests.conformance.row import HEAD, Row

SIZES = {
    "ConvNeXtTiny": 64,
    "DenseNet121": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 64,
    "MobileNetV2": 64,
    "MobileNetV3Small": 64,
    "NASNetMobile": 64,
    "ResNet50": 64,
    "ResNet50V2": 64,
    "VGG16": 64,
    "Xception": 71,
}
"""The height of the images, by the name of the model."""


def _row(name: str, size: int) -> Row:
    images = f"random.uniform(0, 255, (8, {size}, {size}, 3)) * random.uniform(size=(8, 1, 1, 3))"
    head = HEAD.replace("{inputs}", f"({images}).astype('float32')").replace("{targets}", "random.permutation(8) % 3")
    text = f"""

HAS_BATCHES = True
GRAPPLER = False


def batches(seed):
    return tf.data.Dataset.from_tensor_slices(data(seed)).batch(4)


def train_data(context):
    return batches(0)


def test_data(context):
    return batches(1)


def model():
    network = keras.applications.{name}(weights=None, classes=3, input_shape=({size}, {size}, 3))
    for layer in network.layers:
        if isinstance(layer, layers.Dropout):
            layer.rate = 0
        elif isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.5  # after two steps the predictions depend on the images
        elif type(layer).__name__ == "LayerScale":
            layer.gamma.assign(keras.ops.full_like(layer.gamma, 0.1))  # 1e-6 would hide the other layers
    network.compile(optimizers.SGD(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network
"""
    return Row(head + text, batch_size=4, steps=2)


APPLICATIONS: dict[str, Row] = {name: _row(name, size) for name, size in SIZES.items()}
