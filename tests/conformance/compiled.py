"""A row for each public class of losses, metrics, optimizers and schedules: one argument of `compile()`."""

from tests.conformance.row import MODEL, Row, untrained

KINDS = {
    # The targets, the activation and the units of the last layer, and a loss.
    "values": ("random.normal(size=(8, 2))", None, 2, "mse"),
    "positive": ("random.uniform(0.1, 2, size=(8, 2))", "softplus", 2, "mse"),
    "binary": ("random.integers(0, 2, size=(8, 2)).astype('float32')", "sigmoid", 2, "binary_crossentropy"),
    "signs": ("2.0 * random.integers(0, 2, size=(8, 2)) - 1", "tanh", 2, "hinge"),
    "one of three": ("np.eye(3)[random.permutation(8) % 3]", "softmax", 3, "categorical_crossentropy"),
    "labels": ("random.permutation(8) % 3", "softmax", 3, "sparse_categorical_crossentropy"),
    "distribution": ("random.dirichlet(np.ones(3), size=8)", "softmax", 3, "kl_divergence"),
}


def compiled(
    kind: str, loss: str = "", metric: str = "", optimizer: str = "optimizers.SGD(0.1)", quick: bool = False
) -> Row:
    """The row of a model with two dense layers, whose targets are of this kind."""
    targets, activation, units, usual_loss = KINDS[kind]
    lines = [
        "inputs = keras.Input((6,))",
        "x = layers.Dense(5, 'tanh')(inputs)",
        f"network = keras.Model(inputs, layers.Dense({units}, {activation!r})(x))",
        f"network.compile({optimizer}, {loss or repr(usual_loss)}, metrics=[{metric}])",
        "return network",
    ]
    head = MODEL.replace("{inputs}", "random.normal(size=(8, 6))").replace("{targets}", targets)
    return Row(head + "".join(f"    {line}\n" for line in lines), quick=quick)


def lost(kind: str, loss: str, quick: bool = False) -> Row:
    return compiled(kind, loss=f"losses.{loss}", quick=quick)


def measured(kind: str, metric: str, quick: bool = False) -> Row:
    return compiled(kind, metric=f"metrics.{metric}", quick=quick)


def updated(optimizer: str, quick: bool = False) -> Row:
    return compiled("values", optimizer=f"optimizers.{optimizer}", quick=quick)


def scheduled(schedule: str, quick: bool = False) -> Row:
    return updated(f"SGD(optimizers.schedules.{schedule})", quick)


CTC = """\
    inputs = keras.Input((6,))
    x = layers.Reshape((6, 5))(layers.Dense(30)(inputs))
    network = keras.Model(inputs, x)
    network.compile(optimizers.SGD(0.1), losses.CTC())
    return network
"""
CIRCLE = """\
    inputs = keras.Input((6,))
    network = keras.Model(inputs, layers.UnitNormalization()(layers.Dense(3)(inputs)))
    network.compile(optimizers.SGD(0.1), losses.Circle())
    return network
"""


def _embedding(targets: str, body: str) -> Row:
    return Row(MODEL.replace("{inputs}", "random.normal(size=(8, 6))").replace("{targets}", targets) + body)


LOSSES: dict[str, Row] = {
    "BinaryCrossentropy": lost("binary", "BinaryCrossentropy(label_smoothing=0.1)"),
    "BinaryFocalCrossentropy": lost("binary", "BinaryFocalCrossentropy()"),
    "CTC": _embedding("random.integers(1, 5, size=(8, 3))", CTC),
    "CategoricalCrossentropy": lost("one of three", "CategoricalCrossentropy(label_smoothing=0.1)"),
    "CategoricalFocalCrossentropy": lost("one of three", "CategoricalFocalCrossentropy()"),
    "CategoricalGeneralizedCrossEntropy": lost("labels", "CategoricalGeneralizedCrossEntropy()"),
    "CategoricalHinge": lost("one of three", "CategoricalHinge()"),
    "Circle": _embedding("random.integers(0, 2, size=8)", CIRCLE),
    "CosineSimilarity": lost("values", "CosineSimilarity()"),
    "Dice": lost("binary", "Dice()"),
    "Hinge": lost("signs", "Hinge()"),
    "Huber": lost("values", "Huber()"),
    "KLDivergence": lost("distribution", "KLDivergence()"),
    "LogCosh": lost("values", "LogCosh()"),
    "Loss": untrained("it is the base class of losses; see the program own_loss"),
    "MeanAbsoluteError": lost("values", "MeanAbsoluteError()"),
    "MeanAbsolutePercentageError": lost("positive", "MeanAbsolutePercentageError()"),
    "MeanSquaredError": lost("values", "MeanSquaredError()"),
    "MeanSquaredLogarithmicError": lost("positive", "MeanSquaredLogarithmicError()"),
    "Poisson": lost("positive", "Poisson()"),
    "SparseCategoricalCrossentropy": lost("labels", "SparseCategoricalCrossentropy()", quick=True),
    "SquaredHinge": lost("signs", "SquaredHinge()"),
    "Tversky": lost("binary", "Tversky()"),
}

VALUES = "it measures values, not targets and predictions; see the program own_metric"

