"""The rate of `keras.Model.fit`, by a callback that also ends the training."""

import time
from typing import Any

import keras

MAX_SECONDS = 20.0


class Stopwatch(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training after a number of steps, or after MAX_SECONDS; the `warmup` steps before do not count."""

    def __init__(self, steps: int, warmup: int = 1) -> None:
        super().__init__()
        self._last, self._warmup, self._steps, self._begin, self._end = steps + warmup, warmup, 0, 0.0, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step."""
        self._end = time.monotonic()
        self._steps += 1
        if self._steps == self._warmup:
            self._begin = self._end
        is_late = self._steps > self._warmup and self._end > self._begin + MAX_SECONDS
        self.model.stop_training = self._steps >= self._last or is_late

    @property
    def rate(self) -> float:
        """Steps a second."""
        return (self._steps - self._warmup) / (self._end - self._begin)
