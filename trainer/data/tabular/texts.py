"""The rows of a text file, as batches of texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from trainer.data.skipped import Skipped
from trainer.data.tabular.dialect import Dialect
from trainer.data.tabular.errors import damaged
from trainer.data.tabular.streams import open_text
from trainer.text import one_line


class LongRowError(Exception):
    """A row is longer than a block."""


class EncodingError(Exception):
    """The text is not UTF-8."""


def read_texts(path: Path, dialect: Dialect, columns: Sequence[str], skipped: Skipped) -> Iterator[pa.RecordBatch]:
    """These columns of a file as texts, in batches of some megabytes. Rows of another length are skipped.

    Raises:
        ConfigurationError: the file cannot be read.
        LongRowError: a row is longer than the dialect says.
        EncodingError: the text is not UTF-8, as the dialect says.
    """
    wrong: list[str] = []

    def skip(row: Any) -> str:
        found = f"{row.actual_columns} columns, but the header has {row.expected_columns}"
        wrong.append(f"{found}: {one_line(row.text[:200])}")  # pyarrow would hide an error here
        return "skip"

    def add_skipped() -> None:
        for reason in wrong:
            skipped.add(path.name, reason)
        wrong.clear()

    positions = [str(index) for index in range(len(dialect.names))]
    wanted = [positions[dialect.names.index(name)] for name in columns]
    try:
        with (
            open_text(path, dialect.encoding, dialect.lines, dialect.start) as stream,
            pyarrow.csv.open_csv(
                stream,
                pyarrow.csv.ReadOptions(column_names=positions, block_size=dialect.block_bytes),
                pyarrow.csv.ParseOptions(
                    delimiter=dialect.delimiter,
                    escape_char=dialect.escape or False,
                    newlines_in_values=True,
                    invalid_row_handler=skip,
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pa.string()), include_columns=wanted, strings_can_be_null=False
                ),
            ) as reader,
        ):
            for batch in reader:
                add_skipped()
                yield batch.rename_columns(list(columns))
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        if "straddling" in str(error):
            raise LongRowError from None
        if "UTF8" in str(error) or "CSV parse error: Expected" in str(error):  # a row of another length is no UTF-8
            raise EncodingError from None
        if "Empty CSV file" not in str(error):
            raise damaged(path, error) from None
    add_skipped()
