"""The arrays of one `.npz` file, for training and for `trainer data`. It needs NumPy only."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.errors import ConfigurationError
from trainer.text import one_line, truncate


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read all arrays of a file, by name.

    Raises:
        ConfigurationError: it is damaged, no .npz file, or too large for the memory.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}  # a member without an array is bytes
    except MemoryError:
        raise ConfigurationError(f"{path}: its arrays do not fit into memory, or the file is damaged.") from None
    except Exception as error:  # NumPy and zipfile raise errors of a dozen types for damaged files
        raise ConfigurationError(
            f"{path}: the file is damaged or not .npz ({truncate(one_line(str(error)), 200)})."
        ) from None
