"""A model's parameters as flat vectors, one on each parameter server.

Every tensor that crosses the wire costs a round trip of its own, so all parameters lie end to end in one vector, cut
into shards of equal size for the parameter servers. Models are given ordinary arrays, by name: `Layout` says where in
the vector each one is. Checkpoints hold them so as well (`trainer.graph.checkpoints`), and fit any number of shards.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.models import Parameter
from trainer.tensorflow import tf, tf1

MIN_SHARD_SIZE = 16 << 10
"""Numbers (64 KiB) below which a shard is not worth another parameter server's round trip."""


@dataclass(frozen=True)
class Layout:
    """Where in the flat vector each parameter is, and where the vector is cut."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of the parameters by name, in the order in which they lie in the vector."""
    shards: tuple[int, ...]
    """How many numbers are in each shard."""

    def unpack(self, shards: Sequence[Any]) -> dict[str, Any]:
        """The parameters by name, from the shards of the vector."""
        flat = shards[0] if len(shards) == 1 else tf.concat(shards, axis=0)
        pieces = tf.split(flat, [math.prod(shape) for shape in self.shapes.values()])
        return {
            name: tf.reshape(piece, shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def pack(self, arrays: Mapping[str, Any]) -> list[Any]:
        """The shards of the vector, from arrays by the parameters' names."""
        flat = tf.concat([_shaped(arrays[name], (math.prod(shape),)) for name, shape in self.shapes.items()], axis=0)
        return [flat] if len(self.shards) == 1 else tf.split(flat, self.shards)


def _shaped(array: Any, shape: tuple[int, ...]) -> Any:
    """The array in this shape; no op where it has it already, as graphs have many of these."""
    return array if array.shape == shape else tf.reshape(array, shape)


@dataclass(frozen=True)
class Shard:
    """What one parameter server holds."""

    name: str
    device: str
    values: Any
    """float32 variable [n]: its part of the parameters."""
    slots: tuple[Any, ...]
    """float32 variables [n]: what the optimiser remembers of earlier gradients, beginning with 0."""
    updates: Any
    """int64 variable: how often the values were updated; the first shard's is the global step."""
    accepted_from: Any | None = None
    """int64 variable: gradients of parameters that were read before so many updates are dropped. Only where replicas
    update the values each on its own, and the run may be rolled back."""

    @property
    def variables(self) -> list[Any]:
        """All of them."""
        return [self.values, *self.slots, self.updates, *([] if self.accepted_from is None else [self.accepted_from])]

    def read(self) -> tuple[Any, Any]:
        """Add ops that read values and updates now (after the control dependencies in force), on the shard's device."""
        with tf1.device(self.device):
            return self.values.read_value(), self.updates.read_value()


def plan(parameters: Mapping[str, Parameter], servers: int) -> Layout:
    """Lay parameters out over at most so many parameter servers, in shards that differ by one number at most."""
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    numbers = sum(math.prod(shape) for shape in shapes.values())
    count = max(1, min(servers, numbers // MIN_SHARD_SIZE))
    ends = [numbers * index // count for index in range(count + 1)]
    return Layout(shapes, tuple(end - start for start, end in itertools.pairwise(ends)))


def create(
    parameters: Mapping[str, Parameter],
    layout: Layout,
    devices: Sequence[str],
    seed: int,
    slots: Sequence[str],
    drops_stale: bool = False,
) -> list[Shard]:
    """Add the variables of these parameters to the default graph.

    Args:
        parameters: What the model asks for, by name.
        layout: Of these parameters.
        devices: The parameter servers'; as many of them are used as the layout has shards.
        seed: Of the initial values, which do not depend on the layout.
        slots: Names of the optimiser's slots.
        drops_stale: Whether the shards have `accepted_from`.
    """
    with tf1.device(devices[0]):
        initial = {
            name: _initial_values(parameter, (seed, position))
            for position, (name, parameter) in enumerate(parameters.items())
        }
        shards = layout.pack(initial)
    # The count is in the name because parameter servers may outlive a cluster that had another number of them.
    return [
        _create_shard(f"part_{index}_of_{len(shards)}", values, device, slots, drops_stale)
        for index, (values, device) in enumerate(zip(shards, devices, strict=False))
    ]


def copy(shard: Shard, device: str, slots: Sequence[str]) -> Shard:
    """Add variables like a shard's on another device to the default graph; they have no values of their own."""
    return _create_shard(f"copy_of_{shard.name}", tf.zeros(shard.values.shape), device, slots)


def _create_shard(
    name: str, initial_values: Any, device: str, slots: Sequence[str], drops_stale: bool = False
) -> Shard:
    def variable(kind: str, initial: Any) -> Any:
        return tf1.get_variable(f"{name}/{kind}", initializer=initial, use_resource=True)

    with tf1.device(device):
        zeros = tf.zeros_like(initial_values)
        return Shard(
            name,
            device,
            variable("values", initial_values),
            tuple(variable(slot, zeros) for slot in slots),
            variable("updates", tf.zeros([], tf.int64)),
            variable("accepted_from", tf.zeros([], tf.int64)) if drops_stale else None,
        )


def _initial_values(parameter: Parameter, seed: tuple[int, int]) -> Any:
    if not parameter.stddev:
        return tf.zeros(parameter.shape)
    return tf.random.stateless_truncated_normal(parameter.shape, seed, stddev=parameter.stddev)
