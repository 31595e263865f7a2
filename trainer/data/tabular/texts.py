"""The rows of a text file, as batches of texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from trainer.data.skipped import Skipped
from trainer.data.tabular.damage import damaged, not_utf8

BATCH_ROWS = 1000


def read_texts(path: Path, delimiter: str, columns: Sequence[str], skipped: Skipped) -> Iterator[pa.RecordBatch]:
    """These columns of a file as texts, in batches. Rows of another length than the header are skipped."""

    def skip(row: Any) -> str:
        skipped.add(path.name, f"{row.actual_columns} columns, but the header has {row.expected_columns}: {row.text}")
        return "skip"

    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip)
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=True
    )
    try:
        with pyarrow.csv.open_csv(path, parse_options=parse, convert_options=convert) as reader:
            for batch in reader:
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    except (pa.ArrowException, OSError) as error:
        raise not_utf8(path) if "UTF8" in str(error) else damaged(path, error) from None
