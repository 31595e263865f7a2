"""How well the queries of held-out examples find the candidates that they took, among all of a catalogue.

An example is a query with one candidate. The rank of that one is 1 + the candidates with a larger score + half of the
others with an equal one, so that a model that gives all candidates one vector finds nothing.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.catalogue import Catalogue
from trainer.data.examples import Array
from trainer.errors import ConfigurationError
from trainer.export import candidate_files
from trainer.models.towers import CANDIDATE, QUERY, Kind, Tower, Towers
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor
from trainer.text import as_text

logger = logging.getLogger(__name__)

RECALLED = (10, 100)
"""The numbers of candidates that are looked at for recall."""
NAMES = (*(f"recall_at_{each}" for each in RECALLED), f"ndcg_at_{RECALLED[0]}", "mrr")
BLOCK = 1 << 14
"""Candidates that are scored at a time."""
ROUNDING = 1e-6
"""Scores that differ by less than this share of the lengths of the vectors are equal."""
VECTORS = "vectors"
"""The output of a tower."""

Run = Callable[[Any, Mapping[Tensor, Any]], Any]
"""Computes tensors with these values of others."""


class Retrieval:
    """The towers and the ranks in the default graph, for the candidates of a catalogue."""

    def __init__(
        self, towers: Towers, catalogue: Catalogue, embed: Callable[[Kind, Mapping[str, Tensor]], Tensor]
    ) -> None:
        """Add the ops.

        Args:
            towers: Those of the model.
            catalogue: All candidates, as `fitted` returns it.
            embed: Adds the ops that give the vectors of a tower for these inputs by name.
        """
        self.catalogue = catalogue
        self._towers = towers
        self.inputs = {kind: placeholders(tower) for kind, tower in towers.items()}
        """The inputs of each tower, by name."""
        self.vectors = {
            kind: tf.identity(embed(kind, given), f"{kind}_{VECTORS}") for kind, given in self.inputs.items()
        }
        """What each tower gives, float32 [batch, dim]."""
        self.ids = comparable(catalogue.inputs[self.identifier])
        """What identifies the candidates, whole numbers or texts [n]."""
        self._order = np.argsort(self.ids, kind="stable")
        self._told = False
        """Whether the log says that the catalogue lacks a candidate."""
        dim = self.vectors[QUERY].shape[-1]
        self._query, self._own, self._block = (tf1.placeholder(tf.float32, [None, dim]) for _ in range(3))
        self._above, self._not_below = _counts(self._query, self._own, self._block)

    @property
    def identifier(self) -> str:
        """The input that identifies a candidate."""
        return self._towers[CANDIDATE].id

    def candidate_vectors(self, run: Run, size: int) -> npt.NDArray[np.float32]:
        """The vectors of all candidates, float32 [n, dim], computed in batches of a size."""
        found = []
        for start in range(0, len(self.catalogue), size):
            given = [each[start : start + size] for each in self.catalogue.inputs.values()]
            feeds = dict(zip(self.inputs[CANDIDATE].values(), given, strict=True))
            found.append(run(self.vectors[CANDIDATE], feeds))
        return np.concatenate(found)

    def ranker(self, run: Run, run_catalogue: Run, size: int) -> Callable[[Mapping[str, Array]], Array]:
        """A function of the inputs of examples, by name: the ranks of the candidates that they took.

        Args:
            run: Computes with examples.
            run_catalogue: Computes with candidates.
            size: The number of candidates in a batch.

        Returns:
            The function, which returns float64 [n], infinite where the catalogue lacks a candidate.
        """
        return functools.partial(self._ranks, run, self.candidate_vectors(run_catalogue, size))

    def _ranks(self, run: Run, candidates: npt.NDArray[np.float32], inputs: Mapping[str, Array]) -> Array:
        query = run(self.vectors[QUERY], {each: inputs[name] for name, each in self.inputs[QUERY].items()})
        taken = comparable(inputs[self.identifier])
        own, is_known = candidate_files.find(self.ids, self._order, taken)
        above, not_below = np.zeros(len(query)), np.zeros(len(query))
        feeds = {self._query: query, self._own: candidates[own]}
        for start in range(0, len(candidates), BLOCK):
            found = run((self._above, self._not_below), {**feeds, self._block: candidates[start : start + BLOCK]})
            above, not_below = above + found[0], not_below + found[1]
        if not is_known.all() and not self._told:
            self._told = True
            lacking = f"{self.identifier} {taken[~is_known][0]}"
            logger.warning(f"candidates() lacks {lacking} of a held-out example; such examples count as not found")
        with np.errstate(over="ignore", invalid="ignore"):
            is_found = is_known & np.isfinite((query * candidates[own]).sum(axis=1))  # not so if the model has diverged
        return np.where(is_found, np.maximum(1, 1 + (above + not_below - 1) / 2), np.inf)


def figures(ranks: Array) -> dict[str, float]:
    """Recall, normalised discounted cumulative gain, and mean reciprocal rank, of ranks [n], by their names."""
    first = RECALLED[0]
    gains = np.where(ranks <= first, 1 / np.log2(1 + ranks), 0.0)
    found = [*(float((ranks <= each).mean()) for each in RECALLED), float(gains.mean()), float((1 / ranks).mean())]
    return dict(zip(NAMES, found, strict=True))


def _counts(query: Tensor, own: Tensor, block: Tensor) -> Sequence[Tensor]:
    """How many candidates of a block have a larger score than a query's own one, and how many no smaller one: [n]."""
    with tf1.device("/device:CPU:0"):  # a GPU may round products to 10 bits
        scores, own_score = tf.matmul(query, block, transpose_b=True), tf.reduce_sum(query * own, axis=1, keepdims=True)
        margin = ROUNDING * tf.norm(query, axis=1, keepdims=True) * tf.norm(own, axis=1, keepdims=True)
        is_worse = scores < own_score - margin  # nothing is, if one of them is NaN
        return [
            tf.math.count_nonzero(~(scores <= own_score + margin), axis=1),
            tf.math.count_nonzero(~is_worse, axis=1),
        ]


