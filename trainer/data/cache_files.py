"""The files of `tf.data.Dataset.cache(file)`: each replica needs its own, as it caches its own part of the examples."""

import contextlib
from collections.abc import Iterator
from typing import Any

from trainer.data.context import DataContext
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf

CLAIM = ".replica"
"""The suffix of a file beside a cache, which says whose it is."""


def claim(dataset: Any, data: DataContext, origin: str) -> None:
    """Claim the files in which a dataset caches its elements for this replica.

    Raises:
        ConfigurationError: another replica, or one of another number of replicas, has claimed one.
    """
    owner = f"{data.index} of {data.listed}"
    for name in _names(dataset):
        file = f"{name}{CLAIM}"
        try:
            _write(file, owner)
            with tf.io.gfile.GFile(file) as opened:
                found = opened.read()
        except tf.errors.OpError:
            continue  # the cache says it
        if found != owner:
            raise ConfigurationError(
                f"{origin}: cache({name!r}) is that of replica {found or 'another'}, but this is replica {owner}; let "
                "each have its own file, as by cache(f'PATH-{context.replica}-of-{context.replicas}')."
            )


def _write(file: str, text: str) -> None:
    """Write a file unless it exists. Of local ones, one replica alone creates it, also if several do so at once."""
    if "://" not in file:
        with contextlib.suppress(OSError), open(file, "x", encoding="utf-8") as created:
            created.write(text)
    elif not tf.io.gfile.exists(file):
        with tf.io.gfile.GFile(file, "w") as opened:
            opened.write(text)


def _names(dataset: Any) -> Iterator[str]:
    """The names of the files in which a dataset, or one of its inputs, caches its elements."""
    if type(dataset).__name__ == "CacheDataset" and (name := dataset._filename.numpy().decode()):
        yield name
    for each in dataset._inputs():
        yield from _names(each)
