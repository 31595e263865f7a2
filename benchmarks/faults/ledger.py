"""The ledger of a run of `ledger_model`: how many examples were skipped, and how many were taken more than once.

    python -m benchmarks.faults.ledger TRAIN_DIR EPOCHS
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.checkpoint.files import CheckpointList
from trainer.checkpoint.table_files import StoredArrays


@dataclass(frozen=True)
class Ledger:
    """What a run has taken."""

    examples: int
    skipped: int
    """The times that examples were taken less than once an epoch."""
    repeated: int
    """The times that they were taken more often."""

    def __str__(self) -> str:
        return f"{self.examples:,} examples: skipped {self.skipped:,}, repeated {self.repeated:,}"


def read(train_dir: Path, epochs: int) -> Ledger:
    """The ledger of a run in this directory that has ended.

    Raises:
        LookupError: it has no checkpoint.
    """
    found = StoredArrays(CheckpointList(train_dir, keep=1).paths[-1])
    (name,) = (each for each in found.names if each.endswith("counts"))
    counts = np.rint(found.whole(name)).astype(np.int64)
    apart = counts - epochs
    return Ledger(len(counts), int(-apart[apart < 0].sum()), int(apart[apart > 0].sum()))


if __name__ == "__main__":
    print(read(Path(sys.argv[1]), int(sys.argv[2])))
