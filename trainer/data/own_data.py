"""The data of a model file: its functions `train_data` and `test_data`."""

import functools
import hashlib
import inspect
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from types import ModuleType
from typing import Any

import numpy as np
import optree

from trainer.data import functions, generators, pipeline
from trainer.data.arrays import hold_out
from trainer.data.batched import Accepted
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.data.examples import Array, Examples
from trainer.data.fit_arguments import FitArguments
from trainer.data.stream import Stream
from trainer.data.structures import join_lists
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode
from trainer.text import as_text, truncate

TRAIN, TEST, FILES = "train_data", "test_data", "train_files"


logger = logging.getLogger(__name__)

MOST_DENSE_BYTES = 4 << 30
"""Largest size of a sparse matrix as an array."""


def load(
    module: ModuleType, name: str, data: DataContext, fit: FitArguments, accepted: Accepted | None = None
) -> Dataset | None:
    """The data of a model file, also of its `fit_arguments`; None if it has no function `train_data`.

    Args:
        module: That of the file.
        name: The file's name, for errors.
        data: The replica that trains on a part of it.
        fit: The file's `fit_arguments`.
        accepted: Returns the shapes of batches that the model accepts, if it says them.

    Raises:
        ConfigurationError: a function fails, or returns something else than examples.
    """
    if not callable(getattr(module, TRAIN, None)):
        return None
    context = replace(data)  # of the file's functions, which notes what they ask
    steps = fit.validation_steps
    most = (steps, steps * (fit.batch_size or data.batch_size)) if steps else None

    def call(function: str, *more: Any) -> Any:
        return functions.call(module, function, name, context, *more)

    def read(found: Any, again: Callable[[], Any], what: str, part: DataContext | None = None) -> Examples | Stream:
        origin = f"model={name}: {what}"
        if make := _generator(found, again):
            found = generators.dataset(make, origin, name)
            if part and part.listed > 1 and context.has_chosen:
                logger.info(f"{origin}: this replica reads all that it gives, because it asks for context.replica")
                found, part = pipeline.of_unknown_size(found), part.alone
        return _read(found, origin, part, accepted, None if part else most)

    digest, count = None, None
    if callable(getattr(module, FILES, None)):
        files = _files(call, f"model={name}")
        train: Examples | Stream = _of_files(call, files, data, f"model={name}", accepted)
        digest, count = _digest(files), len(files)
    else:
        train = read(call(TRAIN), lambda: call(TRAIN), f"{TRAIN}()", data)
    if callable(getattr(module, TEST, None)):
        test = read(call(TEST), lambda: call(TEST), f"{TEST}()")
    elif fit.validation_data is not None:
        what = "validation_data"
        if inspect.isgenerator(fit.validation_data) and not steps:
            raise ConfigurationError(
                f"model={name}: {what} is a generator, which may have no end; let fit_arguments() give "
                "validation_steps too."
            )
        test = read(fit.validation_data, _kept(fit.validation_data), what)
    elif isinstance(train, Examples) and len(train) == 1:
        test = train  # it can only be evaluated on what it has seen
    elif isinstance(train, Examples):
        share, examples = fit.validation_split or 0.1, len(train)
        # the last ones are those of fit
        number = int(examples * share) if fit.shuffle else examples - int(examples * (1 - share))
        train, test = hold_out(train, min(max(1, number), examples - 1), fit.shuffle)
    else:
        raise ConfigurationError(
            f"model={name}: it has no function test_data(context), but train_data() gives a tf.data.Dataset or a "
            "generator; let test_data() give the examples to evaluate on."
        )
    train, test, classes = _number_labels(train, test)
    train, test = _widen(train, test), _widen(test, train)
    if train.signature.structure != test.signature.structure or train.signature.specs != test.signature.specs:
        ours, theirs = (", ".join(map(str, each.signature.specs)) for each in (train, test))
        raise ConfigurationError(
            f"model={name}: an example of train_data() is {ours}, but one of test_data() is {theirs}; let "
            "them be alike."
        )
    return Dataset(TRAIN, train, test, classes=classes, version_digest=digest, files=count)


