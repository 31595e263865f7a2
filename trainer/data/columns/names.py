"""The names of files with columns. It needs neither pyarrow nor NumPy."""

FILES = (
    *(f"{name}{packed}" for name in (".csv", ".tsv", ".txt", ".data") for packed in ("", ".gz", ".zip")),
    ".parquet",
    ".pq",
)
"""What they end in."""
