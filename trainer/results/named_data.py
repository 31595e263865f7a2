"""The data that a user names with options, instead of that of a run."""

import argparse
from collections.abc import Mapping

from trainer.config import Settings, load_values, with_given
from trainer.data.datasets import Dataset
from trainer.errors import ConfigurationError

NAMES = ("dataset", "data_dir", "data_version")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name data to a command."""
    parser.add_argument("--dataset", "--data", metavar="NAME", help="digits, mnist, npz or lance")
    parser.add_argument("--data_dir", metavar="PATH", help="folder of the data, or URI of a Lance dataset")
    parser.add_argument("--data_version", metavar="VERSION", help="version or tag of a Lance dataset")


def read_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings that the options name."""
    return {name: getattr(arguments, name) for name in NAMES if getattr(arguments, name) is not None}


def load(named: Mapping[str, str], of_run: Settings | None) -> Dataset | None:
    """The data that the user names, otherwise that of a run; None if neither is known.

    Args:
        named: The result of `read_options`. Without a data set, it changes settings of the run.
        of_run: The settings of the run, if they are known.

    Raises:
        ConfigurationError: it cannot be loaded.
        StoreError: an object store does not respond.
    """
    if "dataset" in named:
        settings = load_values(named)
    elif of_run is None:
        return None
    else:
        given = load_values(named)
        settings = with_given(of_run, **{name: getattr(given, name) for name in named})
    from trainer.problem import data_sets  # it imports TensorFlow

    try:
        return data_sets.load_there(settings)
    except ConfigurationError as error:
        if named:
            raise
        raise ConfigurationError(
            f"{str(error).rstrip('.')}; if the data of the run is elsewhere, name it with --dataset and --data_dir."
        ) from None
