"""Large variables of a Keras model that take no memory until they are read as a whole.

Their memory is mapped, and a page that nobody has written is not there; it reads as zeros. The initial values are drawn
where the variable is kept: by the same initializer, whose function is found here.
"""

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from trainer.data.examples import Array
from trainer.models.op_template import OpTemplate, trace
from trainer.tensorflow import tf

BY_ELEMENT = ("RandomUniform", "RandomNormal", "TruncatedNormal", "Zeros", "Ones", "Constant")
"""Keras's initializers that draw each number for itself, so that a part of an array can be drawn alone."""


@dataclass(frozen=True)
class Draw:
    """Draws the initial values of a variable."""

    initializer: Any
    """Keras's."""

    def template(self, shape: tuple[int, ...], number: int = 0) -> OpTemplate:
        """The ops that draw part `number` of the values, float32 [*shape].

        Part 0 with the shape of the variable is what Keras gives it.
        """
        configuration = self.initializer.get_config()
        if hasattr(self.initializer, "seed"):
            configuration["seed"] = self.initializer.seed + number
        part = type(self.initializer).from_config(configuration)
        return trace(lambda: [part(shape, "float32")])


class LargeVariables:
    """The large variables that are made within `found`."""

    def __init__(self) -> None:
        self._draws: dict[int, Draw] = {}
        self._memory: dict[int, Array] = {}

    @contextlib.contextmanager
    def filled_when_read(self) -> Iterator[None]:
        """Within it, a large variable whose values are read gets them, as by a file that copies its weights."""
        from trainer.models.keras_private import Variable

        original = Variable.value

        def value(variable: Any) -> Any:
            if tf.executing_eagerly():
                self.fill(variable)
            return original.fget(variable)

        with mock.patch.object(Variable, "value", property(value)):
            yield

    @contextlib.contextmanager
    def found(self, rows: int) -> Iterator[None]:
        """Within it, matrices of float32 with at least this many rows take no memory."""
        import keras

        from trainer.models.keras_private import Variable

        original = Variable._initialize_with_initializer
        known = tuple(getattr(keras.initializers, name) for name in BY_ELEMENT)

        def initialize(variable: Any, initializer: Any) -> None:
            shape = tuple(variable.shape)
            is_large = len(shape) == 2 and shape[0] >= rows and variable.dtype == "float32"
            is_known = type(initializer) in known and isinstance(getattr(initializer, "seed", 0), int)
            if not (is_large and is_known and tf.executing_eagerly()):
                original(variable, initializer)
                return
            memory = np.frombuffer(mmap.mmap(-1, 4 * shape[0] * shape[1]), np.float32).reshape(shape)
            variable._initialize(tf.experimental.dlpack.from_dlpack(memory.__dlpack__()))
            self._draws[id(variable)], self._memory[id(variable)] = Draw(initializer), memory

        with mock.patch.object(Variable, "_initialize_with_initializer", initialize):
            yield

    def draw_of(self, variable: Any) -> Draw | None:
        """What draws the values of a variable; None if it has its values, from an initializer or from an assignment."""
        memory = self._memory.get(id(variable))
        if memory is None:
            return None
        now = np.from_dlpack(variable._value.read_value())
        return self._draws[id(variable)] if now.ctypes.data == memory.ctypes.data else None

    def fill(self, variable: Any) -> None:
        """Give a variable its values, if it lacks them."""
        if draw := self.draw_of(variable):
            variable.assign(draw.initializer(tuple(variable.shape), "float32"))
        self._memory.pop(id(variable), None)
