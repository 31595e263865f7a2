"""MovieLens-100k, 100,000 ratings, from the wheel of `recbole`, which ships it. The wheel stays in the user's cache."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.processes import FailedError
from benchmarks.recommenders.records import About, Form, write

CACHE = Path.home() / ".cache" / "distributed-tensorflow" / "benchmarks" / "movielens"
PACKAGE, FILE = "recbole", "recbole/dataset_example/ml-100k/ml-100k.inter"
USERS, ITEMS = 944, 1683
"""One more than there are: they are numbered from 1."""
TOWERS = {"user": 100_000, "item": 200_000}
"""The tables of examples/models/two_towers.py, of which few rows are used."""
EPOCHS = {"two_towers": 20, "factorization": 12}


def ratings() -> np.ndarray:
    """Users, items, ratings and times, float64 [100000, 4].

    Raises:
        FailedError: the package cannot be had.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    if not list(CACHE.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FailedError(
                f"MovieLens-100k: pip cannot download {PACKAGE}: {done.stderr.strip()[-300:]}; check the package index "
                "of `pip config list`, or run other --sections."
            )
    with zipfile.ZipFile(next(CACHE.glob("*.whl"))) as wheel, wheel.open(FILE) as file:
        return np.loadtxt(file, skiprows=1)


def make_towers(folder: Path) -> None:
    """Who took what: the last item of each user is held out. The target is the logarithm of the item's popularity."""
    found = ratings()
    found = found[np.lexsort((found[:, 3], found[:, 0]))]
    is_last = np.append(found[1:, 0] != found[:-1, 0], True)
    counts = np.bincount(found[~is_last, 1].astype(int), minlength=ITEMS)
    _write(
        folder, Form(0, TOWERS), found, np.log(np.maximum(counts, 1) / counts.sum())[found[:, 1].astype(int)], is_last
    )


def make_ratings(folder: Path) -> None:
    """Ratings from 1 to 5, of which a tenth, drawn at random, is held out."""
    found = ratings()
    is_held_out = np.random.default_rng(0).random(len(found)) < 0.1
    _write(folder, Form(0, {"user": USERS, "item": ITEMS}), found, found[:, 2], is_held_out)


def _write(folder: Path, form: Form, found: np.ndarray, targets: np.ndarray, is_held_out: np.ndarray) -> None:
    ids = {"user": found[:, 0], "item": found[:, 1]}
    rows = form.rows(targets, np.empty((len(found), 0)), ids)
    train = np.random.default_rng(1).permutation(rows[~is_held_out])
    write(folder, About(form), [train], [rows[is_held_out]])
