"""Texts as typed values: the type of each column, which all of its values have."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.skipped import Skipped
from trainer.data.tabular.texts import read_texts

_CSV_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.string())
"""The types of a column of a CSV file: the first one that all values have."""


def csv_types(delimiters: Mapping[Path, str], names: Sequence[str], decimal_point: str) -> dict[str, pa.DataType]:
    """The types of the columns, from a pass over all files."""
    found = {name: list(_CSV_TYPES) for name in names}
    for path, delimiter in delimiters.items():
        for batch in read_texts(path, delimiter, [*found], Skipped(0, is_quiet=True)):
            for name, types in found.items():
                types[:] = [each for each in types if _fits(batch[name], each, decimal_point)]
    return {name: types[0] for name, types in found.items()}


def _fits(texts: Any, kind: pa.DataType, decimal_point: str) -> bool:
    try:
        as_values(texts, kind, decimal_point)
    except pa.ArrowInvalid:
        return False
    return True


def as_values(texts: Any, kind: pa.DataType, decimal_point: str) -> Any:
    """A column of a CSV file as values of this type."""
    texts = pc.utf8_trim_whitespace(texts)
    if pa.types.is_floating(kind) and decimal_point != ".":
        texts = pc.replace_substring(texts, decimal_point, ".")
    return texts.cast(kind)
