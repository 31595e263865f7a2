"""A row for each public class of `keras.layers`: between dense layers, on inputs of its kind."""

from dataclasses import dataclass, replace

from tests.conformance.row import LONG, MODEL, Row, untrained

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Integers:
    """An input of integers from 0."""

    shape: Shape
    limit: int = 10


@dataclass(frozen=True)
class Pixels:
    """An input of images with values from 0 to 1, which reach the layer as they are."""

    shape: Shape


Input = Shape | Integers | Pixels

VECTOR, SEQUENCE, IMAGE, VOLUME, FILM = (6,), (6, 4), (8, 8, 3), (4, 4, 4, 2), (3, 6, 6, 2)
PIXELS = Pixels(IMAGE)
WORDS = Integers((5,))


def on(inputs: Input | list[Input], layer: str, after: str = "", quick: bool = False) -> Row:
    """The row of a layer.

    Args:
        inputs: Of the model.
        layer: The layer, which is called with `x` unless it says so itself.
        after: A layer on its output.
        quick: Whether `make test` trains it.
    """
    several = inputs if isinstance(inputs, list) else [inputs]
    arrays, layers, dense = zip(*map(_input, several), strict=True)
    is_list = isinstance(inputs, list)
    lines = [
        f"x = inputs = [{', '.join(layers)}]" if is_list else f"x = inputs = {layers[0]}",
        f"x = [{', '.join(each.format(f'x[{number}]') for number, each in enumerate(dense))}]"
        if is_list
        else f"x = {dense[0].format('x')}",
        f"x = {layer if 'x)' in layer else f'{layer}(x)'}",
        *([f"x = {after}(x)"] if after else []),
        "network = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))",
        'network.compile(optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"])',
        "return network",
    ]
    head = MODEL.replace("{inputs}", f"[{', '.join(arrays)}]" if is_list else arrays[0])
    head = head.replace("{targets}", "1 + random.normal(size=(8, 2))")
    return Row(head + "".join(f"    {line}\n" for line in lines), quick=quick)


def _input(each: Input) -> tuple[str, str, str]:
    """The array of an input, its layer, and what makes of it, written {}, the input of the row's layer."""
    if isinstance(each, Integers):
        shape = f"{(8, *each.shape)}"
        return f"random.integers(0, {each.limit}, {shape})", f'keras.Input({each.shape}, dtype="int32")', "{}"
    if isinstance(each, Pixels):
        return f"random.uniform(size={(8, *each.shape)})", f"keras.Input({each.shape})", "{}"
    return f"random.normal(size={(8, *each)})", f"keras.Input({each})", f"layers.Dense({each[-1]})({{}})"


def random(row: Row) -> Row:
    """The row of a layer with random numbers: with smaller steps, on targets that can be learnt in spite of them."""
    text = row.text.replace("1 + random.normal(size=(8, 2))", "2 + 0.1 * random.normal(size=(8, 2))")
    return replace(row, text=text.replace("SGD(0.02", "SGD(0.005"), compared="learning", steps=LONG)


PIPELINE = "it changes examples, so it belongs into the pipeline of `train_data`"
NO_JAX = "it needs the package jax, which the trainer does not install"

