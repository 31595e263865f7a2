"""The metrics that a model's file may import, compared with scikit-learn, by plain Keras and by the trainer."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from tests.unit.test_keras_data import examples, load, train
from trainer import auc
from trainer.errors import ConfigurationError
from trainer.layers import ExampleKey
from trainer.metrics import AUC, Calibration, GroupAUC, NormalizedEntropy
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras

EXAMPLES, SIZES = 300_000, (1, 70_000, 129_999, 7, 99_993)
MEASURES: dict[str, Any] = {
    "auc": AUC,
    "group_auc": GroupAUC,
    "normalized_entropy": NormalizedEntropy,
    "calibration": Calibration,
}


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    with eager_mode():
        yield


def by_groups(keys: Any, labels: Any, scores: Any, weights: Any) -> float:
    """The definition: the mean of the AUCs of groups, weighted by the sums of the weights of their examples."""
    found = []
    for key in np.unique(keys):
        of = keys == key
        if len(np.unique(labels[of])) == 2:
            found.append((roc_auc_score(labels[of], scores[of], sample_weight=weights[of]), weights[of].sum()))
    return float(np.average([area for area, _ in found], weights=[size for _, size in found])) if found else math.nan


def expected(keys: Any, labels: Any, probabilities: Any, weights: Any) -> dict[str, float]:
    """What scikit-learn finds."""
    probabilities, weights = probabilities.astype(np.float64), weights.astype(np.float64)
    mean = np.average(labels, weights=weights)
    entropy = -(mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    return {
        "auc": roc_auc_score(labels, probabilities, sample_weight=weights),
        "group_auc": by_groups(keys, labels, probabilities, weights),
        "normalized_entropy": log_loss(labels, probabilities, sample_weight=weights) / entropy,
        "calibration": (probabilities * weights).sum() / (labels * weights).sum(),
    }


def kept(measures: Any) -> list[Any]:
    """The keys, labels, scores and weights that a metric of groups was given in an evaluation.

    Those of `predict()` differ from them in the last digit, which changes the order of scores that are nearly equal.
    """
    (of_groups,) = (each for each in measures if isinstance(each, GroupAUC))
    ((scores, labels, keys, weights),) = of_groups._kept.batches
    return [keys, labels, scores, weights]


def with_keys(scores: Any, keys: Any) -> Any:
    return ExampleKey()([keras.ops.convert_to_tensor(scores), tf.constant(keys)])


@pytest.mark.slow
@pytest.mark.parametrize("is_weighted", [False, True])
def test_many_examples_in_uneven_batches_have_the_values_of_scikit_learn(is_weighted: bool) -> None:
    """Two decimals, so that scores are often equal; small probabilities, so that sums in float32 would differ."""
    random = np.random.default_rng(0)
    keys = random.integers(0, 400, EXAMPLES) + 2**60
    labels = (random.random(EXAMPLES) < 0.1).astype(np.float32)
    logits = (labels * 0.7 + random.normal(size=EXAMPLES) - 2).round(2).astype(np.float32)
    probabilities = keras.ops.convert_to_numpy(keras.ops.sigmoid(logits))
    weights = random.random(EXAMPLES).astype(np.float32) if is_weighted else None
    measures = [
        *(make() for make in MEASURES.values()),
        *(MEASURES[name](from_logits=True) for name in ("normalized_entropy", "calibration")),
    ]
    for of in itertools.starmap(slice, itertools.pairwise(itertools.accumulate(SIZES, initial=0))):
        outputs = [with_keys(each[of], keys[of]) for each in (probabilities, logits)]
        for number, each in enumerate(measures):
            given = outputs[number >= len(MEASURES)]
            each.update_state(labels[of][:, None], given, None if weights is None else weights[of])
    wanted = expected(keys, labels, probabilities, np.ones(EXAMPLES) if weights is None else weights)
    for each in measures:
        assert float(each.result()) == pytest.approx(wanted[each.name], rel=1e-6), each.name


ROWS = st.lists(st.tuples(*(st.integers(0, most) for most in (2, 1, 4, 3))), min_size=1, max_size=40)


@given(ROWS)
def test_areas_of_few_examples_are_those_of_scikit_learn(rows: list[tuple[int, ...]]) -> None:
    keys, labels, scores, weights = np.array(rows).T
    weights = weights + 0.5
    is_defined = len(set(labels)) == 2
    wanted = roc_auc_score(labels, scores, sample_weight=weights) if is_defined else math.nan
    assert auc.auc(labels, scores, weights) == pytest.approx(wanted, nan_ok=True)
    found = auc.group_auc(keys, labels, scores, weights)
    assert found == pytest.approx(by_groups(keys, labels, scores, weights), nan_ok=True)


def test_millions_of_examples_take_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array is sorted once for each column, whatever the number of groups."""
    sorts: list[int] = []
    lexsort: Any = np.lexsort

    def counted(columns: Any) -> Any:
        sorts.append(len(columns[0]))
        return lexsort(columns)

    monkeypatch.setattr(np, "lexsort", counted)
    random = np.random.default_rng(0)
    keys, labels = random.integers(0, 2_000, 100_000), random.integers(0, 2, 100_000)
    assert auc.group_auc(keys, labels, random.random(100_000)) == pytest.approx(0.5, abs=0.01)
    assert sorts == [100_000]


