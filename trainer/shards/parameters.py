"""The parameters of a model as one flat vector, sharded over the parameter servers.

Each tensor that crosses the wire costs a round trip. So all parameters are concatenated into one vector, which is split
into shards of equal size, at least one per parameter server. Models use ordinary arrays by name; `Layout` maps them to
positions in the vector. Checkpoints also contain arrays by name (`trainer.checkpoint.saver`), so they fit any number
of shards.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.models import Parameter
from trainer.shards.tables import Part
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor, Variable

MIN_SHARD_SIZE = 16 << 10
"""Minimum elements per shard (64 KiB); smaller shards do not justify the round trip to another parameter server."""

CHUNK_SIZE, MAX_CHUNKS = 256 << 10, 4
"""The least elements (1 MiB) of each shard, and the most shards, if a parameter server has several. While the gradients
of some are on their way, others are updated and read again; and an update that a pending read forces to copy copies
less."""

Rows = Sequence[Tensor]
"""For each table of a shard, rows of its part: int64 [u], each once, on the shard's device."""


@dataclass(frozen=True)
class Layout:
    """The position of each parameter in the flat vector, and the sizes of its shards."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the parameters by name, in the order of the vector."""
    shards: tuple[int, ...]
    """Elements of each shard."""
    trainable: int | None = None
    """Elements of the parameters that are trainable, which are the first ones. None if all are."""

    @property
    def trainable_per_shard(self) -> tuple[int, ...]:
        """The trainable elements of each shard, which are its first ones."""
        if self.trainable is None:
            return self.shards
        starts = itertools.accumulate(self.shards[:-1], initial=0)
        return tuple(min(max(self.trainable - start, 0), size) for start, size in zip(starts, self.shards, strict=True))

    @property
    def of_trainable(self) -> "Layout":
        """The layout of the trainable parameters, and of the optimizer's slots."""
        end, shapes = 0, {}
        for name, shape in self.shapes.items():
            end += math.prod(shape)
            if self.trainable is None or end <= self.trainable:
                shapes[name] = shape
        return Layout(shapes, self.trainable_per_shard)

    def unpack(self, shards: Sequence[Tensor]) -> dict[str, Tensor]:
        """The parameters by name, from the shards of the vector."""
        if not self.shapes:
            return {}
        flat = shards[0] if len(shards) == 1 else tf.concat(shards, axis=0)
        pieces = tf.split(flat, [math.prod(shape) for shape in self.shapes.values()])
        return {
            name: tf.reshape(piece, shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def pack(self, arrays: Mapping[str, Tensor], ends_with_weight: bool = False) -> list[Tensor]:
        """The shards of the vector, from the arrays by parameter name. The weight 1.0 may be appended to each."""
        parts = [_shaped(arrays[name], (math.prod(shape),)) for name, shape in self.shapes.items()] or [tf.zeros([0])]
        end = [tf.ones([1])] if ends_with_weight else []
        if len(self.shards) == 1:
            return [tf.concat([*parts, *end], axis=0)]
        shards = list(tf.split(tf.concat(parts, axis=0), self.shards))
        return [tf.concat([shard, *end], axis=0) for shard in shards] if end else shards


def _shaped(array: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape the array. Adds no op if it has the shape, to keep graphs small."""
    return array if array.shape == shape else tf.reshape(array, shape)


@dataclass(frozen=True)
class ShardArray:
    """A trainable parameter in a shard."""

    shape: tuple[int, ...]
    decays: bool = True
    """Whether weight decay applies."""
    constraint: Any = None
    """The function of its values that each update ends with."""


def split_arrays(vector: Tensor, arrays: Sequence[ShardArray]) -> list[Tensor]:
    """The arrays that a vector consists of."""
    pieces = [vector] if len(arrays) == 1 else tf.split(vector, [math.prod(each.shape) for each in arrays])
    return [tf.reshape(piece, each.shape) for piece, each in zip(pieces, arrays, strict=True)]


def join_arrays(pieces: Sequence[Tensor]) -> Tensor:
    """The vector that consists of these arrays."""
    return tf.concat([tf.reshape(piece, [-1]) for piece in pieces], axis=0)


@dataclass(frozen=True)
class Shard:
    """The variables on one parameter server."""

    name: str
    device: str
    values: Variable
    """float32 variable [n]: its slice of the trainable parameters."""
    slots: tuple[Variable, ...]
    """float32 variables [n]: the optimizer slots."""
    updates: Variable
    """int64 variable: number of updates of the values. That of the first shard is the global step."""
    accepted_from: Variable | None = None
    """int64 variable: drop gradients whose parameters were read before this number of updates. None unless replicas
    update asynchronously and the run can be rolled back."""
    others: Variable | None = None
    """float32 variable [m]: its slice of the parameters that are not trainable. None if it has none."""
    arrays: tuple[ShardArray, ...] = ()
    """The trainable parameters in it, in their order, if the layout splits none of them."""
    wire_dtype: str = "float32"
    """The type of parameters and gradients on their way between a replica and this device."""
    tables: tuple[Part, ...] = ()
    """The parts of the tables on this device."""

    @property
    def is_constrained(self) -> bool:
        """Whether an update of a parameter ends with a constraint."""
        return any(each.constraint for each in self.arrays)

    @property
    def size(self) -> int:
        """The parameters of this shard: n + m."""
        return sum(int(each.shape[0]) for each in self.parameters)

    @property
    def parameters(self) -> list[Variable]:
        """The variables with its parameters, in the order of the vector."""
        return [self.values, *([] if self.others is None else [self.others])]

    @property
    def variables(self) -> list[Variable]:
        """All variables of this shard."""
        more = [self.updates, *([] if self.accepted_from is None else [self.accepted_from])]
        return [*self.parameters, *self.slots, *more, *(each for table in self.tables for each in table.all_variables)]

    def alone(self, function: Callable[[], Operation]) -> Operation:
        """Add the ops of a function, which run while no other function's do that was given here, by whatever task."""
        return tf.CriticalSection(shared_name=f"{self.name}/update").execute(function)

    def read(self, rows: Rows = ()) -> tuple[Tensor, Tensor]:
        """Add ops that read parameters and updates after the current control dependencies, on the shard's device.

        Returns:
            The parameters on the current device, float32 [n + m] and then these rows of the tables, flat; and the
            updates, int64 scalar.
        """
        with tf1.device(self.device):
            values = self.read_parameters()
            updates = self.updates.read_value()
            if rows:
                read = zip(self.tables, rows, strict=True)
                values = tf.concat([values, *(table.read(each, updates) for table, each in read)], axis=0)
            sent = tf.cast(values, self.wire_dtype)
        return tf.cast(sent, tf.float32), updates

    def send(self, gradient: Tensor) -> Tensor:
        """Add the op on the current device that prepares a gradient, float32 [n + m], for its way to the shard."""
        return tf.cast(gradient, self.wire_dtype)

    def receive(self, gradient: Tensor) -> Tensor:
        """Add the op on the shard's device that restores a gradient, float32 [n + m], from what `send` returned."""
        with tf1.device(self.device):
            return tf.cast(gradient, tf.float32)

    def read_parameters(self) -> Tensor:
        """Add ops that read the parameters, float32 [n + m]."""
        read = [each.read_value() for each in self.parameters]
        return read[0] if len(read) == 1 else tf.concat(read, axis=0)

    def split(self, vector: Tensor) -> list[Tensor]:
        """Split a vector like that of the parameters into the parts of `parameters`."""
        sizes = [int(each.shape[0]) for each in self.parameters]
        return [vector] if len(sizes) == 1 else tf.split(vector, sizes)

    def split_rows(self, vector: Tensor, rows: Rows, more: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Split a vector like that of `read`, with `more` elements after the parameters, into these and the rows."""
        if not rows:
            return vector, []
        sizes = [self.size + more, *(tf.size(each) * table.dim for table, each in zip(self.tables, rows, strict=True))]
        dense, *others = tf.split(vector, tf.stack(sizes), num=len(sizes))
        dense.set_shape([self.size + more])
        return dense, others


def chunks(parameters: Mapping[str, Parameter], servers: int) -> int:
    """The shards that each parameter server should have. A single one is fastest while it is small."""
    return min(MAX_CHUNKS, max(1, _elements(parameters) // servers // CHUNK_SIZE))


def plan(parameters: Mapping[str, Parameter], servers: int, split: bool = True, least: int = MIN_SHARD_SIZE) -> Layout:
    """Lay out the parameters over at most `servers` shards, each of at least `least` elements if there are several.

    Shard sizes differ by at most one element. With `split=False` no parameter is split, and each shard has at least one
    trainable parameter.
    """
    ordered = sorted(parameters.items(), key=lambda item: not item[1].trainable)
    shapes = {name: parameter.shape for name, parameter in ordered}
    elements = _elements(parameters)
    trainable = sum(math.prod(parameter.shape) for parameter in parameters.values() if parameter.trainable)
    count = max(1, min(servers, elements // least)) if least else servers
    ends = [elements * index // count for index in range(count + 1)]
    if not split:
        bounds = list(itertools.accumulate((math.prod(shape) for shape in shapes.values()), initial=0))
        inner = {min(bounds, key=lambda bound: abs(bound - end)) for end in ends[1:-1]}
        ends = [0, *sorted(end for end in inner if 0 < end < trainable), elements]
    sizes = tuple(end - start for start, end in itertools.pairwise(ends))
    return Layout(shapes, sizes, trainable if trainable < elements else None)


def _elements(parameters: Mapping[str, Parameter]) -> int:
    return sum(math.prod(parameter.shape) for parameter in parameters.values())


def create(
    parameters: Mapping[str, Parameter],
    layout: Layout,
    devices: Sequence[str],
    seed: int,
    slots: Sequence[str],
    drop_stale_gradients: bool = False,
    slot_values: Mapping[str, float] | None = None,
    whole: bool = False,
    wire_dtype: str = "float32",
) -> list[Shard]:
    """Add the variables of these parameters to the default graph.

    Args:
        parameters: The parameters of the model, by name.
        layout: Layout of these parameters.
        devices: Devices of the shards. The first ones are used, one per shard of the layout.
        seed: Seed of the initial values, which do not depend on the layout.
        slots: Slot names of the optimizer.
        drop_stale_gradients: Whether the shards have `accepted_from`.
        slot_values: Initial values of slots; by default 0.
        whole: Whether the layout splits no parameter.
        wire_dtype: The type of parameters and gradients on the wire.
    """
    given = {name: _given(each) for name, each in parameters.items() if each.value is not None}
    with tf1.device(devices[0]):
        initial = {
            name: given[name] if name in given else _draw(parameter, (seed, position))
            for position, (name, parameter) in enumerate(parameters.items())
        }
        shards = layout.pack(initial)
    # The name includes the shard count because a parameter server can outlive a cluster with a different count.
    filled = {slot: (slot_values or {}).get(slot, 0.0) for slot in slots}
    return [
        replace(
            _create_shard(f"part_{index}_of_{len(shards)}", values, trainable, device, filled, drop_stale_gradients),
            arrays=arrays,
            wire_dtype=wire_dtype,
        )
        for index, (values, trainable, device, arrays) in enumerate(
            zip(
                shards,
                layout.trainable_per_shard,
                devices,
                arrays_of(parameters, layout) if whole else [()] * len(shards),
                strict=False,
            )
        )
    ]


def arrays_of(parameters: Mapping[str, Parameter], layout: Layout) -> list[tuple[ShardArray, ...]]:
    """The trainable parameters in each shard of a layout that splits none of them."""
    found: list[tuple[ShardArray, ...]] = []
    names = [name for name in layout.shapes if parameters[name].trainable]
    for size in layout.trainable_per_shard:
        arrays: list[ShardArray] = []
        while sum(math.prod(each.shape) for each in arrays) < size:
            parameter = parameters[names.pop(0)]
            arrays.append(ShardArray(parameter.shape, parameter.decays, parameter.constraint))
        found.append(tuple(arrays))
    return found


def copy(shard: Shard, device: str, slots: Sequence[str]) -> Shard:
    """Add variables with the shapes of a shard on another device to the default graph, initialized to 0."""
    zeros = tf.zeros([shard.size])
    made = _create_shard(f"copy_of_{shard.name}", zeros, shard.values.shape[0], device, dict.fromkeys(slots, 0.0))
    return replace(made, arrays=shard.arrays)


def _create_shard(
    name: str,
    initial: Tensor,
    trainable: int,
    device: str,
    slots: Mapping[str, float],
    drop_stale_gradients: bool = False,
) -> Shard:
    """Add a shard whose parameters have these initial values, float32 [n]; the first `trainable` ones are trainable."""

    def variable(kind: str, initial: Tensor) -> Variable:
        return tf1.get_variable(f"{name}/{kind}", initializer=initial, use_resource=True)

    with tf1.device(device):
        values = initial if initial.shape[0] == trainable else initial[:trainable]
        others = None if initial.shape[0] == trainable else initial[trainable:]
        return Shard(
            name,
            device,
            variable("values", values),
            tuple(variable(slot, tf.fill(values.shape, value)) for slot, value in slots.items()),
            variable("updates", tf.zeros([], tf.int64)),
            variable("accepted_from", tf.zeros([], tf.int64)) if drop_stale_gradients else None,
            None if others is None else variable("others", others),
        )


def _given(parameter: Parameter) -> Tensor:
    """The values of a parameter, from this process's memory: as constants, they would be sent with each graph."""
    with tf1.device("/device:CPU:0"):
        found = tf.numpy_function(lambda: parameter.value, [], tf.float32)
    return tf.ensure_shape(found, parameter.shape)


def _draw(parameter: Parameter, seed: tuple[int, int]) -> Tensor:
    if parameter.draw is not None:
        (drawn,) = parameter.draw.template(parameter.shape).copy([], "draw")
        return drawn
    if not parameter.stddev:
        return tf.zeros(parameter.shape)
    return tf.random.stateless_truncated_normal(parameter.shape, seed, stddev=parameter.stddev)
