"""ResNet-50, the model of benchmarks/gpu.py with large parameters: 94 MB."""

import keras


def model(input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """Images [height, width, channels] to logits [classes]."""
    network = keras.applications.ResNet50(
        weights=None, input_shape=input_shape, classes=classes, classifier_activation=None
    )
    network.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return network
