"""A convolutional network with augmentation, batch normalization and dropout, for small images."""

import keras
from keras import layers


def model(input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """Images [height, width, channels] to logits [classes]."""
    network = keras.Sequential(
        [
            layers.Input(input_shape),
            layers.RandomTranslation(0.1, 0.1),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(classes),
        ]
    )
    steps, warmup = 1000, 100  # the train_steps of values-keras-model.yaml: the rate is zero at the end of the run
    # Adam's first updates move each parameter by the whole rate, however small its gradient, and stale gradients repeat
    # them: without the warm-up, some runs with sync_replicas=false learn little.
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps - warmup, warmup_target=0.003, warmup_steps=warmup)
    network.compile(
        optimizer=keras.optimizers.AdamW(rate, weight_decay=0.004),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network
