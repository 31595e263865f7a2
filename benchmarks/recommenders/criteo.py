"""Criteo's click log for the Kaggle challenge: lines of a label, 13 integers and 26 hexadecimal ids, tab by tab.

The user gives the folder with train.txt as CRITEO_DIR. Without it, lines of our own in its format stand in for it: they
show the rate, but there is nothing to learn in them.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.recommenders.records import About, Form, Rows, write

NUMBERS, IDS, SIZE = 13, 26, 100_000
"""Integers and ids of a line, and how many values each id may have here."""
FORM = Form(NUMBERS, {f"c{number}": SIZE for number in range(1, IDS + 1)})
FILE = "train.txt"
CHUNK = 2**14


class CriteoError(Exception):
    """The file cannot be read; the message says what to do."""


def find(folder: Path) -> Path:
    """The file of the folder.

    Raises:
        CriteoError: it is missing.
    """
    if not (folder / FILE).is_file():
        raise CriteoError(
            f"CRITEO_DIR: {folder} has no {FILE}; give the folder with {FILE} of Criteo's Kaggle challenge."
        )
    return folder / FILE


def parse(lines: Iterable[str], name: str) -> Iterator[Rows]:
    """Rows of the lines of a file with this name, in chunks. An empty number is 0, and so is an empty id.

    Raises:
        CriteoError: a line is not of the format.
    """
    numbered = enumerate(lines, start=1)
    while chunk := list(itertools.islice(numbered, CHUNK)):
        labels, numbers, ids = zip(*(_parse(line, number, name) for number, line in chunk), strict=True)
        columns = dict(zip(FORM.sizes, np.array(ids).T, strict=True))
        yield FORM.rows(np.array(labels), np.log1p(np.maximum(np.array(numbers, np.float64), 0)), columns)


def _parse(line: str, number: int, name: str) -> tuple[int, list[int], list[int]]:
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 1 + NUMBERS + IDS:
        raise CriteoError(
            f"{name}, line {number}: {len(fields)} fields, but a line has {1 + NUMBERS + IDS}, tab by tab; "
            "give the unchanged file."
        )
    try:
        integers = [int(field) if field else 0 for field in fields[1 : 1 + NUMBERS]]
        ids = [1 + int(field, 16) % (SIZE - 1) if field else 0 for field in fields[1 + NUMBERS :]]
        return int(fields[0]), integers, ids
    except ValueError as error:
        raise CriteoError(f"{name}, line {number}: {error}; give the unchanged file.") from error


def lines(count: int, seed: int = 0) -> Iterator[str]:
    """Lines of our own. A tenth of the values is empty; ids are as frequent as those of click_log.py."""
    random = np.random.default_rng(seed)
    ranks = np.minimum(random.pareto(0.2, (count, IDS)), 1e6).astype(np.int64)
    integers = random.poisson(5, (count, NUMBERS))
    empty = random.random((count, NUMBERS + IDS)) < 0.1
    for row in range(count):
        fields = [*map(str, integers[row]), *(f"{rank * 2654435761 % 2**32:08x}" for rank in ranks[row])]
        kept = ("" if is_empty else field for field, is_empty in zip(fields, empty[row], strict=True))
        yield "\t".join([str(int(random.random() < 0.25)), *kept]) + "\n"


def make(folder: Path, source: Path | None, examples: int, held_out: int) -> None:
    """Write the first examples of a file, and those after them as held out; without a file, lines of our own.

    Raises:
        CriteoError: the file has a wrong line, or too few.
    """
    if source is None:
        _write(folder, parse(lines(examples + held_out), "our lines"), examples, FILE)
        return
    with source.open(encoding="utf-8", errors="replace") as file:
        _write(folder, parse(itertools.islice(file, examples + held_out), str(source)), examples, str(source))


def _write(folder: Path, chunks: Iterator[Rows], examples: int, name: str) -> None:
    rows = np.concatenate(list(chunks) or [np.empty((0, FORM.width), np.int32)])
    if len(rows) <= examples:
        raise CriteoError(f"{name}: {len(rows)} lines, but more than {examples} are necessary; give the whole file.")
    write(folder, About(FORM), [rows[:examples]], [rows[examples:]])
