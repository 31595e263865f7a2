"""Whether the first line of a text file has the names of its columns, or is a row."""

import itertools
import re
from collections.abc import Sequence

from trainer.data.tabular.missing import IN_VALUES
from trainer.data.tabular.readings import COMMA, COMMA_GROUPS, DATES, POINT, POINT_GROUPS, TRUE_FALSE

_VALUES = [re.compile(each.pattern) for each in (POINT, COMMA, COMMA_GROUPS, POINT_GROUPS, *DATES, TRUE_FALSE)]
_LEAST_RISING = 5
"""So many numbers that rise from each to the next are hardly a row."""


def is_value(cell: str) -> bool:
    """Whether the text of a cell is a number, a date, or true or false."""
    return any(pattern.match(cell.strip()) for pattern in _VALUES)


def is_header(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether a row has names.

    It has none if each of its cells is like those below it, a number or a text that recurs, or if several of them are
    numbers, and one is no whole number or two are equal. But numbers that rise from each to the next, such as years,
    may be names.
    """
    others = [row for row in others if row != first]
    if not others or (_rises(first) and not _rises(others[0])):
        return True
    values, are_alike = [], True
    for index, cell in enumerate(each.strip() for each in first):
        column = [row[index].strip() for row in others if index < len(row)]
        column = [each for each in column if each not in IN_VALUES]
        if is_value(cell) and sum(map(is_value, column)) * 2 > len(column):
            values.append(cell)
        elif cell not in IN_VALUES and cell not in column:
            are_alike = False
    has_fraction = any(not cell.isdecimal() for cell in values)
    if len(set(values)) < len(values) or (has_fraction and len(values) > 1 and not _rises(values, 2)):
        return False
    return not are_alike or not (values or len(first) > 1)


def _rises(row: Sequence[str], least: int = _LEAST_RISING) -> bool:
    try:
        numbers = [float(cell) for cell in row]
    except ValueError:
        return False
    if numbers in ([*range(len(row))], [*range(1, len(row) + 1)]):
        return len(row) > 2
    return len(row) >= least and all(one < two for one, two in itertools.pairwise(numbers))
