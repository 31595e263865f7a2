"""Structures of arrays as users write them, in which a list may be one array or several."""

from typing import Any

import numpy as np

from trainer.errors import ConfigurationError


def join_lists(structure: Any, origin: str) -> Any:
    """The structure with an array in place of each list of numbers or texts.

    Raises:
        ConfigurationError: the lists in a list have different lengths.
    """
    if isinstance(structure, dict):
        return {key: join_lists(each, origin) for key, each in structure.items()}
    if not isinstance(structure, (list, tuple)):
        return structure
    first: Any = structure
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if not isinstance(first, (int, float, str, bytes, np.generic)):
        return tuple(join_lists(each, origin) for each in structure)
    try:
        return np.asarray(structure)
    except ValueError:
        raise ConfigurationError(
            f"{origin}: lists of one length were expected; pad them, such as by keras.utils.pad_sequences, or give "
            "a tf.data.Dataset of arrays, whose batches are padded."
        ) from None
