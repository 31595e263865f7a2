"""The course of a run: where steps of the present size have begun in its data, and its last step.

The chief determines it when it begins or continues the run. Each replica reads it, and each checkpoint has it.
"""

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.epochs import START, Position
from trainer.tensorflow import tf1
from trainer.tensorflow_types import Session, Tensor, Variable


@dataclass(frozen=True)
class Course:
    """The course of a run."""

    last_step: int
    begun: Position = START
    """Where steps of the present size have begun."""
    per_step: int = 0
    """The examples of a step; 0 if that is not known."""

    @property
    def array(self) -> npt.NDArray[np.int64]:
        """int64 [5]."""
        return np.array([self.last_step, *astuple(self.begun), self.per_step], np.int64)

    @classmethod
    def of(cls, array: npt.NDArray[np.int64]) -> "Course":
        """The course with this `array`."""
        last_step, step, epoch, taken, per_step = map(int, array)
        return cls(last_step, Position(step, epoch, taken), per_step)


class SharedCourse:
    """The course of a run in its variables."""

    def __init__(self, train_steps: int) -> None:
        """Add the variable to the default graph, on the current device. Its last step is `train_steps` at first."""
        self.variable: Variable = tf1.get_variable(
            "course", initializer=Course(train_steps).array, trainable=False, use_resource=True
        )
        self._value = self.variable.read_value()

    def last_step(self) -> Tensor:
        """Add the last step: an int64 scalar."""
        return self.variable.read_value()[0]

    def read(self, session: Session) -> Course:
        """Read the course."""
        return Course.of(session.run(self._value))

    def write(self, session: Session, course: Course) -> None:
        """Set the course."""
        session.run(self.variable.initializer, {self.variable.initial_value: course.array})
