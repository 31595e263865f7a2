"""Data of the user's own: `.npz` files in a folder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optree

from trainer.data.arrays import examples, hold_out
from trainer.data.examples import Examples, Signature
from trainer.data.npz_file import read_arrays
from trainer.errors import ConfigurationError

TARGET = "y"


def load(folder: Path) -> tuple[Examples, Examples]:
    """The `*.npz` files of a folder: inputs `x` (or several, by their names) and targets `y`.

    Files named `test…` are the held-out split. Without such files, the same tenth of the examples is held out in every
    run.

    Raises:
        ConfigurationError: there is no file to train on, or one is damaged, or its arrays differ from those of others.
    """
    paths = sorted(folder.glob("*.npz"))
    train = [path for path in paths if not path.name.startswith("test")]
    test = [path for path in paths if path.name.startswith("test")]
    if not train:
        raise ConfigurationError(
            f"data_dir={folder} contains no .npz file to train on; add files with arrays x (images) and y (labels)."
        )
    parts = [_read(path) for path in (*train, *test)]
    _check_alike(parts, (*train, *test))
    train_examples = _join(parts[: len(train)])
    if test:
        return train_examples, _join(parts[len(train) :])
    if len(train_examples) < 10:
        raise ConfigurationError(
            f"data_dir={folder} contains {len(train_examples)} examples, but at least 10 are needed to hold out a "
            "tenth."
        )
    return hold_out(train_examples, len(train_examples) // 10)


def _read(path: Path) -> Examples:
    found = read_arrays(path)
    inputs = {name: array for name, array in found.items() if name != TARGET}
    if TARGET not in found or not inputs:
        raise ConfigurationError(f"{path}: the array {'x' if not inputs else TARGET} is missing.")
    return examples(inputs, found[TARGET], path)


def _check_alike(parts: Sequence[Examples], paths: Sequence[Path]) -> None:
    """Check that the examples of all files have the same arrays, shapes and types."""
    first = parts[0].signature
    for part, path in zip(parts, paths, strict=True):
        own = part.signature
        if own.structure != first.structure:
            names, expected = (", ".join([*_names(each), TARGET]) for each in (own, first))
            raise ConfigurationError(f"{path}: it has the arrays {names}, but {paths[0].name} has {expected}.")
        for spec, other in zip(own.specs, first.specs, strict=True):
            if spec != other:
                raise ConfigurationError(
                    f"{path}: an example is {spec}, but in {paths[0].name} it is {other}; use one shape and type."
                )


def _names(signature: Signature) -> Sequence[str]:
    return ["x"] if signature.input_shape is not None else list(signature.inputs)


def _join(parts: Sequence[Examples]) -> Examples:
    return Examples(*optree.tree_map(lambda *arrays: np.concatenate(arrays), *[part.structure for part in parts]))