def _files(call: Callable[..., Any], origin: str) -> list[str]:
    """The names that `train_files` returns."""
    found = call(FILES)
    if (
        not isinstance(found, (list, tuple))
        or not found
        or not all(isinstance(each, (str, PurePath)) for each in found)
    ):
        raise ConfigurationError(
            f"{origin}: {FILES}() returned {_shorten(found)}; return a list of the names of one or more files."
        )
    names = [str(each) for each in found]
    if len({*names}) < len(names):
        twice = next(each for each in names if names.count(each) > 1)
        raise ConfigurationError(f"{origin}: {FILES}() returned {twice} twice; return each name once.")
    return names


def _digest(files: list[str]) -> str:
    """What identifies a list of files, wherever they are: their names, from the first letter in which they differ."""
    same = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*files, strict=False))
    start = len([*same])
    return hashlib.sha256(repr([each[start:] for each in files]).encode()).hexdigest()


def _of_files(
    call: Callable[..., Any], names: list[str], data: DataContext, origin: str, accepted: Accepted | None
) -> Stream:
    """The examples in files, of which `train_data` makes a dataset."""
    dataset = call(TRAIN, names)
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigurationError(
            f"{origin}: {TRAIN}(context, files) returned {_shorten(dataset)}; with {FILES}(), return a tf.data.Dataset "
            "of the examples in these files."
        )
    alone = {each: functools.partial(call, TRAIN, [each]) for each in names}
    return pipeline.stream(dataset, data, f"{origin}: {TRAIN}()", accepted, files=alone)


def _kept(generator: Any) -> Callable[[], Iterator[Any]]:
    """What returns the elements of a generator from the first on, each time: they are kept."""
    kept: list[Any] = []

    def again() -> Iterator[Any]:
        for index in itertools.count():
            if index == len(kept):
                try:
                    kept.append(next(generator))
                except StopIteration:
                    return
            yield kept[index]

    return again


def _generator(found: Any, call: Callable[[], Any]) -> Callable[[], Any] | None:
    """What returns the generator, or the `PyDataset`, that the call has found; None if it has found something else."""
    if inspect.isgenerator(found):
        return call  # a generator gives its examples once
    if generators.is_py_dataset(found):
        return lambda: found
    return found if inspect.isfunction(found) else None


def _read(
    found: Any,
    origin: str,
    data: DataContext | None,
    accepted: Accepted | None,
    most: tuple[int, int] | None,
) -> Examples | Stream:
    """The examples in a dataset, of which a replica reads a part, or in arrays; at most so many batches or examples."""
    if isinstance(found, tf.data.Dataset):
        return pipeline.stream(found, data, origin, accepted, most)
    if isinstance(found, tuple) and len(found) not in (1, 2, 3):
        raise ConfigurationError(
            f"{origin} returned a tuple of {len(found)}; return a tf.data.Dataset, or arrays (inputs, targets)."
        )
    given: Any = pipeline.complete(found[0] if isinstance(found, tuple) and len(found) == 1 else found)
    given = tuple(None if each is None else join_lists(each, origin) for each in given)
    inputs: Any = optree.tree_map(lambda each: _array(each, origin, are_ids=True), given[0])
    others: Any = optree.tree_map(lambda each: _array(each, origin), given[1:])
    structure: Any = (inputs, *others)
    arrays: list[Array] = optree.tree_leaves(structure)
    if len({len(array) if array.ndim else None for array in arrays}) != 1 or not arrays[0].ndim or not len(arrays[0]):
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        raise ConfigurationError(f"{origin}: arrays with the same number of examples were expected, not {shapes}.")
    if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
        logger.warning(
            f"{origin}: some values are not finite in float32; unless the model or its loss masks them, the loss is "
            "not finite either"
        )
    targets = structure[1]
    texts = [array for array in optree.tree_leaves(structure[1:]) if array.dtype == object]
    if texts and (texts[0] is not targets or targets.size != len(targets)):
        raise ConfigurationError(
            f"{origin}: numbers were expected, not {_shorten(texts[0].flat[0])}; number labels by "
            "numpy.unique(labels, return_inverse=True)[1]."
        )
    examples = Examples(*structure)
    return examples.take(slice(most[1])) if most else examples


