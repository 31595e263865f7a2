"""The names of files with columns. It needs neither pyarrow nor NumPy."""

import re

_PACKED = ("", ".gz", ".zip")
OTHER_FILES = tuple(f"{name}{packed}" for name in (".txt", ".data") for packed in _PACKED)
"""What names end in that may be of tables, and of anything else."""
FILES = (*(f"{name}{packed}" for name in (".csv", ".tsv") for packed in _PACKED), ".parquet", ".pq", *OTHER_FILES)
"""What they end in."""
SHOWN = ".csv, .tsv, .txt, .data, .parquet or .tfrecord"
"""The same, for messages."""
_RECORDS = re.compile(r"\.tfrec(ords?)?(\.gz)?(-\d+-of-\d+)?(\.gz)?$")


def are_records(name: str) -> bool:
    """Whether a file of this name has TFRecords."""
    return _RECORDS.search(name.lower()) is not None


def has_columns(name: str) -> bool:
    """Whether a file of this name has columns."""
    return name.lower().endswith(FILES) or are_records(name)
