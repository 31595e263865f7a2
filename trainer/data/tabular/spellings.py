"""Texts that differ only in case, in blanks or by a last full stop: they are one text, in its most frequent spelling.

The texts are counted in a column of categories: up to 1,000 different texts of up to 100 characters. Other columns are
read as they are.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

MOST_TEXTS = 1000
MOST_CHARACTERS = 100


def spelling_key(text: str) -> str:
    """What the spellings of one text have in common."""
    return " ".join(text.casefold().split()).removesuffix(".") or text


@dataclass
class Spellings:
    """The different texts of a column, with their numbers of rows."""

    counts: Counter[str] | None = field(default_factory=Counter)
    """None: there are too many, or they are too long."""

    def add(self, texts: Any) -> None:
        """Count some texts without missing values."""
        if self.counts is None or not len(texts):
            return
        if pc.max(pc.utf8_length(texts)).as_py() > MOST_CHARACTERS:
            self.counts = None
            return
        found = pc.value_counts(texts)
        if len(found) <= MOST_TEXTS:
            values, numbers = found.flatten()
            self.counts.update(dict(zip(values.to_pylist(), numbers.to_pylist(), strict=True)))
        if len(found) > MOST_TEXTS or len(self.counts) > MOST_TEXTS:
            self.counts = None

    def most_frequent(self) -> Mapping[str, str]:
        """By each text that has another spelling, the most frequent one."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        counts: Mapping[str, int] = self.counts or {}
        for text in counts:
            groups[spelling_key(text)].append(text)
        found: dict[str, str] = {}
        for group in groups.values():
            if len(group) > 1:
                chosen = max(group, key=lambda text: (counts[text], text))
                found |= {text: chosen for text in group if text != chosen}
        return found

    def numbers_of_two_forms(self) -> tuple[str, str] | None:
        """Two texts that are one number, such as 1 and 01."""
        seen: dict[int, str] = {}
        for text in self.counts or {}:
            if text.isascii() and text.isdecimal() and seen.setdefault(int(text), text) != text:
                return seen[int(text)], text
        return None
