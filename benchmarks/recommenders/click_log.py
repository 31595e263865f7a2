"""A click log that is made here, whose true probabilities are known, and thus the best AUC that a model can have.

Ids follow Zipf's law. An id lives for LIFE days, then another one takes its rank. The effect of the numbers drifts from
day to day. The held-out examples are those of the day after the last one. Each chunk has its own seed.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recommenders.auc import auc
from benchmarks.recommenders.records import About, Form, Rows, write

DAY, CHUNK = 2**20, 2**16
"""Examples of a day and of a chunk."""
LIFE = 20
"""Days."""
DRIFT = 0.05
"""Radians a day by which the effect of the numbers turns."""
KINDS = 4
"""Length of the hidden vector of each id, whose first number is also an effect of the id by itself."""


@dataclass(frozen=True)
class Law:
    """How examples arise."""

    form: Form
    exponent: float
    """Of Zipf's law: 1.05 has many rare ids, 1.2 fewer."""
    popularity: bool = False
    """Let the target be the logarithm of the item's popularity, and not the click."""
    seed: int = 0

    def hidden(self) -> dict[str, Any]:
        """The hidden vector of each id, float32 [size, KINDS]."""
        random = np.random.default_rng([self.seed, 1])
        return {
            name: random.standard_normal((size, KINDS), np.float32) * np.float32(KINDS**-0.5)
            for name, size in self.form.sizes.items()
        }

    def chunk(self, hidden: dict[str, Any], day: int, number: int) -> tuple[Rows, Any]:
        """A chunk of a day: its rows, and their probabilities of a click."""
        form, random = self.form, np.random.default_rng([self.seed, 2, day, number])
        numbers = random.standard_normal((CHUNK, form.numbers), np.float32)
        ids, vectors, popularity = {}, {}, np.zeros(CHUNK, np.float32)
        for index, (name, size) in enumerate(form.sizes.items()):
            ranks = self._ranks(random.random(CHUNK, np.float32), size)
            ids[name] = _ids(ranks, day, size, index)
            vectors[name] = hidden[name][ids[name]]
            if name == "item":
                popularity = -self.exponent * np.log(ranks)
        effects = np.random.default_rng([self.seed, 3]).standard_normal((2, form.numbers)).astype(np.float32)
        score = numbers @ (np.cos(DRIFT * day) * effects[0] + np.sin(DRIFT * day) * effects[1]) - 1
        score += sum(2 * each[:, 0] for each in vectors.values())
        names = list(form.sizes)
        for one, other in itertools.pairwise(names):
            score += 2 * np.einsum("nk,nk->n", vectors[one], vectors[other])
        history = None
        if form.history:
            size = form.sizes["item"]
            ranks = self._ranks(random.random((CHUNK, form.history), np.float32), size)
            history = _ids(ranks, day, size, names.index("item"))
            alike = np.einsum("nlk,nk->nl", hidden["item"][history], vectors["item"])
            score += 2 * np.maximum(alike, 0).mean(axis=1)
        probabilities = 1 / (1 + np.exp(-score))
        targets = popularity if self.popularity else random.random(CHUNK, np.float32) < probabilities
        return form.rows(targets, numbers, ids, history), probabilities

    def _ranks(self, draws: Any, size: int) -> Any:
        """Ranks from 1 to `size`, from draws in [0, 1)."""
        power = np.float32(1 - self.exponent)
        ends = np.float32((size + 1) ** float(power) - 1)
        return np.clip((draws * ends + 1) ** (1 / power), 1, size).astype(np.int32)


def make(folder: Path, law: Law, examples: int, held_out: int = 2 * CHUNK) -> None:
    """Write the log: this many examples in whole chunks, and the held-out ones."""
    hidden, chunks = law.hidden(), -(-examples // CHUNK)
    tests = [law.chunk(hidden, -(-examples // DAY), number) for number in range(-(-held_out // CHUNK))]
    rows, probabilities = (np.concatenate(each)[:held_out] for each in zip(*tests, strict=True))
    best = None if law.popularity else auc(law.form.targets(rows), probabilities)

    def train() -> Iterator[Rows]:
        for number in range(chunks):
            yield law.chunk(hidden, number * CHUNK // DAY, number)[0]

    write(folder, About(law.form, best), train(), [rows])


def _ids(ranks: Any, day: int, size: int, salt: int) -> Any:
    """The ids that have these ranks on a day: a rank gets another id each LIFE days, not all on the same day."""
    generation = (day + ranks % LIFE) // LIFE
    mixed = ranks.astype(np.uint32) * np.uint32(2654435761) + generation.astype(np.uint32) * np.uint32(40503 * 65537)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(2246822519 + 2 * salt)
    mixed ^= mixed >> np.uint32(13)
    return (mixed % np.uint32(size)).astype(np.int32)
