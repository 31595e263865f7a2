"""Keras's callbacks on the chief: their hooks for the run and for each epoch, with the model's weights and the logs.

The hooks for batches are not called. What a callback sets comes back: `model.stop_training`, and the learning rate.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainer.errors import ConfigurationError, ModelError
from trainer.models.keras_model import KerasModel
from trainer.run_directory.evaluation import CheckpointEvaluator, Score
from trainer.tensorflow.private import eager_mode
from trainer.text.reasons import reason
from trainer.training.outcome import Outcome


class FitCallbacks:
    """The callbacks of a run, in the process of its chief. A context manager that closes the evaluator."""

    def __init__(
        self,
        name: str,
        callbacks: Sequence[Any],
        model: KerasModel,
        make_evaluator: Callable[[], CheckpointEvaluator],
        steps_per_epoch: int,
        epochs: int,
    ) -> None:
        """Take the callbacks of a model file.

        Args:
            name: The model's file, for errors.
            callbacks: Keras's callbacks.
            model: The model, which gets the weights of a checkpoint at the end of each epoch.
            make_evaluator: Makes what scores the checkpoints.
            steps_per_epoch: Global steps.
            epochs: The epochs of the whole run.

        Raises:
            ConfigurationError: the optimizer's learning rate is 0.
        """
        self._name, self._callbacks, self._model, self._make_evaluator = name, callbacks, model, make_evaluator
        self._steps, self._epochs = steps_per_epoch, epochs
        self._list: Any = None
        """Keras's list of the callbacks; None before the run."""
        self._evaluator: CheckpointEvaluator | None = None
        self._initial_rate = self._rate()
        if self._initial_rate == 0:
            raise ConfigurationError(
                f"model={name}: compile() has learning_rate=0, which callbacks cannot multiply; set another."
            )
        self._epoch = 0
        self._outcomes: list[Outcome] = []
        """The executions of the present epoch."""

    def __enter__(self) -> "FitCallbacks":
        return self

    def __exit__(self, *error: object) -> None:
        if self._evaluator:
            self._evaluator.__exit__(*error)

    @property
    def is_over(self) -> bool:
        """Whether a callback has stopped the training."""
        return bool(self._list and self._model.network.stop_training)

    @property
    def rate_factor(self) -> float:
        """The learning rate in relation to that of compile()."""
        rate = self._rate()
        return 1.0 if rate is None or not self._initial_rate else rate / self._initial_rate

    def begin(self, step: int) -> None:
        """Begin or continue the run at this global step.

        Raises:
            ModelError: a callback failed.
        """
        self._epoch = step // self._steps
        if self._list:  # another session of the same run
            return
        import keras

        with self._errors("on_train_begin"):
            self._list = keras.callbacks.CallbackList(self._callbacks, add_history=False, add_progbar=False)
            self._list.set_params({"epochs": self._epochs, "steps": self._steps, "verbose": 0})
            self._model.network.stop_training = False
            self._list.set_model(self._model.network)
            self._list.on_train_begin()
        with self._errors("on_epoch_begin"):
            self._list.on_epoch_begin(self._epoch)

    def add(self, outcome: Outcome) -> bool:
        """Count an execution; return whether it ends an epoch."""
        self._outcomes.append(outcome)
        return outcome.step // self._steps > self._epoch

    def skip_epoch(self, step: int) -> None:
        """Go on to the epoch of this global step without the hooks, as there is no checkpoint."""
        self._outcomes, self._epoch = [], step // self._steps

    def end_epoch(self, step: int, checkpoint: str) -> Score:
        """End the epoch, and begin the next one, with a checkpoint of this global step; return its score.

        The logs have the mean loss and metrics of the executions, and those of the held-out split as `val_…`.

        Raises:
            ModelError: a callback failed.
            Exception: one of UNREADABLE.
        """
        self._evaluator = self._evaluator or self._make_evaluator()
        score = self._evaluator.score(checkpoint)
        measured = [{"loss": each.loss, **each.metrics} for each in self._outcomes]
        logs = {name: sum(each[name] for each in measured) / len(measured) for name in measured[0]}
        logs |= {f"val_{name}": value for name, value in {"loss": score.loss, **score.metrics}.items()}
        self._model.assign(self._evaluator.values())
        self._outcomes, epoch = [], step // self._steps - 1
        with self._errors("on_epoch_end"):
            self._list.on_epoch_end(epoch, logs)
        self._epoch = epoch + 1
        if not self.is_over and self._epoch < self._epochs:
            with self._errors("on_epoch_begin"):
                self._list.on_epoch_begin(self._epoch)
        return score

    def end(self) -> None:
        """End the run.

        Raises:
            ModelError: a callback failed.
        """
        if self._list:
            with self._errors("on_train_end"):
                self._list.on_train_end()

    def _rate(self) -> float | None:
        """The learning rate of the compiled optimizer; None if there is none, or it has a schedule."""
        import keras

        rate = getattr(self._model.optimizer, "_learning_rate", None)
        with eager_mode():
            return float(rate.numpy()) if isinstance(rate, keras.Variable) else None

    @contextlib.contextmanager
    def _errors(self, hook: str) -> Iterator[None]:
        """Run a hook in eager mode, and convert its exception to a ModelError."""
        with eager_mode():
            try:
                yield
            except Exception as error:
                what = f"model={self._name}: {hook}() of a callback failed"
                raise ModelError(f"{what}: {reason(error, self._name)}.") from error
