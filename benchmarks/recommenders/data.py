"""The examples by name, which are made when a run needs them first."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.recommenders import click_log, criteo, movielens
from benchmarks.recommenders.click_log import Law
from benchmarks.recommenders.records import About, Form, read_about

SIZES = {"user": 300_000, "item": 200_000, "place": 100_000}
"""Those of examples/models/dlrm.py."""
CLICKS, CLICKS_FREQUENT = "clicks, Zipf 1.05", "clicks, Zipf 1.2"
HISTORIES, PAIRS = "clicks with histories", "users and items"
TOWERS, RATINGS = "MovieLens-100k, last items", "MovieLens-100k, ratings"
CRITEO = "Criteo's format"
LAWS = {
    CLICKS: Law(Form(4, SIZES), 1.05),
    CLICKS_FREQUENT: Law(Form(4, SIZES), 1.2),
    HISTORIES: Law(Form(0, SIZES, history=20), 1.05),
    PAIRS: Law(Form(0, SIZES | {"user": 100_000}), 1.05, popularity=True),
}


@dataclass
class Examples:
    """The folders of the examples, below one folder."""

    folder: Path
    counts: dict[str, int]
    """Examples to train on by name, of those that this benchmark makes."""
    criteo_file: Path | None = None
    held_out: int = 2 * click_log.CHUNK

    def folder_of(self, name: str) -> Path:
        """The folder of these examples.

        Raises:
            CriteoError: Criteo's file is not as it should be.
            FailedError: MovieLens-100k cannot be had.
        """
        folder = self.folder / name.replace(" ", "_").replace("'", "")
        if (folder / "about.json").exists():
            return folder
        if name == TOWERS:
            movielens.make_towers(folder)
        elif name == RATINGS:
            movielens.make_ratings(folder)
        elif name == CRITEO:
            criteo.make(folder, self.criteo_file, self.counts[name], min(self.held_out, self.counts[name]))
        else:
            click_log.make(folder, LAWS[name], self.counts[name], self.held_out)
        return folder

    def about(self, name: str) -> About:
        """What these examples are."""
        return read_about(self.folder_of(name))
