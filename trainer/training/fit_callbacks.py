"""Keras's callbacks on the chief: their hooks for the run, for epochs and for batches, with the weights and the logs.

What a callback sets comes back: `model.stop_training`, the learning rate, and the values of variables.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.checkpoint.score import Score
from trainer.data.epochs import Epochs, Position
from trainer.data.examples import Array
from trainer.errors import ConfigurationError, ModelError
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.graph.totals import Totals
from trainer.models.keras_model import KerasModel
from trainer.tensorflow.private import eager_mode
from trainer.text.reasons import reason
from trainer.training import batch_hooks, callback_state
from trainer.training.callback_state import CallbackState
from trainer.training.outcome import Outcome

logger = logging.getLogger(__name__)

Vector = npt.NDArray[np.float32]


class FitCallbacks:
    """The callbacks of a run, in the process of its chief. A context manager that closes the evaluator."""

    def __init__(
        self,
        name: str,
        callbacks: Sequence[Any],
        model: KerasModel,
        make_evaluator: Callable[[], CheckpointEvaluator],
    ) -> None:
        """Take the callbacks of a model file.

        Args:
            name: The model's file, for errors.
            callbacks: Keras's callbacks.
            model: The model, which gets the weights of a checkpoint at the end of each epoch.
            make_evaluator: Makes what scores the checkpoints.

        Raises:
            ConfigurationError: the optimizer's learning rate is 0.
        """
        self._name, self._model, self._make_evaluator = name, model, make_evaluator
        self._callbacks = [each for each in callbacks if type(each).__name__ not in batch_hooks.LEFT_OUT]
        for each in callbacks:
            if why := batch_hooks.LEFT_OUT.get(type(each).__name__):
                logger.info(f"the callback {type(each).__name__} is left out: {why}")
        self._with_hooks = batch_hooks.with_hooks(self._callbacks)
        self._list: Any = None
        """Keras's list of the callbacks; None before the run."""
        self._evaluator: CheckpointEvaluator | None = None
        self._initial_rate = self._rate()
        if self._initial_rate == 0:
            raise ConfigurationError(
                f"model={name}: compile() has learning_rate=0, which callbacks cannot multiply; set another."
            )
        self._epochs: Epochs | None = None
        """Those of the present session."""
        self._count = self._epoch = 0
        self._ended = -1
        """The last epoch whose end the callbacks know. After the loss of a parameter server it may be trained again."""
        self._outcomes: list[Outcome] = []
        """The executions of the present epoch."""
        self._begun: list[dict[str, Any]] = []
        """The attributes of the callbacks when the run has begun."""
        self._state: CallbackState | None = None
        """That of an earlier process, from which the run continues."""
        self.owes_end = False
        """Whether an earlier process has saved the end of an epoch, and the callbacks do not know it yet."""

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
        if self._state and not self._list:
            return self._state.rate
        rate = self._rate()
        return 1.0 if rate is None or not self._initial_rate else rate / self._initial_rate

    @property
    def has_batch_hooks(self) -> bool:
        """Whether a callback has hooks for batches."""
        return bool(self._with_hooks)

    @property
    def hooks_need_values(self) -> bool:
        """Whether these hooks may read the weights."""
        return batch_hooks.interval(self._callbacks) is not None

    @property
    def averages(self) -> bool:
        """Whether the callbacks see moving averages of the weights at the end of an epoch."""
        return bool(self._model.optimizer and self._model.optimizer.use_ema)

    def restore(self, state: CallbackState | None) -> None:
        """Continue from the state of an earlier process, if there is one. Later calls change nothing."""
        if not self._list:
            self._state = state

    def state(self, step: int) -> CallbackState:
        """The state of the callbacks at this global step."""
        kinds = [type(each).__name__ for each in self._callbacks]
        values = callback_state.changed(self._callbacks, self._begun or callback_state.attributes(self._callbacks))
        arrays = callback_state.arrays_of(self._callbacks)
        return CallbackState(step, self._ended, self.rate_factor, self.is_over, kinds, values, arrays)

    def begin(self, step: int, last_step: int, epochs: Epochs, values: Mapping[str, Array]) -> dict[str, Array]:
        """Begin or continue the run.

        Args:
            step: The global step.
            last_step: That at the end of the run.
            epochs: The epochs of the run from now on.
            values: The values of the parameters but for tables.

        Returns:
            By how much the callbacks have changed parameters, by name.

        Raises:
            ModelError: a callback failed.
        """
        self._epochs, self._count = epochs, epochs.at(last_step - 1).epoch + 1
        self._outcomes, self._epoch = [], epochs.at(step).epoch
        if self._list:  # another session of the same run, whose checkpoint may be older than what callbacks have set
            return self._model.arrays.outer_changes(values)
        import keras

        state = self._state
        with self._changes(values) as changes:
            with self._errors("on_train_begin"):
                if state:
                    callback_state.append_logs(self._callbacks, state)
                self._list = keras.callbacks.CallbackList(self._callbacks, add_history=False, add_progbar=False)
                self._list.set_params({"epochs": self._count, "steps": epochs.steps, "verbose": 0})
                self._model.network.stop_training = False
                self._list.set_model(self._model.network)
                self._list.on_train_begin()
            self._begun = callback_state.attributes(self._callbacks)
            if state:
                self._continue(state)
            at = epochs.at(step)
            if state and at.epoch and not at.taken and self._ended < at.epoch - 1 and not self.is_over:
                self._epoch, self.owes_end = at.epoch - 1, True
            elif state and any(epoch < at.epoch for epoch, _, _ in at.missed):
                self._epoch = min(at.epoch, self._ended + 1)
            else:
                with self._errors("on_epoch_begin"):
                    self._list.on_epoch_begin(self._epoch)
        return changes

    def _continue(self, state: CallbackState) -> None:
        callback_state.restore(self._callbacks, state)
        self._ended = state.ended
        self._model.network.stop_training = state.is_over
        if self._initial_rate and state.rate != self.rate_factor:
            with eager_mode():
                self._model.optimizer.learning_rate = self._initial_rate * state.rate

    def begin_batches(self, step: int) -> dict[str, Array]:
        """Call the hooks before an execution at this global step; return what they have changed.

        Raises:
            ModelError: a callback failed.
        """
        with self._batch_changes({}) as changes, self._errors("on_train_batch_begin"):
            for each in self._with_hooks:
                each.on_train_batch_begin(self._batch(step), {})
        return changes

    def add(self, outcome: Outcome) -> None:
        """Count an execution."""
        self._outcomes.append(outcome)

    def has_ended_epoch(self, step: int) -> bool:
        """Whether the epoch has ended at this global step, whose hooks have not been called."""
        return self._at(step).epoch > self._epoch

    def end_batches(self, step: int, values: Mapping[str, Array], vector: Vector, totals: Totals) -> dict[str, Array]:
        """Call the hooks after an execution that has led to this global step; the others are as those of `end_epoch`.

        Raises:
            ModelError: a callback failed.
        """
        logs = self._logs(vector, totals)
        with self._batch_changes(values) as changes, self._errors("on_train_batch_end"):
            for each in self._with_hooks:
                each.on_train_batch_end(self._batch(step - 1), dict(logs))
        return changes

    def skip_epoch(self, step: int) -> None:
        """Go on to the epoch of this global step without the hooks, as there is no checkpoint."""
        self._outcomes, self._epoch = [], self._at(step).epoch

    def end_epoch(
        self, step: int, checkpoint: str, vector: Vector, totals: Totals, raw: Mapping[str, Array] | None = None
    ) -> tuple[Score, dict[str, Array]]:
        """End the epoch, and begin the next one, with a checkpoint of this global step.

        The logs have the loss and the metrics of the epoch, and those of the held-out split as `val_…`.

        Args:
            step: The global step.
            checkpoint: That of this step.
            vector: The totals of the epoch.
            totals: What they are.
            raw: The values of the parameters, if those of the checkpoint that callbacks see are averages.

        Returns:
            The score of the checkpoint; and by how much the callbacks have changed parameters, by name.

        Raises:
            ModelError: a callback failed.
            Exception: one of UNREADABLE.
        """
        evaluator = self._open_evaluator()
        score = evaluator.score(checkpoint)
        logs = self._logs(vector, totals)
        held_out = {"loss": score.loss, **score.metrics}
        epoch = max(self._epoch, self._at(step).epoch - 1)  # a callback may end the run within an epoch
        self._outcomes, self._epoch, self.owes_end = [], epoch + 1, False
        if epoch <= self._ended:
            return score, {}
        self._ended = epoch
        with self._changes(evaluator.values(), raw) as changes:
            with self._errors("on_test_end"):
                self._list.on_test_begin()
                self._list.on_test_end(dict(held_out))
            with self._errors("on_epoch_end"):
                self._list.on_epoch_end(epoch, logs | {f"val_{name}": value for name, value in held_out.items()})
            if not self.is_over and self._epoch < self._count:
                with self._errors("on_epoch_begin"):
                    self._list.on_epoch_begin(self._epoch)
        return score, changes

    @property
    def lacks_epochs(self) -> bool:
        """Whether there are epochs whose ends the callbacks do not know."""
        return self._epoch < self._count

    @property
    def is_within_epoch(self) -> bool:
        """Whether steps were taken since the last epoch ended."""
        return bool(self._outcomes)

    def end(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """End the run, with these values of the parameters but for tables; return what the callbacks have changed.

        Raises:
            ModelError: a callback failed.
        """
        with self._changes(values) as changes, self._errors("on_train_end"):
            self._list.on_train_end()
        return changes

    def _at(self, step: int) -> Position:
        assert self._epochs  # noqa: S101 - the run has begun
        return self._epochs.at(step)

    def _batch(self, step: int) -> int:
        """The number in its epoch of the step after this one."""
        assert self._epochs  # noqa: S101 - the run has begun
        return self._epochs.at(step).taken // self._epochs.per_step

    def _logs(self, vector: Vector, totals: Totals) -> dict[str, float]:
        """The loss and the metrics of the epoch so far, as `fit` gives them.

        Those that no metric of the model gives, as an own `train_step` may return, are those of the last execution.
        """
        counts, loss, examples = totals.parse(vector)
        logs: dict[str, float] = {}
        if self._outcomes:
            logs = {"loss": self._outcomes[-1].loss, **self._outcomes[-1].metrics}
        if examples and not (totals.is_running and self._model.has_own_step):
            logs["loss"] = loss
        if totals.no_counts and not (totals.is_running and self._outcomes):
            measured = self._open_evaluator().measure(counts)
            logs |= {name: each for name, each in measured.items() if name not in self._model.only_evaluated}
        return logs

    def _open_evaluator(self) -> CheckpointEvaluator:
        self._evaluator = self._evaluator or self._make_evaluator()
        return self._evaluator

    def _batch_changes(self, values: Mapping[str, Array]) -> contextlib.AbstractContextManager[dict[str, Array]]:
        """As `_changes`, for hooks of batches; nothing if these need no values."""
        return self._changes(values) if self.hooks_need_values else contextlib.nullcontext({})

    @contextlib.contextmanager
    def _changes(
        self, values: Mapping[str, Array], raw: Mapping[str, Array] | None = None
    ) -> Iterator[dict[str, Array]]:
        """Give the model these values, let callbacks follow, and find by how much they have changed them, or `raw`.

        Tables, of which there may be more than the memory has twice, are not compared.
        """
        self._model.arrays.assign(values)
        before = self._model.arrays.dense_values()
        changes: dict[str, Array] = {}
        yield changes
        for name, after in self._model.arrays.dense_values().items():
            if not np.array_equal(after, before[name], equal_nan=True):
                changes[name] = after - (raw or before)[name]

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
