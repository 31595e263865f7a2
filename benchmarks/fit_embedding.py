"""`keras.Model.fit` in one process on the model of embedding.py: prints its rate in steps/s as a line of JSON.

The rate is that of as many steps as fit into MAX_SECONDS, without the first.
"""

import argparse
import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras

from benchmarks import embedding

MAX_SECONDS = 20.0


class Stopwatch(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training after a number of steps, or after MAX_SECONDS."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._wanted, self._steps, self._begin, self._end = steps, 0, 0.0, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step."""
        self._end = time.monotonic()
        self._begin = self._begin or self._end
        self._steps += 1
        self.model.stop_training = self._steps > self._wanted or self._end > self._begin + MAX_SECONDS

    @property
    def rate(self) -> float:
        """Steps a second."""
        return (self._steps - 1) / (self._end - self._begin)


def main() -> None:
    """Train, and print the rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_steps", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=100)
    arguments = parser.parse_args()
    ids, labels = embedding.train_data(None)
    stopwatch = Stopwatch(arguments.train_steps)
    examples = arguments.batch_size * (len(ids) // arguments.batch_size)
    embedding.model().fit(
        ids[:examples],
        labels[:examples],
        batch_size=arguments.batch_size,
        epochs=10**6,
        verbose=0,
        callbacks=[stopwatch],
    )
    print(json.dumps({"rate": stopwatch.rate}), flush=True)


if __name__ == "__main__":
    main()
