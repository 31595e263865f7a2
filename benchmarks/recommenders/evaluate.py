"""Evaluate snapshots of the weights on all held-out examples: one program for every program's snapshots.

Prints a line of JSON: for each file N.npz its examples and its figure. That is the AUC of clicks, the recall@10 of two
towers over all items that occur, or the root of the mean squared error of ratings.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np

from benchmarks.recommenders import networks, records
from benchmarks.recommenders.auc import auc
from benchmarks.recommenders.work import Given, given

BEST = 10
"""Items that a user is shown."""


def main() -> None:
    """Evaluate what the folder of snapshots has."""
    mine = given()
    about = records.read_about(mine.examples)
    network = networks.build(mine.work, about.form)
    figures = []
    for examples, arrays in _snapshots(mine.snapshots):
        for variable in network.weights:
            variable.assign(arrays[variable.path])
        figures.append([examples, _figure(mine, about, network)])
    print(json.dumps(figures), flush=True)


def recall(users: Any, items: Any, taken: Any, seen: list[Any]) -> float:
    """The share of the users whose item is among the best that they have not seen.

    Args:
        users: Their vectors, [n, d].
        items: The vectors of all items, [m, d].
        taken: The number of the item of each user, [n].
        seen: For each user the numbers of the items seen before.
    """
    scores = users @ items.T
    for row, numbers in zip(scores, seen, strict=True):
        row[numbers] = -np.inf
    own = scores[np.arange(len(taken)), taken]
    return float(((scores > own[:, None]).sum(axis=1) < BEST).mean())


def _figure(mine: Given, about: records.About, network: Any) -> float:
    form = about.form
    rows = records.read(mine.examples / records.TEST, form)
    inputs, targets = form.inputs(rows), form.targets(rows)
    if mine.work.model == "two_towers":
        train = form.inputs(records.read(mine.examples / records.TRAIN, form))
        numbers = np.unique(np.concatenate([train["item"], inputs["item"]]))
        items = _outputs(network, {"user": np.zeros_like(numbers), "item": numbers})[:, 1]
        users = _outputs(network, {name: inputs[name] for name in ("user", "item")})[:, 0]
        place = np.searchsorted(numbers, train["item"])
        seen = [
            np.setdiff1d(place[train["user"] == user], np.searchsorted(numbers, item))
            for user, item in zip(inputs["user"], inputs["item"], strict=True)
        ]
        return recall(users, items, np.searchsorted(numbers, inputs["item"]), seen)
    outputs = _outputs(network, {name: inputs[name] for name in networks.names_of(network)})
    if mine.work.model == "factorization":
        return float(np.sqrt(np.mean((np.clip(outputs, 1, 5) - targets) ** 2)))
    return auc(targets, outputs)


def _outputs(network: Any, inputs: Mapping[str, Any]) -> Any:
    return network.predict({name: np.array(each) for name, each in inputs.items()}, batch_size=8192, verbose=0)


def _snapshots(folder: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for file in sorted(folder.glob("*.npz"), key=lambda each: int(each.stem)):
        with np.load(file) as arrays:
            yield int(file.stem), arrays


if __name__ == "__main__":
    main()
