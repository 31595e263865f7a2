"""The parameters of a model as one flat vector, sharded over the parameter servers.

Each tensor that crosses the wire costs a round trip. So all parameters are concatenated into one vector, which is split
into one shard of equal size per parameter server. Models use ordinary arrays by name; `Layout` maps them to positions
in the vector. Checkpoints also contain arrays by name (`trainer.graph.checkpoints`), so they fit any number of shards.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.models import Parameter
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor, Variable

MIN_SHARD_SIZE = 16 << 10
"""Minimum elements per shard (64 KiB); smaller shards do not justify the round trip to another parameter server."""


@dataclass(frozen=True)
class Layout:
    """The position of each parameter in the flat vector, and the sizes of its shards."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the parameters by name, in the order of the vector."""
    shards: tuple[int, ...]
    """Elements of each shard."""

    def unpack(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """The parameters by name, from the shards of the vector."""
        flat = shards[0] if len(shards) == 1 else tf.concat(shards, axis=0)
        pieces = tf.split(flat, [math.prod(shape) for shape in self.shapes.values()])
        return {
            name: tf.reshape(piece, shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def pack(self, arrays: Mapping[str, Tensor]) -> list[Tensor]:
        """The shards of the vector, from the arrays by parameter name."""
        flat = tf.concat([_shaped(arrays[name], (math.prod(shape),)) for name, shape in self.shapes.items()], axis=0)
        return [flat] if len(self.shards) == 1 else tf.split(flat, self.shards)


def _shaped(array: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape the array. Adds no op if it has the shape, to keep graphs small."""
    return array if array.shape == shape else tf.reshape(array, shape)


@dataclass(frozen=True)
class Shard:
    """The variables on one parameter server."""

    name: str
    device: str
    values: Variable
    """float32 variable [n]: its slice of the parameters."""
    slots: tuple[Variable, ...]
    """float32 variables [n]: the optimizer slots, initially 0."""
    updates: Variable
    """int64 variable: number of updates of the values. That of the first shard is the global step."""
    accepted_from: Variable | None = None
    """int64 variable: drop gradients whose parameters were read before this number of updates. None unless replicas
    update asynchronously and the run can be rolled back."""

    @property
    def variables(self) -> list[Variable]:
        """All variables of this shard."""
        return [self.values, *self.slots, self.updates, *([] if self.accepted_from is None else [self.accepted_from])]

    def read(self) -> tuple[Tensor, Tensor]:
        """Add ops that read values and updates after the current control dependencies, on the shard's device."""
        with tf1.device(self.device):
            return self.values.read_value(), self.updates.read_value()


def plan(parameters: Mapping[str, Parameter], servers: int) -> Layout:
    """Lay out the parameters over at most `servers` shards. Shard sizes differ by at most one element."""
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    elements = sum(math.prod(shape) for shape in shapes.values())
    count = max(1, min(servers, elements // MIN_SHARD_SIZE))
    ends = [elements * index // count for index in range(count + 1)]
    return Layout(shapes, tuple(end - start for start, end in itertools.pairwise(ends)))


def create(
    parameters: Mapping[str, Parameter],
    layout: Layout,
    devices: Sequence[str],
    seed: int,
    slots: Sequence[str],
    drop_stale_gradients: bool = False,
) -> list[Shard]:
    """Add the variables of these parameters to the default graph.

    Args:
        parameters: The parameters of the model, by name.
        layout: Layout of these parameters.
        devices: Devices of the parameter servers. The first ones are used, one per shard of the layout.
        seed: Seed of the initial values, which do not depend on the layout.
        slots: Slot names of the optimizer.
        drop_stale_gradients: Whether the shards have `accepted_from`.
    """
    with tf1.device(devices[0]):
        initial = {
            name: _initial_values(parameter, (seed, position))
            for position, (name, parameter) in enumerate(parameters.items())
        }
        shards = layout.pack(initial)
    # The name includes the shard count because a parameter server can outlive a cluster with a different count.
    return [
        _create_shard(f"part_{index}_of_{len(shards)}", values, device, slots, drop_stale_gradients)
        for index, (values, device) in enumerate(zip(shards, devices, strict=False))
    ]


def copy(shard: Shard, device: str, slots: Sequence[str]) -> Shard:
    """Add variables with the shapes of a shard on another device to the default graph, initialized to 0."""
    return _create_shard(f"copy_of_{shard.name}", tf.zeros(shard.values.shape), device, slots)


def _create_shard(
    name: str, initial_values: Tensor, device: str, slots: Sequence[str], drop_stale_gradients: bool = False
) -> Shard:
    def variable(kind: str, initial: Tensor) -> Variable:
        return tf1.get_variable(f"{name}/{kind}", initializer=initial, use_resource=True)

    with tf1.device(device):
        zeros = tf.zeros_like(initial_values)
        return Shard(
            name,
            device,
            variable("values", initial_values),
            tuple(variable(slot, zeros) for slot in slots),
            variable("updates", tf.zeros([], tf.int64)),
            variable("accepted_from", tf.zeros([], tf.int64)) if drop_stale_gradients else None,
        )


def _initial_values(parameter: Parameter, seed: tuple[int, int]) -> Tensor:
    if not parameter.stddev:
        return tf.zeros(parameter.shape)
    return tf.random.stateless_truncated_normal(parameter.shape, seed, stddev=parameter.stddev)
