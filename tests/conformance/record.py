"""Runs rows and prints what becomes of each: python -m tests.conformance.record [NAME …].

A row that trains as by `fit` has the largest difference of two arrays, relative to their largest value: from these the
tolerances are chosen.
"""

import gc
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.conformance import runner
from tests.conformance.rows import ROWS

DISTANCE = re.compile(r" differs by (\S+)$")


def main(words: list[str]) -> None:
    """Run the rows whose names contain a word."""
    gc.freeze()
    reference = runner.Reference()
    for name, row in ROWS.items():
        if row.is_trained and (not words or any(word in name for word in words)):
            with tempfile.TemporaryDirectory() as folder:
                print(f"{name}: {_outcome(name, Path(folder), reference)}", flush=True)
    reference.end()


def _outcome(name: str, folder: Path, reference: runner.Reference) -> str:
    row = ROWS[name]
    try:
        found = runner.outcome(replace(row, tolerance=0), name.replace(".", "_"), folder, reference)
    except runner.ReferenceError as error:
        return str(error)
    distances = [DISTANCE.search(each) for each in found.split("; ")] if found else []
    if not all(distances):
        return found
    largest = max((float(each[1]) for each in distances if each), default=0.0)
    return found if largest > row.tolerance else f"{largest:.0e}"


if __name__ == "__main__":
    main(sys.argv[1:])
