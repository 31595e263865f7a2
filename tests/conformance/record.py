"""Runs rows and prints what becomes of each: python -m tests.conformance.record [NAME …]."""

import gc
import sys
import tempfile
import time
from pathlib import Path

from tests.conformance import runner
from tests.conformance.rows import ROWS


def main(words: list[str]) -> None:
    """Run the rows whose names contain a word."""
    gc.freeze()
    reference = runner.Reference()
    for name, row in ROWS.items():
        if not row.is_trained or (words and not any(word in name for word in words)):
            continue
        folder, began = Path(tempfile.mkdtemp()), time.process_time()
        try:
            outcome = runner.outcome(row, name.replace(".", "_"), folder, reference)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        print(f"{name} ({time.process_time() - began:.1f} s): {outcome}", flush=True)
    reference.end()


if __name__ == "__main__":
    main(sys.argv[1:])
