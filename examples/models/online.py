"""Clicks that arrive in a folder while the run trains: a stream that never ends.

Files NAME.npz of the folder `data_dir` have the arrays user, int64 [n], item, texts [n], and clicked, float32 [n].
Write a file under another name, and rename it when it is complete. Each is read once, in the order of their names. The
run begins with the first one.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import growing
import numpy as np

BATCH, SECONDS = 100, 0.2


def train_data(context: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Batches of the files as they arrive; of n replicas, each reads every n-th file."""
    done: set[str] = set()
    while True:
        names = sorted({file.name for file in Path(context.data_dir).glob("*.npz")} - done)
        for name in names:
            if len(done) % context.replicas == context.replica:
                with np.load(Path(context.data_dir, name)) as events:
                    arrays = events["user"], events["item"].astype(object), events["clicked"]
                for start in range(0, len(arrays[0]), BATCH):
                    user, item, clicked = (each[start : start + BATCH] for each in arrays)
                    yield {"user": user, "item": item}, clicked[:, None]
            done.add(name)
        if not names:
            if not done:
                print(f"waiting for the first file in {context.data_dir}", flush=True)
            time.sleep(SECONDS if done else 10 * SECONDS)


def test_data(context: Any) -> tuple[dict[str, Any], Any]:
    """Clicks of the first day. How good a stream is, its events tell before it learns them."""
    return growing.clicks(0, 1_000_000, 2_000)


model = growing.model