METRICS: dict[str, Row] = {
    "AUC": measured("binary", "AUC()", quick=True),
    "Accuracy": measured("signs", "Accuracy()"),
    "BinaryAccuracy": measured("binary", "BinaryAccuracy()"),
    "BinaryCrossentropy": measured("binary", "BinaryCrossentropy()"),
    "BinaryIoU": measured("binary", "BinaryIoU()"),
    "CategoricalAccuracy": measured("one of three", "CategoricalAccuracy()"),
    "CategoricalCrossentropy": measured("one of three", "CategoricalCrossentropy()"),
    "CategoricalHinge": measured("one of three", "CategoricalHinge()"),
    "ConcordanceCorrelation": measured("values", "ConcordanceCorrelation()"),
    "CosineSimilarity": measured("values", "CosineSimilarity()"),
    "F1Score": measured("one of three", "F1Score()"),
    "FBetaScore": measured("one of three", "FBetaScore('macro')"),
    "FalseNegatives": measured("binary", "FalseNegatives()"),
    "FalsePositives": measured("binary", "FalsePositives()"),
    "Hinge": measured("signs", "Hinge()"),
    "IoU": measured("labels", "IoU(3, [0], sparse_y_pred=False)"),
    "KLDivergence": measured("distribution", "KLDivergence()"),
    "LogCoshError": measured("values", "LogCoshError()"),
    "Mean": untrained(VALUES),
    "MeanAbsoluteError": measured("values", "MeanAbsoluteError()"),
    "MeanAbsolutePercentageError": measured("positive", "MeanAbsolutePercentageError()"),
    "MeanIoU": measured("labels", "MeanIoU(3, sparse_y_pred=False)"),
    "MeanMetricWrapper": measured("values", "MeanMetricWrapper(losses.huber, name='huber')"),
    "MeanSquaredError": measured("values", "MeanSquaredError()"),
    "MeanSquaredLogarithmicError": measured("positive", "MeanSquaredLogarithmicError()"),
    "Metric": untrained("it is the base class of metrics; see the program own_metric"),
    "OneHotIoU": measured("one of three", "OneHotIoU(3, [0])"),
    "OneHotMeanIoU": measured("one of three", "OneHotMeanIoU(3)"),
    "PearsonCorrelation": measured("values", "PearsonCorrelation()"),
    "Poisson": measured("positive", "Poisson()"),
    "Precision": measured("binary", "Precision()"),
    "PrecisionAtRecall": measured("binary", "PrecisionAtRecall(0.5)"),
    "R2Score": measured("values", "R2Score()"),
    "Recall": measured("binary", "Recall()"),
    "RecallAtPrecision": measured("binary", "RecallAtPrecision(0.5)"),
    "RootMeanSquaredError": measured("values", "RootMeanSquaredError()"),
    "SensitivityAtSpecificity": measured("binary", "SensitivityAtSpecificity(0.5)"),
    "SparseCategoricalAccuracy": measured("labels", "SparseCategoricalAccuracy()"),
    "SparseCategoricalCrossentropy": measured("labels", "SparseCategoricalCrossentropy()"),
    "SparseTopKCategoricalAccuracy": measured("labels", "SparseTopKCategoricalAccuracy(2)"),
    "SpecificityAtSensitivity": measured("binary", "SpecificityAtSensitivity(0.5)"),
    "SquaredHinge": measured("signs", "SquaredHinge()"),
    "Sum": untrained(VALUES),
    "TopKCategoricalAccuracy": measured("one of three", "TopKCategoricalAccuracy(2)"),
    "TrueNegatives": measured("binary", "TrueNegatives()"),
    "TruePositives": measured("binary", "TruePositives()"),
}

OPTIMIZERS: dict[str, Row] = {
    "Adadelta": updated("Adadelta(1.0)"),
    "Adafactor": updated("Adafactor()", quick=True),
    "Adagrad": updated("Adagrad(0.05)"),
    "Adam": updated("Adam(0.01)", quick=True),
    "AdamW": updated("AdamW(0.01, weight_decay=0.1)", quick=True),
    "Adamax": updated("Adamax(0.01)"),
    "Ftrl": updated("Ftrl(0.05, l1_regularization_strength=0.01)"),
    "Lamb": updated("Lamb(0.01)", quick=True),
    "Lion": updated("Lion(0.005)"),
    "LossScaleOptimizer": updated("LossScaleOptimizer(optimizers.SGD(0.1))"),
    "MultiOptimizer": updated(
        "MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(0.1), {'.*bias': optimizers.Adam(0.01)}))"
    ),
    "Muon": updated("Muon(0.01)"),
    "Nadam": updated("Nadam(0.01)"),
    "Optimizer": untrained("it is the base class of optimizers; see the program own_optimizer"),
    "OptimizerMap": untrained("it is the argument of MultiOptimizer"),
    "RMSprop": updated("RMSprop(0.01, centered=True)"),
    "SGD": updated("SGD(0.05, momentum=0.9, nesterov=True)", quick=True),
    "ScheduleFreeAdamW": updated("ScheduleFreeAdamW(0.01)"),
}

SCHEDULES: dict[str, Row] = {
    "CosineDecay": scheduled("CosineDecay(0.01, 10, warmup_target=0.1, warmup_steps=2)", quick=True),
    "CosineDecayRestarts": scheduled("CosineDecayRestarts(0.1, 2)"),
    "ExponentialDecay": scheduled("ExponentialDecay(0.1, 2, 0.5, staircase=True)"),
    "InverseTimeDecay": scheduled("InverseTimeDecay(0.1, 2, 0.5)"),
    "LearningRateSchedule": untrained("it is the base class of schedules; see the program own_schedule"),
    "PiecewiseConstantDecay": scheduled("PiecewiseConstantDecay([2], [0.1, 0.01])"),
    "PolynomialDecay": scheduled("PolynomialDecay(0.1, 4)"),
}
