"""The model interface: named arrays, and what a step and a prediction compute from them.

A model is a Python file with a function that returns a Keras model (`trainer/models/keras_model.py`):

    def model(input_shape, classes) -> keras.Model

or, for models of plain ops, with two functions (see `trainer/models/mlp.py`, the shortest example):

    def parameters(image_shape, classes, hidden_units) -> dict[str, Parameter]
    def logits(parameters, images) -> tf.Tensor

The rest of the package sees the interface `Model`. A model does not depend on the cluster: `trainer.shards.parameters`
places the arrays, and `trainer.graph.replication` shares them between replicas.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainer.data.examples import Array, Signature
from trainer.tensorflow_types import Tensor

ACCURACY = "accuracy"
"""The metric by which the best checkpoint is chosen, where a model has it."""


@dataclass(frozen=True)
class Growth:
    """How a table grows whose rows are found by ids of 64 bits, and which of them leave."""

    admit_after: int
    """An id gets a row when it is read for the time with this number."""
    expire_after: int
    """A row leaves that was not read for so many steps, or seconds; 0: it does not."""
    in_seconds: bool
    """Whether these are seconds."""
    initializer: tuple[str, float, float]
    """"uniform" with its bounds, "normal" or "truncated" with mean and standard deviation, "constant" with a value."""
    seed: int
    """With the id, it determines the initial values of a row."""


@dataclass(frozen=True)
class Parameter:
    """A float32 array, initialized from a normal distribution truncated at two standard deviations."""

    shape: tuple[int, ...]
    stddev: float = 0.0
    """Standard deviation of the initial values; 0 initializes them to 0."""
    value: Any = field(default=None, compare=False, repr=False)
    """The initial values, float32 [*shape]; None draws them."""
    trainable: bool = True
    """Whether the optimizer updates it by gradients. Otherwise steps set it themselves, such as a moving average."""
    decays: bool = True
    """Whether the weight decay of a compiled optimizer applies to it."""
    constraint: Any = field(default=None, compare=False)
    """A function of its values that each update ends with, such as Keras's `NonNeg`."""
    draw: Any = field(default=None, compare=False, repr=False)
    """The `Draw` of the initial values, where `value` is None; None draws them from the normal distribution."""
    is_table: bool = False
    """Whether a step reads and changes only some of its rows, so that a large one can stay on the parameter servers."""
    growth: Growth | None = None
    """Of a table whose rows are found by ids of 64 bits, and of which `shape` has the most rows; else None."""


@dataclass(frozen=True)
class Gather:
    """A lookup in a table."""

    ids: Tensor
    """Whole numbers [*shape]: the rows, or the ids of a table that grows. No parameter and no random number determines
    them."""
    rows: Tensor
    """[*shape, dim]: the output of the op that reads them, float32 or of the type in which the model computes."""
    gradient: Tensor
    """[*shape, dim], of the same type: the gradient of the loss by them."""


@dataclass(frozen=True)
class StepTensors:
    """What a step computes from one batch."""

    loss: Tensor
    """float32 scalar."""
    metrics: Mapping[str, Tensor]
    """float32 scalars by name, such as accuracy."""
    changes: Mapping[str, Tensor]
    """For each array, its gradient, or for an array that is not trainable the difference to add."""
    gathers: Mapping[str, Sequence[Gather]] = field(default_factory=dict)
    """For each table, which has no gradient in `changes`, the lookups in it."""
    counts: Sequence[Tensor] = ()
    """The state of the metrics after this batch, if that before it was given."""


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for a batch, and how good that is."""

    outputs: Mapping[str, Tensor]
    """By name, each [batch, …]."""
    loss: Tensor
    """float32 scalar."""
    counts: Sequence[Tensor]
    """The state of the metrics after this batch."""


class Model(Protocol):
    """A model that the trainer can train: arrays, and the ops of a step and of a prediction.

    A batch is the list of its leaves (`trainer.data.examples.Signature`).
    """

    @property
    def optimizer(self) -> Any:
        """The Keras optimizer that the model brings, otherwise None."""
        ...

    @property
    def is_random(self) -> bool:
        """Whether a step draws random numbers."""
        ...

    @property
    def fixed_batch(self) -> int | None:
        """The examples of each batch; None if the model takes batches of any size."""
        ...

    @property
    def untrained_loss(self) -> float | None:
        """The approximate loss of a model that has learned nothing; None if it is not known."""
        ...

    @property
    def no_counts(self) -> Sequence[Array]:
        """The state of the metrics before the first batch."""
        ...

    def parameters(self, signature: Signature, first: Sequence[Array] = ()) -> dict[str, Parameter]:
        """The arrays by name, the trainable ones first.

        Args:
            signature: That of an example.
            first: The leaves of some examples, with which the model is tried. Without them it is tried with zeros.

        Raises:
            ConfigurationError: the model cannot be trained here, or not on such examples.
        """
        ...

    def step(
        self,
        arrays: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        seed: Tensor | None,
        tables: Collection[str] = (),
        counts: Sequence[Tensor] = (),
    ) -> StepTensors:
        """Add the ops of a step to the default graph.

        Args:
            arrays: The model's arrays by name.
            batch: The leaves of a batch.
            seed: int32 [2], another one for each step; None unless `is_random`.
            tables: The arrays that are tables: the step has lookups in them instead of their gradients. They, the
                batch and the seed are then placeholders.
            counts: The state of the metrics before this batch; without it, the metrics are those of this batch.

        Raises:
            ConfigurationError: the model cannot be trained here.
        """
        ...

    def predict(self, arrays: Mapping[str, Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> Prediction:
        """Add the ops of a prediction to the default graph.

        Args:
            arrays: The model's arrays by name.
            batch: The leaves of a batch.
            counts: The state of the metrics before this batch.
        """
        ...

    def measure(self, counts: Sequence[Tensor]) -> Mapping[str, Tensor]:
        """Add the ops that compute the metrics, float32 scalars by name, from their state."""
        ...

    def save(self, folder: Path, arrays: Mapping[str, Array]) -> None:
        """Write the model with these values of its arrays to a folder, in the model's own format, if it has one."""
        ...


class ModelFunctions(Protocol):
    """The two functions of a model of plain ops."""

    def parameters(self, image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
        """The parameters by name, for images of this shape (without the batch dimension) and this many classes.

        Raises:
            ConfigurationError: the model does not support images of this shape.
        """
        ...

    def logits(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Unscaled log probabilities, [batch, classes], of images [batch, *image_shape]."""
        ...
