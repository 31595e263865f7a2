"""Decides what each column of a table is for the packaged model, by the values of its training rows.

The rules, in words, are in docs/data.md.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.columns.choices import TARGETS, Choices
from trainer.data.columns.held_out import SPLIT
from trainer.data.columns.plan import Column, Plan, Target
from trainer.data.moments import Moments
from trainer.data.tabular import INDEX, is_date, is_list, is_number, is_text, remedy
from trainer.errors import ConfigurationError
from trainer.text import did_you_mean, truncate

logger = logging.getLogger(__name__)

EXACT = 1 << 53
"""Larger whole numbers are ids, such as hashes: as floating-point numbers, different ones are equal."""
MOST_NUMBER = 3.4028234663852886e38
"""That of float32. A larger one, and an infinite one, is as if missing."""
MOST_CATEGORIES = 100
"""A text column with more different texts is hashed."""
MOST_DIFFERENT = 10_000
"""The most classes."""
RARE_CLASS = 0.05
"""A class with a smaller share of the rows is named in the log."""
MOST_CLASSES = 20
"""Whole numbers with more different values are a value to predict, and not classes."""
RARE = 5
"""A text in fewer rows is no category of its own."""
MOST_BINS, LEAST_BINS = 10_000, 100
WORDS = 2_000
"""The words of a text column that are told apart."""
TEXT_WORDS = 3.0
"""A text column with more words a row, on average, is text, and no category."""
ID_SHARE = 0.95
"""A column with so many different values, by rows, identifies rows."""
ID_ROWS = 20
"""In a shorter table, values may differ by chance."""
FOLLOWING = 1.3
"""Whole numbers that follow each other have a range of at most so many times their number, without held-out ones."""
_ID = re.compile(r"(^|[_\W])(id|key|uuid|guid|index|no|nr|number)$|[a-z]I[dD]$", re.IGNORECASE)
"""Names of columns that identify a row."""


def find_target(types: Mapping[str, pa.DataType], choices: Choices, origin: str) -> str:
    """The column of the targets.

    Raises:
        ConfigurationError: there is none; the sentence names the columns.
    """
    names = (choices.target,) if choices.target else TARGETS
    for name in names:
        if name in types:
            return name
    hint = did_you_mean(choices.target, types) if choices.target else ""
    wanted = (
        f"target={choices.target}, but {origin} has no such column{hint}"
        if choices.target
        else (f"{origin} has no column named {' or '.join(names)}")
    )
    if len(types) == 1:
        raise ConfigurationError(
            f"{wanted}; it has one column, {truncate(next(iter(types)), 60)}, but two are needed at least: if its "
            "lines have several values, write tabs, ;, | or , between them."
        )
    raise ConfigurationError(f"{wanted}; name the column to predict with --target, one of {', '.join(types)}.")


def check_names(types: Mapping[str, pa.DataType], choices: Choices, origin: str) -> None:
    """Check that the columns that the user names exist.

    Raises:
        ConfigurationError: some do not; the sentence names all of them.
    """
    given = {
        "inputs": choices.inputs,
        "exclude": choices.exclude,
        "id": [choices.id] if choices.id else [],
        "sample_weight": [choices.sample_weight] if choices.sample_weight else [],
    }
    wrong = [
        f"{setting}={name}{did_you_mean(name, types)}"
        for setting, names in given.items()
        for name in names
        if name not in types
    ]
    if wrong:
        raise ConfigurationError(f"{', '.join(wrong)}: {origin} has no such column; it has {', '.join(types)}.")


def plan(table: Any, target: Target, choices: Choices, origin: str) -> Plan:
    """The plan of a table for the packaged model.

    Args:
        table: The `pyarrow.Table` of training rows, or of some of them.
        target: The target, from `target_of`.
        choices: What the user says.
        origin: The name of the data, for errors.

    Raises:
        ConfigurationError: no column can be an input.
    """
    names = [name for name in table.column_names if name not in (target.name, SPLIT, choices.sample_weight)]
    left_out = {name: "it is excluded" for name in names if name in choices.exclude}
    if choices.inputs:
        left_out |= {name: "it is not among the inputs" for name in names if name not in choices.inputs}
    found: list[Column] = []
    id_column = choices.id
    for name in names:
        if name in left_out or name == choices.id:
            continue
        column, why = _input(name, table[name].combine_chunks(), name in choices.inputs)
        if column:
            found.append(_renamed(column, {*names, *(each.name for each in found)}) if "/" in name else column)
        elif why == IDENTIFIES and id_column is None:
            id_column = name
        else:
            left_out[name] = why
    left_out.pop(id_column or "", None)
    if not found:
        ids = {id_column: IDENTIFIES} if id_column else {}
        reasons = "; ".join(f"{name}: {why}" for name, why in (ids | left_out).items())
        raise ConfigurationError(f"{origin}: no column can be an input ({reasons or 'there are no others'}).")
    return Plan(tuple(found), target, id_column, choices.sample_weight, left_out, len(table))


def _renamed(column: Column, taken: set[str]) -> Column:
    """The column as an input of a name that Keras takes."""
    name = column.name.replace("/", "_")
    while name in taken:
        name += "_"
    return replace(column, name=name, sources=(column.name,))


IDENTIFIES = "its values differ in (nearly) each row, as those of an id"


def _input(name: str, values: Any, is_named: bool) -> tuple[Column | None, str]:
    """A column as an input, or why it is none."""
    kind, missing = values.type, values.null_count
    present = values.drop_null()
    if INDEX.fullmatch(name) and not is_named:
        return None, "an index that pandas writes"
    if not len(present):
        return None, "it has no values"
    if is_date(kind):
        days = present.cast(pa.int64()).to_numpy().astype("float64") / 86_400e6
        return Column(name, "date", "float64", (), missing, None, float(days.mean()), float(days.var())), ""
    if pa.types.is_integer(kind) and max(map(abs, pc.min_max(present).as_py().values())) > EXACT:
        return _text(name, present.cast(pa.string()), missing, is_named)
    if is_number(kind):
        return _number(name, present, missing, is_named)
    if is_text(kind):
        return _text(name, present, missing, is_named)
    if is_list(kind):
        return _list(name, values, missing)
    return None, f"{kind} is no number, text, date or list of these: {remedy(kind)}"


def _number(name: str, present: Any, missing: int, is_named: bool) -> tuple[Column | None, str]:
    values = present.cast(pa.float64(), safe=False)
    finite = pc.less_equal(pc.abs(values), MOST_NUMBER)
    missing += (infinite := len(values) - (pc.sum(finite).as_py() or 0))
    values = values.filter(finite) if infinite else values
    if not len(values):
        return None, "it has no finite values"
    least, most = pc.min_max(values).as_py().values()
    if least == most and not missing:
        return None, f"each row has {least:g}"
    if pa.types.is_integer(present.type) and not is_named and len(present) >= ID_ROWS:
        differ = pc.count_distinct(present).as_py() >= len(present)
        if differ and (_ID.search(name) or most - least < len(present) * FOLLOWING):
            return None, IDENTIFIES
    mean, variance = pc.mean(values).as_py(), pc.variance(values).as_py()
    return Column(name, "number", "float32", (), missing, None, mean, variance or 1.0), ""


def _text(name: str, present: Any, missing: int, is_named: bool) -> tuple[Column | None, str]:
    counts = {each["values"]: each["counts"] for each in pc.value_counts(present).to_pylist()}
    if len(counts) == 1 and not missing:
        return None, f"each row has {next(iter(counts))!r}"
    words = sum(len(text.split()) * count for text, count in counts.items()) / len(present)
    if len(counts) > MOST_CATEGORIES and words > TEXT_WORDS:
        words_kept = _vocabulary(counts)
        return Column(name, "text", "string", (), missing, bins=len(words_kept), categories=words_kept), ""
    if len(present) >= ID_ROWS and len(counts) >= ID_SHARE * len(present) and not is_named:
        return None, IDENTIFIES
    if len(counts) <= MOST_CATEGORIES:
        often = sorted(text for text, count in counts.items() if count >= min(RARE, len(present) / 20))
        return Column(name, "category", "string", (), missing, categories=tuple(often or sorted(counts))), ""
    return Column(name, "hashed", "string", (), missing, bins=_bins(len(counts))), ""


def _list(name: str, values: Any, missing: int) -> tuple[Column | None, str]:
    lengths = pc.unique(pc.list_value_length(values).drop_null()).to_pylist()
    element = values.type.value_type
    if is_text(element) or (pa.types.is_integer(element) and len(lengths) > 1):
        different = pc.count_distinct(pc.list_flatten(values)).as_py()
        return Column(name, "bag", "string", (None,), missing, bins=_bins(different)), ""
    if not is_number(element):
        return None, f"{values.type} is no list of numbers or texts"
    if len(lengths) > 1:
        return None, f"its lists have from {min(lengths)} to {max(lengths)} numbers, but one length was expected"
    if not lengths[0]:
        return None, "its lists are empty"
    numbers = pc.list_flatten(values).cast(pa.float64())
    mean, variance = pc.mean(numbers).as_py() or 0.0, pc.variance(numbers).as_py() or 1.0
    return Column(name, "vector", "float32", (lengths[0],), missing, None, mean, variance), ""


def _bins(different: int) -> int:
    return max(LEAST_BINS, min(MOST_BINS, different))


def is_present(values: Any) -> Any:
    """Which values of a target are there: a boolean array of Arrow. An infinite number is none."""
    if not pa.types.is_floating(values.type):
        return values.is_valid()
    return pc.less_equal(pc.abs(values), MOST_NUMBER).fill_null(False)


@dataclass
class Values:
    """What the values of a target are, from all training rows."""

    kind: pa.DataType
    rows: int = 0
    counts: dict[Any, int] | None = field(default_factory=dict)
    """The rows of each value; None if there are too many different ones for classes."""
    is_whole: bool = True
    """Whether numbers have no fractions."""
    moments: Moments | None = None
    """Of numbers."""

    def add(self, values: Any) -> None:
        """Add values that are present, an array of Arrow."""
        if not len(values) or not (is_number(self.kind) or is_text(self.kind)):  # others are refused later
            return
        if self.counts is not None:
            for each in pc.value_counts(values).to_pylist():
                self.counts[each["values"]] = self.counts.get(each["values"], 0) + each["counts"]
            if len(self.counts) > MOST_DIFFERENT:
                self.counts = None
        if is_number(self.kind):
            numbers = values.cast(pa.float64(), safe=False)
            if pa.types.is_floating(self.kind):
                self.is_whole = self.is_whole and bool(pc.all(pc.equal(pc.round(numbers), numbers)).as_py())
            own = Moments.of(numbers.to_numpy(zero_copy_only=False))
            self.moments = self.moments + own if self.moments else own
        self.rows += len(values)

    def are_classes(self, regression: bool | None) -> bool:
        """Whether these are classes: texts, truth values, and few whole numbers from 0."""
        if regression is not None:
            return not regression
        if is_text(self.kind) or pa.types.is_boolean(self.kind):
            return True
        return self.is_whole and self.counts is not None and len(self.counts) <= MOST_CLASSES and min(self.counts) >= 0


def target_of(name: str, values: Values, choices: Choices, names: Sequence[str] | None, origin: str) -> Target:
    """The target by its values in training rows. A line of the log says what may be wrong.

    Args:
        name: The column.
        values: Its values.
        choices: What the user says.
        names: Those of the classes by label, if the data has them.
        origin: The name of the data, for errors.

    Raises:
        ConfigurationError: it is no target.
    """
    kind, counts = values.kind, values.counts
    if not (is_number(kind) or is_text(kind)):
        raise ConfigurationError(
            f"target={name}: {kind} cannot be predicted; name a column of numbers or of texts with --target."
        )
    if not values.rows:
        raise ConfigurationError(f"{origin}: no training row has a {name}; name another column with --target.")
    if choices.regression and is_text(kind):
        example = next(iter(counts)) if counts else ""
        raise ConfigurationError(
            f"regression: the target {name} of {origin} is a text, such as {example!r}, but numbers were expected; see "
            "--target."
        )
    if counts is not None and len(counts) == 1:
        raise ConfigurationError(
            f"target={name}: each training row has {label(next(iter(counts)))}; there is nothing to learn."
        )
    if names and not choices.regression:
        return Target(name, tuple(names), has_labels=pa.types.is_integer(kind))
    if not values.are_classes(choices.regression):
        if values.is_whole and not choices.regression:
            many = f"{len(counts)}" if counts else f"more than {MOST_DIFFERENT:,}"
            logger.info(
                f"{name}: {many} different whole numbers are values to predict; --regression=false makes them classes"
            )
        moments = values.moments
        assert moments is not None  # noqa: S101 - the values are numbers
        return Target(name, (), moments.mean, moments.std)
    if counts is None:
        raise ConfigurationError(
            f"target={name}: it has more than {MOST_DIFFERENT:,} different values, which are too many classes; name "
            "another column with --target."
        )
    if len(counts) > MOST_CLASSES and max(counts.values()) == 1:
        raise ConfigurationError(
            f"target={name}: each of {values.rows:,} training rows has another one, as those of an id; there is "
            "nothing to learn."
        )
    rarest = min(counts, key=lambda each: counts[each])
    if (share := counts[rarest] / values.rows) < RARE_CLASS:
        logger.info(f"{name}: {label(rarest)} is {share:.2%} of the rows")
    return Target(name, tuple(label(each) for each in sorted(counts)))


def label(value: Any) -> str:
    """A value of the target as the name of a class."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def _vocabulary(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The most frequent words of texts, as Keras's TextVectorization splits them by default."""
    found: dict[str, int] = {}
    for text, count in counts.items():
        for word in re.sub(r"[!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~']", "", text.lower()).split():
            found[word] = found.get(word, 0) + count
    often = sorted((word for word in found if found[word] > 1), key=lambda word: (-found[word], word))
    return tuple(often[:WORDS])
