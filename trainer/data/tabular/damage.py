"""The errors of files that cannot be read."""

from pathlib import Path

from trainer.errors import ConfigurationError
from trainer.text import truncate


def not_utf8(path: Path) -> ConfigurationError:
    """The error of a text file that is not UTF-8."""
    return ConfigurationError(
        f"{path}: the text is not UTF-8; convert it, such as by iconv -f latin1 -t utf-8 {path.name} > utf8.csv."
    )


def damaged(path: Path, error: Exception) -> ConfigurationError:
    """The error of a file that pyarrow or the system refuses."""
    return ConfigurationError(f"{path}: the file cannot be read ({truncate(' '.join(str(error).split()), 200)}).")