LAYERS: dict[str, Row] = {
    "Activation": on(VECTOR, "layers.Activation('tanh')"),
    "ActivityRegularization": on(VECTOR, "layers.ActivityRegularization(l1=0.1, l2=0.1)", quick=True),
    "AdaptiveAveragePooling1D": on(SEQUENCE, "layers.AdaptiveAveragePooling1D(3)"),
    "AdaptiveAveragePooling2D": on(IMAGE, "layers.AdaptiveAveragePooling2D(3)"),
    "AdaptiveAveragePooling3D": on(VOLUME, "layers.AdaptiveAveragePooling3D(3)"),
    "AdaptiveMaxPooling1D": on(SEQUENCE, "layers.AdaptiveMaxPooling1D(3)"),
    "AdaptiveMaxPooling2D": on(IMAGE, "layers.AdaptiveMaxPooling2D(3)"),
    "AdaptiveMaxPooling3D": on(VOLUME, "layers.AdaptiveMaxPooling3D(3)"),
    "Add": on([VECTOR, VECTOR], "layers.Add()"),
    "AdditiveAttention": on([SEQUENCE, SEQUENCE], "layers.AdditiveAttention()"),
    "AlphaDropout": random(on(VECTOR, "layers.AlphaDropout(0.3)")),
    "Attention": on([SEQUENCE, SEQUENCE], "layers.Attention(use_scale=True)"),
    "AugMix": random(on(PIXELS, "layers.AugMix((0, 1))")),
    "AutoContrast": on(PIXELS, "layers.AutoContrast((0, 1))"),
    "Average": on([VECTOR, VECTOR], "layers.Average()"),
    "AveragePooling1D": on(SEQUENCE, "layers.AveragePooling1D(2)"),
    "AveragePooling2D": on(IMAGE, "layers.AveragePooling2D(2)"),
    "AveragePooling3D": on(VOLUME, "layers.AveragePooling3D(2)"),
    "BatchNormalization": on(IMAGE, "layers.BatchNormalization(momentum=0.8)", quick=True),
    "Bidirectional": on(SEQUENCE, "layers.Bidirectional(layers.LSTM(3))"),
    "CategoryEncoding": on(WORDS, "layers.CategoryEncoding(10, 'multi_hot')"),
    "CenterCrop": on(IMAGE, "layers.CenterCrop(4, 5)"),
    "Concatenate": on([VECTOR, VECTOR], "layers.Concatenate()"),
    "ContrastLimitedAdaptiveHistogramEqualization": on(
        PIXELS, "layers.ContrastLimitedAdaptiveHistogramEqualization((0, 1), tile_grid_size=(2, 2))"
    ),
    "Conv1D": on(SEQUENCE, "layers.Conv1D(2, 3)"),
    "Conv1DTranspose": on(SEQUENCE, "layers.Conv1DTranspose(2, 3)"),
    "Conv2D": on(IMAGE, "layers.Conv2D(2, 3, strides=2, padding='same')"),
    "Conv2DTranspose": on(IMAGE, "layers.Conv2DTranspose(2, 3)"),
    "Conv3D": on(VOLUME, "layers.Conv3D(2, 3)"),
    "Conv3DTranspose": on(VOLUME, "layers.Conv3DTranspose(2, 3)"),
    "ConvLSTM1D": on((3, 6, 2), "layers.ConvLSTM1D(2, 3)"),
    "ConvLSTM2D": on(FILM, "layers.ConvLSTM2D(2, 3)"),
    "ConvLSTM3D": on((2, 4, 4, 4, 2), "layers.ConvLSTM3D(2, 3)"),
    "Cropping1D": on(SEQUENCE, "layers.Cropping1D(1)"),
    "Cropping2D": on(IMAGE, "layers.Cropping2D(1)"),
    "Cropping3D": on(VOLUME, "layers.Cropping3D(1)"),
    "CutMix": untrained(f"{PIPELINE}; see the program mixed_examples"),
    "Dense": on(VECTOR, "layers.Dense(3, 'gelu')"),
    "DepthwiseConv1D": on(SEQUENCE, "layers.DepthwiseConv1D(3)"),
    "DepthwiseConv2D": on(IMAGE, "layers.DepthwiseConv2D(3, depth_multiplier=2)"),
    "Discretization": on(VECTOR, "layers.Discretization([-1.0, 0.0, 1.0], output_mode='one_hot')"),
    "Dot": on([VECTOR, VECTOR], "layers.Dot(1)"),
    "Dropout": random(on(VECTOR, "layers.Dropout(0.3)", quick=True)),
    "ELU": on(VECTOR, "layers.ELU()"),
    "EinsumDense": on(SEQUENCE, "layers.EinsumDense('abc,cd->abd', (6, 3), bias_axes='d')"),
    "Embedding": on(WORDS, "layers.Embedding(10, 3, mask_zero=True)"),
    "Equalization": on(PIXELS, "layers.Pipeline([layers.Equalization((0, 1))])"),
    "Flatten": on(IMAGE, "layers.Flatten()"),
    "FlaxLayer": untrained(NO_JAX),
    "GRU": on(SEQUENCE, "layers.GRU(3)"),
    "GRUCell": on(SEQUENCE, "layers.RNN(layers.GRUCell(3))"),
    "GaussianDropout": random(on(VECTOR, "layers.GaussianDropout(0.3)")),
    "GaussianNoise": random(on(VECTOR, "layers.GaussianNoise(0.5)")),
    "GlobalAveragePooling1D": on(SEQUENCE, "layers.GlobalAveragePooling1D()"),
    "GlobalAveragePooling2D": on(IMAGE, "layers.GlobalAveragePooling2D()"),
    "GlobalAveragePooling3D": on(VOLUME, "layers.GlobalAveragePooling3D()"),
    "GlobalMaxPooling1D": on(SEQUENCE, "layers.GlobalMaxPooling1D()"),
    "GlobalMaxPooling2D": on(IMAGE, "layers.GlobalMaxPooling2D()"),
    "GlobalMaxPooling3D": on(VOLUME, "layers.GlobalMaxPooling3D()"),
    "GroupNormalization": on((4, 4, 4), "layers.GroupNormalization(2)"),
    "GroupQueryAttention": on([SEQUENCE, SEQUENCE], "layers.GroupQueryAttention(3, 4, 2)(*x)"),
    "HashedCrossing": on([Integers((1,)), Integers((1,))], "layers.HashedCrossing(7, output_mode='one_hot')"),
    "Hashing": on(WORDS, "layers.Hashing(7)", after="layers.Embedding(7, 3)"),
    "Identity": on(VECTOR, "layers.Identity()"),
    "InputLayer": on(VECTOR, "keras.Sequential([layers.InputLayer((6,)), layers.Dense(3)])"),
    "InputSpec": untrained("it describes inputs, and is not a layer"),
    "IntegerLookup": on(WORDS, "layers.IntegerLookup(vocabulary=[1, 3, 5])", after="layers.Embedding(4, 3)"),
    "JaxLayer": untrained(NO_JAX),
    "LSTM": on(SEQUENCE, "layers.LSTM(3, return_sequences=True)", quick=True),
    "LSTMCell": on(SEQUENCE, "layers.RNN(layers.LSTMCell(3))"),
    "Lambda": on(VECTOR, "layers.Lambda(lambda each: each * 2)"),
    "Layer": untrained("it is the base class of layers; see the program layer_with_state"),
    "LayerNormalization": on(SEQUENCE, "layers.LayerNormalization()"),
    "LeakyReLU": on(VECTOR, "layers.LeakyReLU()"),
    "Masking": on(SEQUENCE, "layers.LSTM(3)(layers.Masking()(x))"),
    "MaxNumBoundingBoxes": untrained(PIPELINE),
    "MaxPooling1D": on(SEQUENCE, "layers.MaxPooling1D(2)"),
    "MaxPooling2D": on(IMAGE, "layers.MaxPooling2D(2)"),
    "MaxPooling3D": on(VOLUME, "layers.MaxPooling3D(2)"),
    "Maximum": on([VECTOR, VECTOR], "layers.Maximum()"),
    "MelSpectrogram": on((64,), "layers.MelSpectrogram(16, 8, sampling_rate=100, num_mel_bins=4, max_freq=50)"),
    "Minimum": on([VECTOR, VECTOR], "layers.Minimum()"),
    "MixUp": untrained(f"{PIPELINE}; see the program mixed_examples"),
    "MultiHeadAttention": on([SEQUENCE, SEQUENCE], "layers.MultiHeadAttention(2, 3)(*x)"),
    "Multiply": on([VECTOR, VECTOR], "layers.Multiply()"),
    "Normalization": on(VECTOR, "layers.Normalization(mean=1.0, variance=4.0)"),
    "PReLU": on(VECTOR, "layers.PReLU()"),
    "Permute": on(SEQUENCE, "layers.Permute((2, 1))"),
    "Pipeline": on(PIXELS, "layers.Pipeline([layers.Rescaling(2.0), layers.CenterCrop(4, 4)])"),
    "RMSNormalization": on(VECTOR, "layers.RMSNormalization()"),
    "RNN": on(SEQUENCE, "layers.RNN([layers.LSTMCell(3), layers.LSTMCell(2)])"),
    "RandAugment": random(on(PIXELS, "layers.RandAugment((0, 1))")),
    "RandomBrightness": random(on(PIXELS, "layers.RandomBrightness(0.3, (0, 1))")),
    "RandomColorDegeneration": random(on(PIXELS, "layers.RandomColorDegeneration(0.5, (0, 1))")),
    "RandomColorJitter": random(on(PIXELS, "layers.RandomColorJitter((0, 1), 0.3, 0.3, 0.3, 0.3)")),
    "RandomContrast": random(on(PIXELS, "layers.RandomContrast(0.3, (0, 1))")),
    "RandomCrop": random(on(IMAGE, "layers.RandomCrop(6, 6)", after="layers.Resizing(6, 6)")),
    "RandomElasticTransform": random(on(PIXELS, "layers.RandomElasticTransform()")),
    "RandomErasing": random(on(PIXELS, "layers.RandomErasing(value_range=(0, 1))")),
    "RandomFlip": random(on(IMAGE, "layers.RandomFlip()")),
    "RandomGaussianBlur": random(on(PIXELS, "layers.RandomGaussianBlur(value_range=(0, 1))")),
    "RandomGrayscale": random(on(PIXELS, "layers.RandomGrayscale(0.5)")),
    "RandomHue": random(on(PIXELS, "layers.RandomHue(0.3, (0, 1))")),
    "RandomInvert": random(on(PIXELS, "layers.RandomInvert(0.5, (0, 1))")),
    "RandomPerspective": random(on(PIXELS, "layers.RandomPerspective()")),
    "RandomPosterization": random(on(PIXELS, "layers.RandomPosterization(4, (0, 1))")),
    "RandomRotation": random(on(PIXELS, "layers.RandomRotation(0.1)")),
    "RandomSaturation": random(on(PIXELS, "layers.RandomSaturation(0.3, (0, 1))")),
    "RandomSharpness": random(on(PIXELS, "layers.RandomSharpness(0.3, (0, 1))")),
    "RandomShear": random(on(PIXELS, "layers.RandomShear(0.2, 0.2)")),
    "RandomTranslation": random(on(PIXELS, "layers.RandomTranslation(0.2, 0.2)")),
    "RandomZoom": random(on(PIXELS, "layers.RandomZoom(0.2)")),
    "ReLU": on(VECTOR, "layers.ReLU()"),
    "RepeatVector": on(VECTOR, "layers.RepeatVector(3)"),
    "Rescaling": on(VECTOR, "layers.Rescaling(0.5, 1.0)"),
    "Reshape": on(VECTOR, "layers.Reshape((2, 3))"),
    "Resizing": on(IMAGE, "layers.Resizing(5, 5)"),
    "ReversibleEmbedding": on(WORDS, "layers.ReversibleEmbedding(10, 3)"),
    "STFTSpectrogram": on((64,), "layers.STFTSpectrogram('real', 16, 8, 16)(layers.Reshape((64, 1))(x))"),
    "SeparableConv1D": on(SEQUENCE, "layers.SeparableConv1D(2, 3)"),
    "SeparableConv2D": on(IMAGE, "layers.SeparableConv2D(2, 3)"),
    "SimpleRNN": on(SEQUENCE, "layers.SimpleRNN(3)"),
    "SimpleRNNCell": on(SEQUENCE, "layers.RNN(layers.SimpleRNNCell(3))"),
    "Softmax": on(VECTOR, "layers.Softmax()"),
    "Solarization": random(on(PIXELS, "layers.Solarization(0.1, 0.5, (0, 1))")),
    "SpatialDropout1D": random(on(SEQUENCE, "layers.SpatialDropout1D(0.3)")),
    "SpatialDropout2D": random(on(IMAGE, "layers.SpatialDropout2D(0.3)")),
    "SpatialDropout3D": random(on(VOLUME, "layers.SpatialDropout3D(0.3)")),
    "SpectralNormalization": on(VECTOR, "layers.SpectralNormalization(layers.Dense(3))"),
    "StackedRNNCells": on(SEQUENCE, "layers.RNN(layers.StackedRNNCells([layers.GRUCell(3), layers.SimpleRNNCell(2)]))"),
    "StringLookup": on(
        WORDS,
        "layers.StringLookup(vocabulary=['1', '3'])(layers.Lambda(tf.strings.as_string, dtype='string')(x))",
        after="layers.Embedding(3, 3)",
    ),
    "Subtract": on([VECTOR, VECTOR], "layers.Subtract()"),
    "TFSMLayer": untrained("it predicts by a SavedModel, whose values it does not train"),
    "TextVectorization": on(
        Integers((1,)),
        "layers.TextVectorization(vocabulary=['1', '3'], output_sequence_length=2)"
        "(layers.Lambda(tf.strings.as_string, dtype='string')(x))",
        after="layers.Embedding(4, 3)",
    ),
    "TimeDistributed": on(FILM, "layers.TimeDistributed(layers.Conv2D(2, 3))"),
    "TorchModuleWrapper": untrained("it needs PyTorch as Keras's backend"),
    "UnitNormalization": on(VECTOR, "layers.UnitNormalization()"),
    "UpSampling1D": on(SEQUENCE, "layers.UpSampling1D(2)"),
    "UpSampling2D": on(IMAGE, "layers.UpSampling2D(2, interpolation='bilinear')"),
    "UpSampling3D": on(VOLUME, "layers.UpSampling3D(2)"),
    "Wrapper": untrained("it is the base class of layers around a layer"),
    "ZeroPadding1D": on(SEQUENCE, "layers.ZeroPadding1D(1)"),
    "ZeroPadding2D": on(IMAGE, "layers.ZeroPadding2D(1)"),
    "ZeroPadding3D": on(VOLUME, "layers.ZeroPadding3D(1)"),
}
