"""Texts as dates and times, in whichever order a file writes day and month."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.tabular.kinds import TIME

_CLOCK = r"(?:[T ] ?\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?: ?[AaPp][Mm])?(?: ?(?:Z|UTC|[+-]\d{2}:?(?:\d{2})?))?)?$"
YEAR_FIRST = r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})" + _CLOCK
DAY_OR_MONTH_FIRST = r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})" + _CLOCK
_HALF_OF_DAY, _ZONE = r"[AaPp][Mm]$", r":\d{2}(?:\.\d+)? ?(?:Z|UTC|[+-]\d{2}:?(?:\d{2})?)$"
_ISO = (
    (r"[T ] ?(\d{1,2}:)", r" \1"),
    (r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", r"\1-\2-\3"),
    (r"^(\d{4})-(\d)\b", r"\1-0\2"),
    (r"^(\d{4}-\d\d)-(\d)\b", r"\1-0\2"),
    (r" (\d):", r" 0\1:"),
    (r"(\.\d{6})\d+", r"\1"),
)
"""Patterns and what replaces them, to write a date with the year first as ISO does, with microseconds at most."""


def converter(order: str) -> Callable[[Any], Any]:
    r"""A function that makes timestamps of trimmed texts.

    Args:
        order: The pattern that puts the year first, such as `\3-\2-\1` if the day is first.

    It raises `pa.ArrowInvalid` if a text is no date, such as one of 30 February.
    """

    def convert(texts: Any) -> Any:
        try:
            return texts.cast(TIME)
        except pa.ArrowInvalid:
            return _parse(texts, order)

    return convert


def _parse(texts: Any, order: str) -> Any:
    texts = pc.replace_substring_regex(texts, r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", order)
    for pattern, replacement in _ISO:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    if pc.any(pc.match_substring_regex(texts, _HALF_OF_DAY)).as_py():
        texts = pc.replace_substring_regex(texts, r"^([\d-]{10})$", r"\1 12:00 AM")
        texts = pc.replace_substring_regex(texts, r"( \d\d:\d\d) ?([AaPp][Mm])$", r"\1:00 \2")
        return pc.strptime(texts, format="%Y-%m-%d %I:%M:%S %p", unit="us")
    zoned = pc.match_substring_regex(texts, _ZONE)
    if not pc.any(zoned).as_py():
        return texts.cast(TIME)
    texts = pc.replace_substring_regex(texts, r" ?UTC$", "Z")
    texts = pc.replace_substring_regex(texts, r" (Z|[+-][\d:]+)$", r"\1")
    texts = pc.replace_substring_regex(texts, r"^([\d-]{10})$", r"\1 00:00:00")
    texts = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return texts.cast(pa.timestamp("us", "UTC")).cast(TIME)