def _array(found: Any, origin: str, are_ids: bool = False) -> Array:
    """An array of numbers, or of texts, which are objects. Integers `are_ids` may have 64 bits."""
    if isinstance(found, tf.RaggedTensor):
        raise ConfigurationError(
            f"{origin}: a ragged tensor is no array; pad it by to_tensor(), and let a layer such as Masking leave out "
            "the padding."
        )
    array = np.asarray(_dense(found, origin))
    if array.dtype.kind in "OUS":
        texts = [isinstance(each, (str, bytes)) for each in array.flat]
        if all(texts):
            return array.astype(object)
        if any(texts):
            wrong = array.flat[texts.index(False)]
            raise ConfigurationError(
                f"{origin}: numbers or texts were expected, not {_shorten(array.flat[texts.index(True)])} and "
                f"{_shorten(wrong)} in one array; give a dictionary with an array for each column."
            )
        array = np.asarray(array.tolist())  # numbers as objects, as pandas has them
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(f"{origin}: numbers or texts were expected, not {array.dtype} {list(array.shape)}.")
    try:
        return pipeline.convert(array)
    except ValueError as error:
        if are_ids:
            return array
        raise ConfigurationError(f"{origin}: {error}.") from None


def _dense(found: Any, origin: str) -> Any:
    """A sparse matrix of SciPy's, or a sparse tensor, as an array; anything else as it is."""
    is_tensor = isinstance(found, tf.SparseTensor)
    if not is_tensor and not (hasattr(found, "toarray") and hasattr(found, "nnz")):
        return found
    size = math.prod(map(int, found.shape)) * 4
    if size > MOST_DENSE_BYTES:
        raise ConfigurationError(
            f"{origin}: a sparse matrix {list(map(int, found.shape))} would have {size / 2**30:.1f} GiB as an array; "
            "return a tf.data.Dataset.from_tensor_slices((tf.SparseTensor(…), targets)), whose batches alone become "
            "arrays."
        )
    if is_tensor:
        with eager_mode():
            return tf.sparse.to_dense(tf.sparse.reorder(found)).numpy()
    return (found.astype(np.float32) if found.dtype == np.float64 else found).toarray()


def _widen(split: Examples | Stream, other: Examples | Stream) -> Examples | Stream:
    """Inputs of 32 bits become those of 64 where the other split has these."""
    if not isinstance(split, Examples) or split.signature.structure != other.signature.structure:
        return split
    wanted = [each.dtype for each in other.signature.specs]
    widened = [
        array.astype(dtype) if (str(array.dtype), dtype) == ("int32", "int64") else array
        for array, dtype in zip(split.arrays, wanted, strict=True)
    ]
    return Examples(*optree.tree_unflatten(split.signature.structure, widened))


def _number_labels(
    train: Examples | Stream, test: Examples | Stream
) -> tuple[Examples | Stream, Examples | Stream, Sequence[str] | None]:
    """Number the labels that are texts, in the order of the texts, which are the names of the classes.

    Returns:
        The splits, and the names of the classes, if they are known.
    """
    if not isinstance(train, Examples) or not isinstance(test, Examples):
        return train, test, train.classes if isinstance(train, Stream) else None
    targets = [each.targets for each in (train, test)]
    if not all(isinstance(each, np.ndarray) and each.dtype == object for each in targets):
        return train, test, None
    texts = [[as_text(text) for text in each.flat] for each in targets]
    classes = sorted({*texts[0], *texts[1]})
    labels = [np.searchsorted(classes, each).astype(np.int32) for each in texts]
    return replace(train, targets=labels[0]), replace(test, targets=labels[1]), classes


def _shorten(value: Any) -> str:
    return truncate(repr(str(value)), 50)
