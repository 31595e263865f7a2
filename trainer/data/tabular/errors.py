"""The error of a file that pyarrow or the system refuses."""

from pathlib import Path

from trainer.errors import ConfigurationError
from trainer.text import truncate


def damaged(path: Path, error: Exception) -> ConfigurationError:
    """The error of a file that cannot be read, with what pyarrow or the system says."""
    if isinstance(error, FileNotFoundError):
        return ConfigurationError(f"{path}: the file has disappeared; put it back, and start again.")
    return ConfigurationError(f"{path}: the file cannot be read ({truncate(' '.join(str(error).split()), 200)}).")
