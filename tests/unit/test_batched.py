"""What `fit` takes as a batch is a batch, whatever makes the dataset; other elements are examples."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from trainer.data import pipeline
from trainer.data.examples import Array
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode

Shapes = Mapping[str, Sequence[int | None]]
X = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)
Y = X[:, :1] + 1
SPEC = tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1])
LONG = {"words": (None, None)}
"""The model takes sequences of any length."""


def generated(size: int | None = None) -> Any:
    """Batches of 30, 30, 30 and 10."""
    starts = range(0, 90 if size else 100, 30)
    spec = (tf.TensorSpec([size, 6]), tf.TensorSpec([size, 1])) if size else SPEC
    return tf.data.Dataset.from_generator(
        lambda: ((X[n : n + 30], Y[n : n + 30]) for n in starts), output_signature=spec
    )


def slices() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def columns() -> Any:
    given = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}
    return tf.data.Dataset.from_generator(
        lambda: iter([(given, Y[:, 0])]),
        output_signature=({name: tf.TensorSpec([None]) for name in given}, tf.TensorSpec([None])),
    )


def from_arrays(batches: Any) -> Any:
    spec = tf.TensorSpec([None, None], tf.int32)
    return tf.data.Dataset.from_generator(lambda: map(tuple, batches), output_signature=(spec, spec))


def sentences() -> Any:
    """Sentences of 1 to 7 words, each word with a tag."""
    spec = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int32)
    words = [np.arange(1, 2 + n % 7) for n in range(40)]
    return tf.data.Dataset.from_generator(lambda: ((each, each % 3) for each in words), output_signature=spec)


BATCHES = {
    "from_generator": generated,
    "from_generator of full batches": lambda: generated(30),
    "mapped": lambda: generated().map(lambda x, y: (2 * x, y)).prefetch(2),
    "zip": lambda: tf.data.Dataset.zip(
        (tf.data.Dataset.from_tensor_slices(X).batch(30), tf.data.Dataset.from_tensor_slices(Y).batch(30))
    ),
    "concatenate": lambda: slices().batch(30).concatenate(slices().batch(30)),
    "interleave": lambda: tf.data.Dataset.range(3).interleave(lambda n: slices().batch(30)),
    "parallel interleave": lambda: tf.data.Dataset.range(3).interleave(
        lambda n: slices().batch(30).map(lambda x, y: (x, y)), num_parallel_calls=2
    ),
    "sample_from_datasets": lambda: tf.data.Dataset.sample_from_datasets(
        [slices().batch(30), slices().batch(30)], seed=1
    ),
    "choose_from_datasets": lambda: tf.data.Dataset.choose_from_datasets(
        [slices().batch(30), generated()], tf.data.Dataset.range(2).repeat(3)
    ),
    "a map that cuts batches": lambda: tf.data.Dataset.range(0, 100, 30).map(
        lambda n: (tf.constant(X)[n : n + 30], tf.constant(Y)[n : n + 30])
    ),
    "rebatch": lambda: slices().batch(10).rebatch(30),
    "group_by_window": lambda: slices().group_by_window(
        lambda x, y: tf.cast(x[0] > 0, tf.int64), lambda key, part: part.batch(30), window_size=30
    ),
    "repeat after batch": lambda: slices().batch(30).repeat(2),
    "filter, enumerate and cache": lambda: (
        slices().batch(30).filter(lambda x, y: tf.reduce_sum(x) < 1e6).enumerate().map(lambda n, each: each).cache()
    ),
    "from_tensors": lambda: tf.data.Dataset.from_tensors((X[:30], Y[:30])),
}


def of(dataset: Any, accepted: Shapes | None = None, **arguments: Any) -> Stream:
    with eager_mode():
        return pipeline.stream(dataset, None, "train_data()", lambda: accepted, **arguments)


def endless(stream: Stream, size: int, is_full: bool = False) -> Iterator[Sequence[Array]]:
    assert stream.endless
    return stream.endless(size, is_full)


def elements(dataset: Any) -> list[list[Array]]:
    """The batches that `fit` sees in an epoch."""
    with eager_mode():
        return [[each.numpy() for each in tf.nest.flatten(element)] for element in dataset]


def are_equal(found: Any, wanted: Any) -> bool:
    pairs = [(a, b) for ours, theirs in zip(found, wanted, strict=True) for a, b in zip(ours, theirs, strict=True)]
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_the_batches_of_an_epoch_are_those_of_fit(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with eager_mode():
        dataset = make()
    wanted = elements(dataset)
    found = of(dataset)
    assert found.batch_size == 30
    assert [spec.shape for spec in found.signature.specs] == [(6,), (1,)]
    assert are_equal(list(itertools.islice(endless(found, 30), 2 * len(wanted))), wanted * 2)
    assert are_equal(
        [np.concatenate(each) for each in zip(*found.once(7), strict=True)],
        [np.concatenate(each) for each in zip(*wanted, strict=True)],
    )
    assert "train_data(): its elements are batches of 30 examples" in caplog.text


EXAMPLES = {
    "slices": (slices, None),
    "unbatch": (lambda: generated().unbatch(), None),
    "targets of another length": (lambda: slices().map(lambda x, y: (x, y[0])), None),
    "images and masks": (lambda: slices().map(lambda x, y: (tf.reshape(x, [2, 3, 1]), tf.zeros([2, 3, 1]))), None),
    "an autoencoder of numbered examples": (
        lambda: tf.data.Dataset.range(9).map(lambda n: (tf.fill([4], n), tf.fill([4], n))),
        None,
    ),
    "words of examples": (sentences, LONG),
    "windows": (
        lambda: slices().window(5).flat_map(lambda x, y: tf.data.Dataset.zip((x.batch(5), y.batch(5)))),
        {"x": (None, None, 6)},
    ),
    "a column of a generator": (
        lambda: tf.data.Dataset.from_generator(
            lambda: ((X[n], Y[n]) for n in range(9)), output_signature=(tf.TensorSpec([6]), tf.TensorSpec([1]))
        ),
        {"x": (None, 6)},
    ),
    "records": (
        lambda: (
            tf.data.Dataset.from_tensor_slices(["a", "b"])
            .interleave(lambda name: tf.data.Dataset.from_tensor_slices((X, X)))
            .map(lambda x, y: (x, y))
        ),
        None,
    ),
}


@pytest.mark.parametrize(("make", "accepted"), EXAMPLES.values(), ids=EXAMPLES)
def test_examples_are_made_into_batches(make: Any, accepted: Shapes | None) -> None:
    with eager_mode():
        dataset = make()
    found = of(dataset, accepted)
    assert found.batch_size is None
    assert [spec.shape for spec in found.signature.specs] == [
        tuple(each.shape) for each in tf.nest.flatten(dataset.element_spec)
    ]


@pytest.mark.parametrize(
    ("make", "accepted", "is_batched"),
    [
        (generated, {"x": (None, 6)}, True),
        (generated, {"x": (None, None, 6)}, False),
        (lambda: generated(30), {"x": (None, 30, 6)}, False),
        (lambda: slices().map(lambda x, y: (x, x)), {"x": (None, 6)}, False),
        (sentences, {"x": (None,)}, True),
        (columns, {"a": (None, 1), "b": (None, 1)}, True),
        (columns, {"b": (None, 1)}, True),
        (lambda: columns().unbatch(), {"a": (None, 1), "b": (None, 1)}, False),
    ],
)
def test_the_shapes_that_the_model_accepts_decide(make: Any, accepted: Shapes, is_batched: bool) -> None:
    with eager_mode():
        made = make()
    assert bool(of(made, accepted).batch_size) == is_batched


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.data.Dataset.range(100).batch(11, drop_remainder=True).map(lambda x: (x[:-1], x[1:])),
        lambda: tf.data.Dataset.range(4).map(lambda n: (tf.zeros([32, 6]), tf.zeros([32, 1]))),
    ],
)
def test_what_may_be_either_is_refused(make: Any) -> None:
    with eager_mode():
        made = make()
    with pytest.raises(ConfigurationError) as refused:
        of(made)
    assert str(refused.value) == (
        "train_data(): an element may be one example or a batch; end the dataset with batch(SIZE) if it is an example, "
        "and with unbatch() and batch(SIZE) if it is a batch, or begin the model with keras.Input."
    )
    with eager_mode():
        assert of(made.unbatch().batch(4)).batch_size == 4
        assert of(made.batch(4)).batch_size == 4


PADDED = {
    "padded_batch": lambda: sentences().padded_batch(8, padding_values=(-7, -1)),
    "mapped": lambda: sentences().padded_batch(8, padding_values=(-7, -1)).map(lambda x, y: (x, y + 5)).shuffle(1),
    "buckets": lambda: sentences().bucket_by_sequence_length(
        lambda x, y: tf.shape(x)[0], [4], [8, 8], padding_values=(-7, -1)
    ),
    "dictionaries": lambda: (
        sentences().map(lambda x, y: ({"words": x}, y)).padded_batch(8, padding_values=({"words": -7}, -1))
    ),
    "in a generator": lambda: from_arrays(elements(sentences().padded_batch(8, padding_values=(-7, -1)))),
}


@pytest.mark.parametrize("make", PADDED.values(), ids=PADDED)
def test_batches_keep_their_padding(make: Any) -> None:
    with eager_mode():
        dataset = make()
    wanted, found = elements(dataset), of(dataset)
    assert found.batch_size == 8
    assert are_equal(list(found.once(8)), wanted)
    assert are_equal(list(itertools.islice(endless(found, 8), len(wanted))), wanted)
    halves = list(found.once(4))
    assert are_equal(halves[:2], [[each[:4] for each in wanted[0]], [each[4:] for each in wanted[0]]])
    with pytest.raises(ConfigurationError) as refused:
        endless(found, 16)
    assert str(refused.value) == (
        "train_data(): its batches of 8 have examples of different sizes, or padding of their own, so that no batches "
        "of another size are made of them; set batch_size=8, or end the dataset with batches of the size that you want."
    )


def test_ragged_batches_are_padded_by_themselves(caplog: pytest.LogCaptureFixture) -> None:
    with eager_mode():
        dataset = sentences().ragged_batch(4)
    first, second = itertools.islice(endless(of(dataset), 4), 2)
    assert first[0].tolist() == [[1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0], [1, 2, 3, 4]]
    assert second[0].shape == (4, 7)
    assert "targets are padded with zeros too, which count in the loss unless the model masks them" in caplog.text


def test_batches_of_another_size_are_made_of_the_same_examples() -> None:
    with eager_mode():
        dataset = generated()
    found = of(dataset)
    batches = list(itertools.islice(endless(found, 40), 3))
    assert [len(each[0]) for each in batches] == [40, 40, 20]
    assert np.array_equal(np.concatenate([each[0] for each in batches]), X)
    assert [len(each[0]) for each in itertools.islice(endless(found, 40, True), 4)] == [40] * 4


def test_the_first_batches_may_be_all_that_is_read() -> None:
    with eager_mode():
        endless = [generated().repeat(), slices().repeat()]
    assert sum(len(each[0]) for each in of(endless[0], most=(2, 60)).once(50)) == 60
    assert sum(len(each[0]) for each in of(endless[1], most=(2, 60)).once(50)) == 60
