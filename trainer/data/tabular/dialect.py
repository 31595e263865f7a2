"""How a text file is written: its delimiter and its header."""

import csv
import gzip
import io
import zlib
from pathlib import Path

from trainer.data.tabular.damage import damaged, not_utf8
from trainer.errors import ConfigurationError

DELIMITERS = (",", ";", "\t", "|")
"""Those that are found without being named."""


def read_header(path: Path, delimiter: str | None) -> tuple[str, list[str]]:
    """The delimiter of a CSV file, and the names of its columns."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            rows = {}
            for each in [delimiter] if delimiter else DELIMITERS:
                text.seek(0)
                rows[each] = next(csv.reader(text, delimiter=each), [])
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    except (csv.Error, OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from None
    found = max(rows, key=lambda each: len(rows[each]))
    names = rows[found]
    if not names:
        raise ConfigurationError(f"{path}: the file is empty; a line with the names of the columns was expected.")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice:
        raise ConfigurationError(f"{path}: {names.count(twice)} columns are named {twice}; give each its own name.")
    return found, names
