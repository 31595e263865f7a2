"""The smallest model of each family of `keras.applications`, with few classes, small images and no dropout."""

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
    text = f"""

def model():
    network = keras.applications.{name}(weights=None, classes=3, input_shape=({size}, {size}, 3))
    for layer in network.layers:
        if isinstance(layer, layers.Dropout):
            layer.rate = 0
    network.compile(optimizers.SGD(1e-4), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network
"""
    images = f"random.uniform(0, 1, size=(4, {size}, {size}, 3))"
    head = HEAD.replace("{inputs}", images).replace("{targets}", "random.permutation(4) % 3")
    return Row(head + text, batch_size=4, steps=2)


APPLICATIONS: dict[str, Row] = {name: _row(name, size) for name, size in SIZES.items()}
