"""How a text file is written: its encoding, its delimiter, what stands before its rows, and the names of its columns.

All is found in the first megabyte.
"""

import codecs
import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from trainer.data.tabular.errors import damaged
from trainer.data.tabular.header import is_header, is_value
from trainer.data.tabular.streams import REWRITES, Lines, open_bytes, open_text
from trainer.errors import ConfigurationError
from trainer.text import one_line, truncate

SAMPLE_BYTES = 1 << 20
SAMPLE_ROWS = 200
BLOCK_BYTES = 1 << 20
"""What is read at once, at least."""
COLUMN_BYTES = 8 << 10
"""What is read at once of each column, about: pyarrow takes some microseconds for each."""
DELIMITERS = ("\t", ";", "|", ",")
"""Those that are found without being named, beside blanks. If several split all rows evenly, it is the first one."""
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)
_MOST_TITLES = 20
_RUN = re.compile(r"\S {2,}\S")
_QUOTED = re.compile(r'"[^"]*"( "[^"]*")+')
_CELL = re.compile(r'"(?:[^"]|"")*"|\S+')


@dataclass(frozen=True)
class Dialect:
    """How one file is written."""

    delimiter: str
    names: Sequence[str]
    """Of all columns, in the order of the file."""
    has_header: bool
    nameless: Sequence[str]
    """Those of the names that are made up. Such a column is left out if it has no value."""
    start: int
    """The bytes before the first row, of the text in UTF-8."""
    encoding: str
    lines: Lines
    escape: str | None
    """What stands before a quotation mark within quotes, if it is not another one."""
    block_bytes: int
    """More than the longest row has."""
    notes: Sequence[str]


class _Sample(NamedTuple):
    """The first lines of a file, from the first that is no comment."""

    lines: list[str]
    is_whole: bool
    """Whether the file has no others."""
    start: int
    """The characters before them."""
    comment: str
    """The last line before them."""
    delimiter: str | None
    """That which a line before them names."""
    escape: str | None = None
    """What stands before a quotation mark within quotes, if it is not another one."""


def read_dialect(path: Path, delimiter: str | None, encoding: str | None = None) -> Dialect:
    """How this file is written.

    Args:
        path: The file.
        delimiter: That of the file; None finds it.
        encoding: That of the file; None finds it.

    Raises:
        ConfigurationError: the file cannot be read, is empty, or two of its columns have one name.
    """
    try:
        with open_bytes(path) as stream:
            head = _read(stream)
        encoding, notes = (encoding, []) if encoding else _encoding(path, head)
        with open_text(path, encoding, "plain", 0) as stream:
            content = _read(stream)
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        raise damaged(path, error) from None
    text = content.decode("utf-8", "ignore")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigurationError(
            f"{path}: line {line} has a NUL byte, so the file is damaged or not a text; write it again as UTF-8."
        )
    sample = _sample(text, len(content) < SAMPLE_BYTES)
    if not delimiter and (found := _without_titles(sample)):
        sample, count = found
        notes.append(f"the first {count} lines are skipped, because they have no columns")
    delimiter, lines = _layout(sample, delimiter or sample.delimiter)
    sample = sample._replace(escape=_escape(sample, delimiter))
    rows = _rows(sample, delimiter, lines)
    if not rows:
        raise ConfigurationError(f"{path}: the file is empty; a line with the names of the columns was expected.")
    header = _header(sample, rows, delimiter, lines)
    names, nameless = _complete(header.names, rows)
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice:
        raise ConfigurationError(
            f"{path}: {names.count(twice)} columns are named {one_line(twice)}; give each its own name."
        )
    if lines == "quoted":
        notes.append("each line is within quotes, which are left out")
    if delimiter != ",":
        notes.append(f"the delimiter is {'blanks' if delimiter == ' ' else repr(delimiter)}")
    return Dialect(
        delimiter=delimiter,
        names=names,
        has_header=header.has_names,
        nameless=nameless,
        start=len(text[: sample.start + header.length].encode()),
        encoding=encoding,
        lines=lines,
        escape=sample.escape,
        block_bytes=max(BLOCK_BYTES, COLUMN_BYTES * len(names)),
        notes=[*notes, *header.notes],
    )


