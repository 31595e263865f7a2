"""`keras.Model.fit` in one process."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras

from benchmarks.recommenders import networks, records
from benchmarks.recommenders.progress import Progress
from benchmarks.recommenders.work import given


class Ticks(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the examples, and ends the training after the last one."""

    def __init__(self, progress: Progress, batch_size: int) -> None:
        super().__init__()
        self._progress, self._batch_size, self._steps = progress, batch_size, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step."""
        self._steps += 1
        self.model.stop_training = not self._progress.tick(self._steps * self._batch_size)


def main() -> None:
    """Train, and print the line."""
    mine = given()
    form = records.read_about(mine.examples).form
    network = networks.build(mine.work, form)
    size = mine.work.batch_size
    progress = Progress(mine.work, mine.snapshots, lambda: {each.path: each.numpy() for each in network.weights})
    dataset = records.dataset(mine.examples / records.TRAIN, form, networks.names_of(network), size).repeat()
    network.fit(dataset, steps_per_epoch=10**9, epochs=1, verbose=0, callbacks=[Ticks(progress, size)])
    progress.print()


if __name__ == "__main__":
    main()