def placeholders(tower: Tower) -> dict[str, Tensor]:
    """Add the inputs of a tower to the default graph."""
    return {name: tf1.placeholder(spec.dtype, [None, *spec.shape]) for name, spec in tower.inputs.items()}


def fitted(name: str, tower: Tower, catalogue: Catalogue) -> Catalogue:
    """A catalogue with the inputs of the candidate tower, in their order and types.

    Raises:
        ConfigurationError: it does not fit the tower, or has a candidate twice.
    """
    given, wanted = catalogue.inputs, tower.inputs
    if [*given] == [""] and len(wanted) == 1:
        given = {next(iter(wanted)): given[""]}
    elif [*given] == [""]:
        raise ConfigurationError(
            f"model={name}: candidates() returned one array, but the candidate tower takes {', '.join(wanted)}; return "
            "a dictionary of these."
        )
    problems = [f"has no {each}" for each in wanted if each not in given]
    problems += [f"has {each}, which the candidate tower does not take" for each in given if each not in wanted]
    for key, spec in wanted.items():
        if key not in given:
            continue
        shape, is_text = given[key].shape[1:], given[key].dtype == object
        fits = len(shape) == len(spec.shape) and all(
            each in (None, own) for own, each in zip(shape, spec.shape, strict=True)
        )
        if not fits or is_text != (spec.dtype == "string"):
            problems.append(f"gives {key} as {'text' if is_text else given[key].dtype} {list(shape)}, not {spec}")
    if problems:
        raise ConfigurationError(
            f"model={name}: candidates() {'; '.join(problems)}; return the inputs of the candidate tower by name: "
            f"{', '.join(wanted)}."
        )
    inputs = {key: given[key].astype(object if spec.dtype == "string" else spec.dtype) for key, spec in wanted.items()}
    for key, each in inputs.items():
        if each.dtype.kind in "iu" and not np.array_equal(each, given[key]):
            raise ConfigurationError(
                f"model={name}: candidates() gives {key} with values that {wanted[key].dtype} does not have; let the "
                "input of the candidate tower have a larger type."
            )
    ordered = np.sort(comparable(inputs[tower.id]))
    if len(twice := ordered[1:][ordered[1:] == ordered[:-1]]):
        raise ConfigurationError(
            f"model={name}: candidates() has {tower.id} {twice[0]} twice; return each candidate once."
        )
    return Catalogue(inputs, catalogue.names)


def comparable(ids: Array) -> Array:
    """What identifies candidates: whole numbers or texts [n], to sort and to search."""
    flat = ids.reshape(-1)
    if flat.dtype != object:
        return flat
    return np.array([as_text(each) for each in flat])