@pytest.mark.parametrize("make", MEASURES.values(), ids=MEASURES)
def test_a_value_that_does_not_exist_is_nan(make: Any) -> None:
    measure = make()
    assert math.isnan(measure.result())
    measure.update_state(np.zeros(3), with_keys(np.array([0.1, 0.2, 0.3], np.float32), [1, 1, 2]))
    assert math.isnan(measure.result())


@pytest.mark.parametrize("make", MEASURES.values(), ids=MEASURES)
def test_diverged_scores_are_nan(make: Any) -> None:
    measure = make()
    measure.update_state(
        np.array([0, 1, 0, 1], np.float32), with_keys(np.array([0.1, np.nan, 0.3, 0.4], np.float32), [1, 1, 2, 2])
    )
    assert math.isnan(measure.result())


@pytest.mark.parametrize("make", MEASURES.values(), ids=MEASURES)
def test_a_reset_begins_again(make: Any) -> None:
    measure, other = make(), make()
    measure.update_state(np.array([1, 0], np.float32), with_keys(np.array([0.1, 0.9], np.float32), ["a", "a"]))
    measure.reset_state()
    for each in (measure, other):
        each.update_state(np.array([1, 0], np.float32), with_keys(np.array([0.8, 0.3], np.float32), ["b", "b"]))
    assert float(measure.result()) == float(other.result())


def test_scores_are_kept_as_they_were() -> None:
    """The arrays that a function of NumPy gets may be the memory of tensors, which others use next."""
    measure = AUC()
    given = np.array([0.9, 0.1], np.float32), np.array([1, 0], np.float32)
    measure._keep(np.int64(0), *given)
    given[0][:] = 0
    assert measure._compute(np.int64(2), np.bool_(False)) == 1


def test_an_output_of_several_scores_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"auc takes one score and one label .* \[2, 3\] and \[2\]; give it an output"):
        AUC().update_state(np.zeros(2), np.zeros((2, 3)))


def test_groups_without_keys_are_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"let its last layer be trainer\.layers\.ExampleKey"):
        GroupAUC().update_state(np.zeros(2), np.zeros(2))


def test_a_state_of_other_examples_is_a_sentence() -> None:
    measure = AUC()
    measure.count.assign(5)
    with pytest.raises(Exception, match="has counted 5 examples, but has 0"):
        measure.result()


