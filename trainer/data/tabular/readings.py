"""The ways to read the texts of a column as numbers, dates, true or false.

Some texts can be read in several ways: 1.286 with a decimal point, or with a point between groups of three digits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.tabular import dates

HEAD = 64
"""So many texts are tried before all are."""
_MARKS = (
    (r"^([+-]?)[$€£¥] ?", r"\1"),
    (r"\s?[%€$£¥]$", ""),
    ("^−", "-"),
    ("([0-9])[\u00a0\u202f'’]([0-9]{3})", r"\1\2"),
)
"""Patterns of what may stand beside a number or within it, and what replaces them: signs, blanks without a break."""


@dataclass(frozen=True)
class Reading:
    """One way to read texts."""

    name: str
    pattern: str
    """What texts are like that can be read so."""
    convert: Callable[[Any], Any]
    """It makes values of trimmed texts, or null of null. It raises `pa.ArrowInvalid`."""
    point: str | None = None
    """The decimal mark of numbers."""
    plain: "Reading | None" = None
    """That of numbers without groups of three digits, if these have them. What it fits, this one fits too."""

    def fits(self, texts: Any) -> bool:
        """Whether all of these trimmed texts can be read so."""
        return (self is POINT or len(texts) <= HEAD or self._fits(texts[:HEAD])) and self._fits(texts)

    def _fits(self, texts: Any) -> bool:
        if self is not POINT and not pc.all(self.matches(texts)).as_py():
            return False
        try:
            self.convert(texts)
        except pa.ArrowInvalid:
            return False
        return True

    def matches(self, texts: Any) -> Any:
        """Which of these texts look as if they could be read so."""
        return pc.match_substring_regex(texts, self.pattern)

    @property
    def has_groups(self) -> bool:
        """Whether numbers have groups of three digits."""
        return self.plain is not None

    @property
    def is_number(self) -> bool:
        """Whether it makes numbers."""
        return self.point is not None

    @property
    def is_date(self) -> bool:
        """Whether it makes dates."""
        return self in DATES


def _numbers(point: str, groups: str | None) -> Callable[[Any], Any]:
    def convert(texts: Any) -> Any:
        if groups:
            texts = pc.replace_substring(texts, groups, "")
        if point != ".":
            texts = pc.replace_substring(texts, point, ".")
        return texts.cast(pa.float64())

    return convert


POINT = Reading("point", r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$", _numbers(".", None), ".")
COMMA = Reading("comma", r"^[+-]?(\d+(,\d+)?|,\d+)([eE][+-]?\d+)?$", _numbers(",", None), ",")
COMMA_GROUPS = Reading(
    "comma groups", r"^[+-]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?$", _numbers(".", ","), ".", plain=POINT
)
POINT_GROUPS = Reading(
    "point groups", r"^[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?$", _numbers(",", "."), ",", plain=COMMA
)
YEAR_FIRST = Reading("year first", dates.YEAR_FIRST, dates.converter(r"\3-\2-\1"))
DAY_FIRST = Reading("day first", dates.DAY_OR_MONTH_FIRST, dates.converter(r"\3-\2-\1"))
MONTH_FIRST = Reading("month first", dates.DAY_OR_MONTH_FIRST, dates.converter(r"\3-\1-\2"))
TRUE_FALSE = Reading("true or false", r"^(?i:true|false)$", lambda texts: texts.cast(pa.bool_()))
NUMBERS = (POINT, COMMA, COMMA_GROUPS, POINT_GROUPS)
DATES = (YEAR_FIRST, DAY_FIRST, MONTH_FIRST)
READINGS = (*NUMBERS, *DATES, TRUE_FALSE)


def without_marks(texts: Any) -> Any:
    """Texts without the signs of currencies and per cent, and without blanks that cannot break between digits."""
    for pattern, replacement in _MARKS:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts
