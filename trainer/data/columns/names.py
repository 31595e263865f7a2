"""The names of files with columns. It needs neither pyarrow nor NumPy."""

import re

FILES = (
    *(f"{name}{packed}" for name in (".csv", ".tsv", ".txt", ".data") for packed in ("", ".gz", ".zip")),
    ".parquet",
    ".pq",
)
"""What they end in."""
_RECORDS = re.compile(r"\.tfrec(ords?)?(\.gz)?(-\d+-of-\d+)?(\.gz)?$")


def are_records(name: str) -> bool:
    """Whether a file of this name has TFRecords."""
    return _RECORDS.search(name) is not None


def has_columns(name: str) -> bool:
    """Whether a file of this name has columns."""
    return name.endswith(FILES) or are_records(name)
