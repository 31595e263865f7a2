"""Write the trainer's checkpoints as snapshots: a program of its own, because the trainer disables eager execution.

python -m benchmarks.recommenders.checkpoints FOLDER
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from benchmarks.recommenders.progress import save
from benchmarks.recommenders.work import given
from trainer.checkpoint import files
from trainer.checkpoint.table_files import StoredArrays


def main() -> None:
    """Write each checkpoint of the folder."""
    mine = given()
    for path in files.find(Path(sys.argv[1])):
        stored = StoredArrays(path)
        arrays = {name: stored.whole(name) for name in stored.names if not name.endswith("/accumulator")}
        save(mine.snapshots, files.step_of(path) * mine.work.examples_per_step, arrays)


if __name__ == "__main__":
    main()
