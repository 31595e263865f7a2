"""The course of a run: where steps of the present size have begun in its data, and its last step.

The chief determines it when it begins or continues the run. Each replica reads it, and each checkpoint has it.
"""

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.epochs import START, Epochs, Position
from trainer.tensorflow import tf1
from trainer.tensorflow_types import Session, Tensor, Variable

NONE = Epochs(0, 0)


@dataclass(frozen=True)
class Course:
    """The course of a run."""

    last_step: int
    epochs: Epochs | None = None
    """The epochs since steps of the present size have begun; None if an epoch is not known."""

    @property
    def begun(self) -> Position:
        """Where steps of the present size have begun."""
        return self.epochs.begun if self.epochs else START

    @property
    def array(self) -> npt.NDArray[np.int64]:
        """int64 [6]."""
        epochs = self.epochs or NONE
        return np.array([self.last_step, epochs.examples, epochs.per_step, *astuple(epochs.begun)], np.int64)

    @classmethod
    def of(cls, array: npt.NDArray[np.int64]) -> "Course":
        """The course with this `array`."""
        last_step, examples, per_step, *begun = map(int, array)
        return cls(last_step, Epochs(examples, per_step, Position(*begun)) if examples else None)


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
