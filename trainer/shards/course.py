"""The course of a run: where steps of the present size have begun in its data, and its last step.

The chief determines it when it begins or continues the run. Each replica reads it, and each checkpoint has it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.epochs import START, Epochs, Position
from trainer.data.leases import MOST_RANGES
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Session, Tensor, Variable

STOP = 6
"""The index of the last fact in the array."""
NONE = Epochs(0, 0)
ENDLESS = 2**62
"""Where a run stops that goes on until all leases are done."""


@dataclass(frozen=True)
class Course:
    """The course of a run."""

    last_step: int
    epochs: Epochs | None = None
    """The epochs since steps of the present size have begun; None if an epoch is not known."""
    is_open: bool = False
    """Whether the run goes on after its last step until all leases are done, as replicas do not share each step."""

    @property
    def begun(self) -> Position:
        """Where steps of the present size have begun."""
        return self.epochs.begun if self.epochs else START

    @property
    def stop(self) -> int:
        """The global step at which the run ends, at the latest."""
        return ENDLESS if self.is_open else self.last_step

    @property
    def array(self) -> npt.NDArray[np.int64]:
        """int64 [7 + 3 * MOST_RANGES]."""
        epochs = self.epochs or NONE
        begun, found = epochs.begun, np.zeros(7 + 3 * MOST_RANGES, np.int64)
        facts = [self.last_step, epochs.examples, epochs.per_step, begun.step, begun.epoch, begun.taken, self.stop]
        numbers = [*facts, *(number for each in begun.missed for number in each)]
        found[: len(numbers)] = numbers
        return found

    @classmethod
    def of(cls, array: npt.NDArray[np.int64]) -> "Course":
        """The course with this `array`. An older version of the trainer has the first six numbers."""
        last_step, examples, per_step, step, epoch, taken, *more = array.tolist()
        ranges = zip(more[1::3], more[2::3], more[3::3], strict=True)
        missed = tuple(each for each in ranges if each[1] < each[2])
        epochs = Epochs(examples, per_step, Position(step, epoch, taken, missed)) if examples else None
        return cls(last_step, epochs, bool(more) and more[0] != last_step)


class SharedCourse:
    """The course of a run in its variables."""

    def __init__(self, train_steps: int) -> None:
        """Add the variable to the default graph, on the current device. Its last step is `train_steps` at first."""
        self.variable: Variable = tf1.get_variable(
            "course", initializer=Course(train_steps).array, trainable=False, use_resource=True
        )
        self._value = self.variable.read_value()
        self.stop_now = self.stop()
        """The value of `stop`."""

    def last_step(self) -> Tensor:
        """Add the last step: an int64 scalar."""
        return self.variable.read_value()[0]

    def stop(self) -> Tensor:
        """Add the global step at which replicas stop to wait for each other, at the latest: an int64 scalar."""
        return self.variable.read_value()[STOP]

    def open(self, is_wanted: Tensor | bool, global_step: Tensor) -> Operation:
        """Add the op that lets the run go on until all leases are done, if that is wanted and the run has not ended."""
        stop = self.stop()
        opened = tf.where(tf.logical_and(is_wanted, global_step < stop), tf.constant(ENDLESS, tf.int64), stop)
        return tf.raw_ops.ResourceScatterUpdate(resource=self.variable.handle, indices=STOP, updates=opened)

    def read(self, session: Session) -> Course:
        """Read the course."""
        return Course.of(session.run(self._value))

    def write(self, session: Session, course: Course) -> None:
        """Set the course."""
        session.run(self.variable.initializer, {self.variable.initial_value: course.array})
