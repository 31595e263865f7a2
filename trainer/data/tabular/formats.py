"""How the texts of each column become values. Where two readings are possible, the other values of the files decide.

A note says what was decided.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.tabular.kinds import TIME, is_text
from trainer.data.tabular.missing import as_null
from trainer.data.tabular.profile import Profile
from trainer.data.tabular.readings import (
    COMMA,
    COMMA_GROUPS,
    DAY_FIRST,
    MONTH_FIRST,
    POINT,
    POINT_GROUPS,
    READINGS,
    YEAR_FIRST,
    Reading,
    without_marks,
)
from trainer.text import one_line

READINGS_BY_NAME = {each.name: each for each in READINGS}
_SHOWN = 3
"""So many spellings, or columns, are named."""


@dataclass(frozen=True)
class Format:
    """How the texts of a column become values."""

    kind: pa.DataType
    reading: Reading | None = None
    has_marks: bool = False
    """Whether numbers have signs such as $ or %, which are left out."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """By a text, that which stands in its place."""

    def convert(self, texts: Any) -> Any:
        """The values of an array of strings, with null for a missing one.

        Raises:
            pa.ArrowInvalid: a text is no such value.
        """
        texts = pc.utf8_trim_whitespace(texts)
        if pa.types.is_null(self.kind):
            return pa.nulls(len(texts))
        if is_text(self.kind):
            return _respelled(as_null(texts, in_texts=True), self.spellings)
        texts = as_null(texts)
        if self.reading:
            texts = self.reading.convert(without_marks(texts) if self.has_marks else texts)
        return texts.cast(self.kind)


TEXT = Format(pa.string())


def find_formats(
    profiles: Mapping[str, Profile], has_semicolons: bool, readings: Mapping[str, str]
) -> tuple[dict[str, Format], list[str]]:
    """The formats of columns, and notes.

    Args:
        profiles: By the names of the columns.
        has_semicolons: Whether a file has semicolons between its columns, as those with a decimal comma have.
        readings: By column, the name of the reading in earlier files, which decides where no value of these does.
    """
    before = {name: READINGS_BY_NAME[each] for name, each in readings.items()}
    comma, point = _decided(profiles, (COMMA, POINT_GROUPS)), _decided(profiles, (POINT, COMMA_GROUPS))
    day, month = _decided(profiles, (DAY_FIRST,)), _decided(profiles, (MONTH_FIRST,))
    formats: dict[str, Format] = {}
    notes: list[_Note] = []
    for name, profile in profiles.items():
        if not profile.readings:
            formats[name] = Format(pa.string(), spellings=profile.spellings.most_frequent())
            found = [_Note(name, "", note) for note in _notes_on_texts(profile, formats[name])]
        elif not profile.values:
            formats[name], found = Format(pa.null()), []
        elif profile.readings[0].is_number:
            formats[name], found = _numbers(profile, comma, point, has_semicolons, before.get(name))
        elif profile.readings[0].is_date:
            is_european = has_semicolons or (bool(comma) and not point)
            formats[name], found = _dates(profile, day, month, is_european, before.get(name))
        else:
            formats[name], found = Format(pa.bool_(), profile.readings[0]), []
        notes += [replace(note, column=name) for note in found]
    return formats, _sentences(notes)


@dataclass(frozen=True)
class _Note:
    """What was decided about a column."""

    column: str
    why: str
    """Columns with one reason, which is not empty, have one sentence."""
    what: str


def _sentences(notes: Iterable[_Note]) -> list[str]:
    groups: dict[tuple[str, str], list[_Note]] = {}
    for note in notes:
        groups.setdefault((note.why, "" if note.why else f"{note.column}: {note.what}"), []).append(note)
    found = []
    for group in groups.values():
        names = ", ".join(one_line(note.column) for note in group[:_SHOWN])
        others = f" and {len(group) - _SHOWN} others" if len(group) > _SHOWN else ""
        found.append(f"{names}{others}: {group[0].what}{group[0].why}")
    return found


def _decided(profiles: Mapping[str, Profile], readings: Collection[Reading]) -> str | None:
    """The first column whose values can only be read in one of these ways."""
    found = (name for name, each in profiles.items() if each.readings and set(each.readings) <= set(readings))
    return next(found, None)


def _numbers(
    profile: Profile, comma: str | None, point: str | None, has_semicolons: bool, before: Reading | None
) -> tuple[Format, list[_Note]]:
    """The format of a column of numbers.

    Args:
        profile: Of the column.
        comma: A column whose numbers have a decimal comma, if there is one.
        point: One whose numbers have a decimal point.
        has_semicolons: Whether a file has semicolons between its columns.
        before: The reading in earlier files.
    """
    if profile.is_whole:
        return Format(pa.int64()), []
    found = profile.readings
    pairs = [
        (decimal, groups, mark)
        for decimal, groups, mark in ((POINT, POINT_GROUPS, "."), (COMMA, COMMA_GROUPS, ","))
        if decimal in found and groups in found and mark in profile.separators
    ]
    if pairs:
        (decimal, groups, mark), has_comma = pairs[0], bool(comma)
        if bool(comma) != bool(point):
            reason = f"as the numbers of {comma or point} have a decimal {'comma' if comma else 'point'}"
        elif before and before.point:
            has_comma, reason = before.point == ",", "as in earlier files"
        else:
            has_comma = has_semicolons and mark == ","
            reason = "which no other value decides; write numbers without thousands separators if that is wrong"
        chosen, other = (decimal, groups) if (decimal.point == ",") == has_comma else (groups, decimal)
        rejected = _example(Format(pa.float64(), other, profile.has_marks), profile)
        what, why = f" and not as {rejected}", f", {reason}"
    else:
        chosen, what = found[0], ""
        why = ", with a decimal comma" if chosen.point == "," else ", with thousands separators"
        why = ", without its sign" if profile.has_marks else why
    is_whole = chosen.has_groups and chosen.point not in profile.separators
    chosen_format = Format(pa.int64() if is_whole else pa.float64(), chosen, profile.has_marks)
    if chosen is POINT and not profile.has_marks and not pairs:
        return chosen_format, []
    return chosen_format, [_Note("", why, f"{profile.example} is read as {_example(chosen_format, profile)}{what}")]


def _example(found: Format, profile: Profile) -> str:
    return f"{found.convert(pa.array([profile.example]))[0].as_py():.15g}"


def _dates(
    profile: Profile, day: str | None, month: str | None, is_european: bool, before: Reading | None
) -> tuple[Format, list[_Note]]:
    """The format of a column of dates.

    Args:
        profile: Of the column.
        day: A column whose dates can only have the day first, if there is one.
        month: One whose dates can only have the month first.
        is_european: Whether the numbers of the files are written as in most of Europe.
        before: The reading in earlier files.
    """
    found = profile.readings
    if YEAR_FIRST in found or len(found) == 1:
        return Format(TIME, found[0]), []
    if "." in profile.example[:3]:
        return Format(TIME, DAY_FIRST), []
    if bool(day) != bool(month):
        has_day, reason = bool(day), f"as in {day or month}"
    elif before in (DAY_FIRST, MONTH_FIRST):
        has_day, reason = before is DAY_FIRST, "as in earlier files"
    else:
        has_day, reason = is_european, "which no other value decides; write the year first if that is wrong"
    chosen = DAY_FIRST if has_day else MONTH_FIRST
    what = f"{profile.example} is read with the {'day' if has_day else 'month'} first"
    return Format(TIME, chosen), [_Note("", f", {reason}", what)]


def _notes_on_texts(profile: Profile, found: Format) -> Iterator[str]:
    if profile.oddity:
        yield f"{profile.oddity}, so the column has texts"
    if found.spellings:
        shown = [f"{text!r} is read as {other!r}" for text, other in [*found.spellings.items()][:_SHOWN]]
        more = len(found.spellings) - len(shown)
        yield f"{', '.join(shown)}{f' and {more} others in the same way' if more else ''}, which is more frequent"
    if two := profile.spellings.numbers_of_two_forms():
        yield f"{two[0]!r} and {two[1]!r} are different texts"


def _respelled(texts: Any, spellings: Mapping[str, str]) -> Any:
    if not spellings:
        return texts
    index = pc.index_in(texts, pa.array([*spellings], pa.string()))
    return pc.coalesce(pa.array([*spellings.values()], pa.string()).take(index), texts)