def network(output: str, key: str, policy: str, **compiled: Any) -> Any:
    """A model with one output, alone or in a dictionary, which all metrics measure."""
    inputs = {"x": keras.Input((3,), name="x"), "key": keras.Input((), name="key", dtype=key)}
    hidden = keras.layers.Dense(4, "relu", dtype=policy)(inputs["x"])
    scores = ExampleKey(name="ctr")([keras.layers.Dense(1, "sigmoid", dtype=policy)(hidden), inputs["key"]])
    made = keras.Model(inputs, {"ctr": scores, "cvr": keras.layers.Dense(1, name="cvr")(hidden)} if output else scores)
    measures: Any = [make() for make in MEASURES.values()]
    losses: Any = "binary_crossentropy"
    if output:
        losses, measures = {"ctr": losses, "cvr": "mse"}, {"ctr": measures, "cvr": []}
    made.compile("sgd", losses, weighted_metrics=measures, **compiled)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "key", "policy", "compiled", "tolerance"),
    [
        ("", "int64", "float32", {}, 1e-6),
        ("", "string", "mixed_bfloat16", {"steps_per_execution": 3}, 1e-2),
        ("ctr", "int64", "float32", {"run_eagerly": True}, 1e-6),
    ],
    ids=["graph", "texts in bfloat16", "eager and a dictionary"],
)
def test_plain_keras_fits_evaluates_saves_and_loads(
    output: str, key: str, policy: str, compiled: dict[str, Any], tolerance: float, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    keys = random.integers(0, 10, 500)
    x, labels, weights = random.normal(size=(500, 3)), random.integers(0, 2, 500), random.random(500)
    given = {"x": x, "key": tf.constant(keys.astype(str)) if key == "string" else keys}
    targets, sizes = (dict.fromkeys(("ctr", "cvr"), value) if output else value for value in (labels, weights))
    made = network(output, key, policy, **compiled)
    fitted = made.fit(given, targets, sample_weight=sizes, batch_size=64, verbose=0, validation_data=(given, targets))
    made.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found = loaded.evaluate(given, targets, sample_weight=sizes, batch_size=99, verbose=0, return_dict=True)
    scores = made.predict(given, verbose=0)
    columns = kept(metric for each in loaded.metrics for metric in getattr(each, "metrics", [each]))
    assert np.allclose(columns[1], labels)
    assert np.allclose(columns[2], np.asarray(scores["ctr"] if output else scores)[:, 0], atol=tolerance)
    assert np.allclose(columns[3], weights)
    assert (np.unique(columns[0], return_inverse=True)[1] == keys).all()
    prefix = "ctr_" if output else ""
    assert {name: found[prefix + name] for name in MEASURES} == pytest.approx(expected(*columns), rel=1e-5)
    assert {f"val_{prefix}{name}" for name in MEASURES} <= fitted.history.keys()


def test_a_value_within_an_epoch_may_be_of_fewer_examples_and_the_last_one_is_of_all() -> None:
    """So that an epoch of many steps does not sort all scores in each."""
    kept: list[int] = []

    class Counted(AUC):
        def _measure(self, *columns: Any) -> float:
            kept.append(len(columns[0]))
            return super()._measure(*columns)

    measure = Counted()

    def update(labels: Any, scores: Any) -> Any:
        measure.update_state(labels, scores)
        return measure.result()

    step = tf.function(update)
    random = np.random.default_rng(0)
    labels, scores = random.integers(0, 2, (100, 10)).astype(np.float32), random.random((100, 10)).astype(np.float32)
    for batch in zip(labels, scores, strict=True):
        step(*map(tf.constant, batch))
    assert len(kept) < 25
    assert float(measure.result()) == pytest.approx(roc_auc_score(labels.ravel(), scores.ravel()))


MODEL = """
    import keras
    import numpy as np
    from trainer.layers import EmbeddingBag, ExampleKey
    from trainer.metrics import AUC, Calibration, GroupAUC, NormalizedEntropy

    def data(seed):
        random = np.random.default_rng(seed)
        ids, key = random.integers(-2, 30, size=(130, 4)), random.integers(0, 9, size=130) + 2**40
        return {"ids": ids, "key": key}, (ids[:, 0] + random.integers(0, 30, size=130)) // 30, random.random(130)

    def train_data(context):
        return data(0)

    def test_data(context):
        return data(1)

    def model():
        ids, key = keras.Input((4,), dtype="int64", name="ids"), keras.Input((), dtype="int64", name="key")
        scores = keras.layers.Dense(1, "sigmoid")(EmbeddingBag(30, 3)(ids))
        network = keras.Model({"ids": ids, "key": key}, ExampleKey()([scores, key]))
        metrics = [AUC(), GroupAUC(), NormalizedEntropy(), Calibration()]
        network.compile(keras.optimizers.SGD(1.0), "binary_crossentropy", weighted_metrics=metrics)
        return network
"""


@pytest.mark.slow
def test_the_trainer_measures_all_scores_in_evaluations_alone(tmp_path: Path) -> None:
    """With a table, whose rows an evaluation reads from the checkpoint, and twice, as the state must begin again."""
    found, settings = load(tmp_path, MODEL, table_rows=20)
    assert [name for name, each in found.parameters.items() if each.is_table] == ["embedding_bag/embeddings"]
    checkpoint, measured = train(found, settings, tmp_path)
    assert {name for each in measured for name in each} == {"normalized_entropy", "calibration"}
    with found.evaluator() as evaluator:
        evaluator._chunk = 37
        first, second = (evaluator.score(checkpoint).metrics for _ in range(2))
        evaluator.export(tmp_path / "export", {})
    assert first == second
    model: Any = found.model
    columns, test = kept(model.metrics), examples(found)
    loaded = keras.saving.load_model(tmp_path / "export" / "model.keras")
    given = test.inputs["key"], test.targets, loaded.predict(test.inputs, verbose=0)[:, 0], test.weights
    assert all(np.allclose(*each, atol=1e-6) for each in zip(columns, given, strict=True))
    assert first == pytest.approx(expected(*columns), rel=1e-5)


def test_the_trainer_says_which_layer_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"group_auc does not know the groups: .* let its last layer be"):
        load(tmp_path, MODEL.replace("ExampleKey()([scores, key])", "scores"))