def not_utf8(line: int | None = None) -> str:
    """The note on a text that is not UTF-8."""
    return f"{f'line {line}' if line else 'a later line'} is not UTF-8, so the file is read as Latin-1 (cp1252)"


def _read(stream: Any) -> bytes:
    """The first bytes of a stream."""
    parts: list[bytes] = []
    while (lacking := SAMPLE_BYTES - sum(map(len, parts))) and (part := stream.read(lacking)):
        parts.append(part)
    return b"".join(parts)


def _encoding(path: Path, head: bytes) -> tuple[str, list[str]]:
    """The encoding of a text that begins so, with notes."""
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name, []
    for zeros, name in ((0, "utf-16-be"), (1, "utf-16-le")):
        if head[zeros:1000:2].count(0) > len(head[:1000]) // 3 and not head[1 - zeros : 1000 : 2].count(0):
            return name, ["the text is read as UTF-16, although it has no mark of it at its start"]
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < SAMPLE_BYTES)
    except UnicodeDecodeError as error:
        return single_byte(head), [not_utf8(head.count(b"\n", 0, error.start) + 1)]
    return "utf-8", []


def single_byte(head: bytes) -> str:
    """The encoding of a text that is not UTF-8."""
    try:
        head.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252"


def _sample(text: str, is_whole: bool) -> _Sample:
    start, delimiter, comment = int(text.startswith("\ufeff")), None, ""
    if found := _SEPARATOR_LINE.match(text, start):
        delimiter, start = found[1], found.end()
    lines = [*io.StringIO(text[start:], newline="")]
    count = sum(1 for _ in itertools.takewhile(lambda line: not line.strip() or line.startswith("#"), lines))
    for line in lines[:count]:
        comment = line.strip() or comment
    start += sum(map(len, lines[:count]))
    lines = lines[count:]
    return _Sample(lines if is_whole or len(lines) < 2 else lines[:-1], is_whole, start, comment, delimiter)


def _without_titles(sample: _Sample) -> tuple[_Sample, int] | None:
    """The sample without the first lines, and their number, if these have no delimiter, and all others evenly many."""
    for each in DELIMITERS:
        titles = [*itertools.takewhile(lambda line: not set(line) & {*DELIMITERS}, sample.lines[:_MOST_TITLES])]
        rest = sample._replace(lines=sample.lines[len(titles) :], start=sample.start + sum(map(len, titles)))
        widths = [len(row) for row in _rows(rest, each, "plain")]
        if titles and len(widths) > 1 and len(set(widths)) == 1 and widths[0] > 2:
            return rest, len(titles)
    return None


def _escape(sample: _Sample, delimiter: str) -> str | None:
    """A backslash, if one stands before a quotation mark that does not end a cell."""
    within = re.compile(rf'"[^"\r\n]*\\"(?![{re.escape(delimiter)}"\r\n])')
    return "\\" if any(map(within.search, sample.lines[:SAMPLE_ROWS])) else None


def _layout(sample: _Sample, delimiter: str | None) -> tuple[str, Lines]:
    """The delimiter of some lines, and how they are written."""
    if delimiter:
        return delimiter, "blanks" if delimiter == " " else "plain"
    found = _delimiter(sample)
    rows = _rows(sample, found, "plain")
    if len(rows) > 1 and {len(row) for row in rows} == {1} and all(line.startswith('"') for line in sample.lines):
        inner = sample._replace(lines=[f"{row[0]}\n" for row in rows])
        nested = _delimiter(inner)
        if len(widths := {len(row) for row in _rows(inner, nested, "plain")}) == 1 and widths != {1}:
            return nested, "quoted"
    if found == " ":
        return found, "blanks"
    has_padding = found != "\t" and any(re.search(f'{re.escape(found)} +"', line) for line in sample.lines)
    return found, "padded" if has_padding else "plain"


