"""What the texts of each column are like, from a pass over all files: which readings fit all of them."""

import bisect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.skipped import Skipped
from trainer.data.tabular.dialect import Dialect, not_utf8, read_dialect
from trainer.data.tabular.missing import as_null, is_missing
from trainer.data.tabular.readings import HEAD, POINT, POINT_GROUPS, READINGS, Reading, without_marks
from trainer.data.tabular.spellings import Spellings
from trainer.data.tabular.streams import ends_with_quote
from trainer.data.tabular.texts import EncodingError, LongRowError, read_texts
from trainer.errors import ConfigurationError
from trainer.text import one_line, truncate

MOST_BYTES = 256 << 20
"""A row with more ends the command."""
_LONG = 17
"""The digits from which a number is perhaps none of 64 bits."""


@dataclass
class Profile:
    """What the texts of one column are like."""

    readings: Sequence[Reading] = READINGS
    """Those that fit all texts so far; none: the column has texts."""
    values: int = 0
    """The texts that are not missing."""
    is_whole: bool = True
    """Whether all are whole numbers of 64 bits, without groups of digits."""
    has_marks: bool = False
    """Whether a number has a sign such as $ or %."""
    separators: set[str] = field(default_factory=set)
    """Those of point and comma that numbers have, if one of them may stand between groups of digits."""
    example: str = ""
    """A text that is not a whole number."""
    oddity: str = ""
    """Why the column has texts, although most of them are values."""
    spellings: Spellings = field(default_factory=Spellings)

    def add(self, texts: Any, path: Path, start: int) -> None:
        """Look at some texts.

        Args:
            texts: An array of strings.
            path: Their file.
            start: The number of the first one's row.
        """
        if not self.readings and self.spellings.counts is None:
            return
        texts = pc.utf8_trim_whitespace(texts)
        if self.readings:
            absent = is_missing(texts)
            values = texts.filter(pc.invert(absent)) if pc.any(absent).as_py() else texts
            if len(values):

                def place(index: int) -> str:
                    rows = pc.indices_nonzero(pc.invert(absent))
                    return f"row {start + rows[index].as_py()} of {path.name}"

                self._add_values(values, place)
        if not self.readings:
            self.spellings.add(as_null(texts, in_texts=True).drop_null())

    def _add_values(self, values: Any, place: Callable[[int], str]) -> None:
        before = self.readings
        if self.is_whole and POINT in before and _is_whole(values):
            self.readings = [each for each in before if each.is_number]
        else:
            self.readings = self._fitting(values)
            self.example = self.example or _first_fraction(values)
            self.is_whole = False
        is_number = any(each.is_number for each in self.readings)
        if is_number and (found := _leading_zero(values)):
            self.readings, self.oddity = (), f"{found} has a leading zero"
        elif is_number and not self.is_whole and (found := _beyond_int64(values)):
            self.readings, self.oddity = (), f"{found} has more than 64 bits"
        elif not self.readings:
            best = max(before, key=lambda each: pc.sum(each.matches(values)).as_py())
            if self.values or pc.sum(best.matches(values)).as_py() * 2 > len(values):
                index = bisect.bisect_left(range(len(values)), True, key=lambda last: not best.fits(values[: last + 1]))
                kind = "a number" if best.is_number else "a date" if best.is_date else "true or false"
                found = truncate(values[index].as_py(), 40)
                self.oddity = f"{found!r} in {place(index)} is not {kind}, as other values are"
        self.values += len(values)

    def _fitting(self, values: Any) -> Sequence[Reading]:
        """The readings that fit these values too."""
        if not self.has_marks:
            found = _fitting(self.readings, values)
            if found:
                self._note_separators(found, values)
                return found
        numbers = [each for each in self.readings if each.is_number]
        numbers = [each for each in numbers if each.fits(without_marks(values[:HEAD]))]
        if not numbers:
            return ()
        stripped = without_marks(values)
        found = _fitting(numbers, stripped)
        self.has_marks |= bool(found)
        self._note_separators(found, stripped)
        return found

    def _note_separators(self, readings: Sequence[Reading], values: Any) -> None:
        if POINT in readings and POINT_GROUPS not in readings:
            self.separators.add(".")
        elif any(each.has_groups for each in readings):
            self.separators |= {each for each in ".," if pc.any(pc.match_substring(values, each)).as_py()}


def profile_files(dialects: MutableMapping[Path, Dialect], names: Sequence[str]) -> Mapping[str, Profile]:
    """The profiles of these columns. The dialects get what later rows show: the encoding, and the longest row.

    Raises:
        ConfigurationError: a file cannot be read, or has a row that is too long.
    """
    profiles = {name: Profile() for name in names}
    for path, dialect in dialects.items():
        dialects[path] = _add_file(profiles, path, dialect)
    return profiles


def _add_file(profiles: Mapping[str, Profile], path: Path, dialect: Dialect) -> Dialect:
    names, rows = [name for name in profiles if name in dialect.names], 0
    while True:
        start, last = 0, ""
        try:
            for batch in read_texts(path, dialect, names, Skipped(0, is_quiet=True)):
                new = batch.slice(max(0, rows - start))  # those before are from the attempt before
                for name in names if len(new) else ():
                    profiles[name].add(new[name], path, start + len(batch) - len(new))
                start += len(batch)
                rows = max(rows, start)
                last = str(batch[dialect.names[-1]][-1]) if len(batch) and dialect.names[-1] in names else ""
            if "\n" in last and not ends_with_quote(path):
                raise ConfigurationError(
                    f"{path}: the quotation mark in row {rows - 1} has no end ({one_line(truncate(last, 60))}); add it."
                )
            return dialect
        except LongRowError:
            if dialect.block_bytes >= MOST_BYTES:
                raise ConfigurationError(
                    f"{path}: a row after row {rows} has more than {MOST_BYTES >> 20} MB; correct its quotation mark, "
                    "which probably has no end, or shorten the text."
                ) from None
            dialect = replace(dialect, block_bytes=min(8 * dialect.block_bytes, MOST_BYTES))
        except EncodingError:
            other = read_dialect(path, dialect.delimiter, "cp1252")
            dialect = replace(dialect, encoding=other.encoding, start=other.start, notes=[*dialect.notes, not_utf8()])


def _fitting(readings: Sequence[Reading], values: Any) -> list[Reading]:
    """The readings that fit these values."""
    found: list[Reading] = []
    for each in readings:
        if each.plain in found or each.fits(values):
            found.append(each)
    return found


def _is_whole(texts: Any) -> bool:
    try:
        texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return True


def _first_fraction(values: Any) -> str:
    return truncate(_first(values, pc.invert(pc.match_substring_regex(values, r"^[+-]?\d+$"))) or "", 40)


def _leading_zero(values: Any) -> str | None:
    """The first whole number with a leading zero."""
    return _first(values, pc.match_substring_regex(values, r"^0[\dxX]"))


def _beyond_int64(values: Any) -> str | None:
    """The first whole number that has more than 64 bits."""
    if pc.max(pc.binary_length(values)).as_py() < _LONG:
        return None
    values = values.filter(pc.match_substring_regex(values, r"^-?\d+$"))
    if _is_whole(values):
        return None
    found = (str(each) for each in values.to_pylist())
    return next(each for each in found if not -(1 << 63) <= int(each) < 1 << 63)


def _first(texts: Any, mask: Any) -> str | None:
    index: int = pc.index(mask, True).as_py()
    return str(texts[index].as_py()) if index >= 0 else None
