"""The smallest model of each family of `keras.applications`, with few classes, small images and no dropout."""

from tests.conformance.row import HEAD, Row

SIZES = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}
"""The height of the images, by the name of the model."""


def _row(name: str, size: int) -> Row:
    text = f"""

def model():
    network = keras.applications.{name}(weights=None, classes=3, input_shape=({size}, {size}, 3))
    for layer in network.layers:
        if isinstance(layer, layers.Dropout):
            layer.rate = 0
    network.compile(optimizers.SGD(1e-4), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network
"""
    images = f"random.uniform(0, 1, size=(2, {size}, {size}, 3))"
    head = HEAD.replace("{inputs}", images).replace("{targets}", "random.integers(0, 3, size=2)")
    return Row(head + text, batch_size=2, steps=2)


APPLICATIONS: dict[str, Row] = {name: _row(name, size) for name, size in SIZES.items()}