def _delimiter(sample: _Sample) -> str:
    """That which splits all rows evenly; otherwise that which the first row has most."""
    widths = {each: [len(row) for row in _rows(sample, each, "plain")] or [0] for each in DELIMITERS}
    even = [each for each, found in widths.items() if len(set(found)) == 1 and found[0] > 1]
    best = even[0] if even else max(reversed(DELIMITERS), key=lambda each: widths[each][0])
    lines = [line for line in sample.lines[:SAMPLE_ROWS] if line.strip()]
    if widths[best][0] == 1 or (best == "\t" and all(map(_RUN.search, lines))):
        cells = [len(_CELL.findall(line)) for line in lines]
        if len(cells) > 1 and len(set(cells)) == 1 and cells[0] > widths[best][0]:
            return " "
        if len(set(cells[1:])) == 1 and cells[1] == cells[0] + 1 > 2 and _QUOTED.fullmatch(lines[0].strip()):
            return " "  # as R writes a table, with the names of the rows
    return best


def _rows(sample: _Sample, delimiter: str, lines: Lines) -> list[list[str]]:
    """The first rows, without empty ones, and without one that is cut."""
    csv.field_size_limit(max(csv.field_size_limit(), 2 * SAMPLE_BYTES))
    text = REWRITES[lines]("".join(sample.lines).encode()).decode()
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, escapechar=sample.escape)
    rows = [*itertools.islice((row for row in reader if row), SAMPLE_ROWS)]
    return rows if sample.is_whole or not 1 < len(rows) < SAMPLE_ROWS else rows[:-1]


class _Header(NamedTuple):
    names: list[str]
    has_names: bool
    """Whether these are of the file."""
    length: int
    """The characters of the first line, if it has the names."""
    notes: list[str]


def _header(sample: _Sample, rows: Sequence[Sequence[str]], delimiter: str, lines: Lines) -> _Header:
    first, others = rows[0], rows[1:]
    has_names = is_header(first, others)
    comment = " ".join(sample.comment.lstrip("#").split()) if lines == "blanks" else sample.comment.lstrip("#")
    cells = [cell.strip() for cell in next(csv.reader([comment], delimiter=delimiter), [])]
    if len(cells) == len(first) > 1 and not (has_names and lines == "blanks" and not all(map(is_value, first))):
        return _Header(cells, True, 0, [])
    if not has_names:
        names = [f"column_{number}" for number in range(1, len(first) + 1)]
        note = (
            "the first line is taken as a row, because its values are like those below it, and the columns are called "
            f"{names[0]} to {names[-1]}; write a line of names above it to name them"
        )
        return _Header(names, False, 0, [note])
    names = [cell.strip() for cell in first]
    numbers = [name for name in names if is_value(name)]
    notes = []
    if numbers and others:
        shown = truncate(", ".join(numbers), 60)
        notes = [
            f"the first line is taken as the names of the columns, of which some are numbers ({shown}); write a line "
            "of names above it if it is a row"
        ]
    reader = csv.reader(sample.lines, delimiter=delimiter)
    next(reader)
    return _Header(names, True, sum(map(len, sample.lines[: reader.line_num])), notes)


def _complete(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """The names of all columns, and those of them that are made up.

    If each row has one cell more than the header, it is an empty one after a last delimiter, or the name of the row, as
    R writes it. The first column may have no name: it is an index.
    """
    found = [*names]
    if len(rows) > 1 and {len(row) for row in rows[1:]} == {len(names) + 1}:
        found = ["", *names] if any(row[-1].strip() for row in rows[1:]) else [*names, ""]
    nameless = [index for index, name in enumerate(found) if not name and index]
    for index in nameless:
        found[index] = f"column_{index + 1}"
    return found, [found[index] for index in nameless]
