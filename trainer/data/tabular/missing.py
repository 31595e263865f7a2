"""The texts that stand for a missing value."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

IN_TEXTS = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "\\N", "NaN", "nan", "null", "NULL", "?")
"""Those in a column of texts."""
IN_VALUES = (
    *(*IN_TEXTS, "na", "None", "none", "Null", "-nan", "-NaN", "#NA", "#DIV/0!", "#VALUE!", "-", "--", "."),
    *("0000-00-00", "0000-00-00 00:00:00"),
)
"""Those in a column of numbers or dates."""
_IN_TEXTS, _IN_VALUES = pa.array(IN_TEXTS), pa.array(IN_VALUES)


def is_missing(texts: Any, in_texts: bool = False) -> Any:
    """Whether each of these trimmed texts stands for a missing value; true for null."""
    return pc.or_(pc.is_in(texts, _IN_TEXTS if in_texts else _IN_VALUES), pc.is_null(texts))


def as_null(texts: Any, in_texts: bool = False) -> Any:
    """The trimmed texts, with null for a missing value."""
    absent = is_missing(texts, in_texts)
    return pc.if_else(absent, None, texts) if pc.any(absent).as_py() else texts
