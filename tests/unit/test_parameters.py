"""Flat parameters, their shards and their devices."""

import math
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
from hypothesis import strategies

from trainer.models import Parameter
from trainer.shards.parameters import MIN_SHARD_SIZE, Layout, Shard, ShardArray, arrays_of, create, plan
from trainer.shards.slots import MOMENTS
from trainer.tensorflow import tf, tf1

PS = ["/job:ps/task:0/device:CPU:0", "/job:ps/task:1/device:CPU:0", "/job:ps/task:2/device:CPU:0"]
LARGE = {"a": Parameter((10,)), "large": Parameter((3000, 64)), "scalar": Parameter(()), "b": Parameter((7, 3))}


def shards_on(devices: list[str], parameters: dict[str, Parameter], seed: int = 0) -> list[Shard]:
    with tf.Graph().as_default():
        return create(parameters, plan(parameters, len(devices)), devices, seed, MOMENTS)


def initial_values(parameters: dict[str, Parameter], seed: int = 0, shards: int = 1) -> dict[str, npt.NDArray[Any]]:
    with tf.Graph().as_default(), tf1.Session() as session:
        layout = plan(parameters, shards)
        found = create(parameters, layout, ["/device:CPU:0"] * shards, seed, MOMENTS)
        session.run(tf1.global_variables_initializer())
        values: dict[str, Any] = session.run(layout.unpack([shard.values.read_value() for shard in found]))
        return values


def test_shards_have_equal_sizes_for_any_arrays() -> None:
    layout = plan(LARGE, 3)
    assert sum(layout.shards) == 10 + 3000 * 64 + 1 + 21
    assert max(layout.shards) - min(layout.shards) <= 1


def test_all_variables_of_a_shard_are_on_its_parameter_server() -> None:
    shards = shards_on(PS, LARGE)
    for shard, device, numbers in zip(shards, PS, plan(LARGE, 3).shards, strict=True):
        assert [variable.device for variable in shard.variables] == [device] * 4
        assert [variable.shape.as_list() for variable in shard.variables] == [[numbers]] * 3 + [[]]


def test_a_shard_has_at_least_64_kib() -> None:
    assert len(plan({"a": Parameter((MIN_SHARD_SIZE * 2 - 1,))}, 3).shards) == 1
    assert len(plan({"a": Parameter((MIN_SHARD_SIZE * 2,))}, 3).shards) == 2
    assert len(plan({"a": Parameter((10,))}, 3).shards) == 1
    assert len(shards_on(PS, {"a": Parameter((10,))})) == 1


shapes = strategies.lists(strategies.lists(strategies.integers(1, 9), max_size=3).map(tuple), min_size=1, max_size=5)


@hypothesis.given(shapes=shapes, cuts=strategies.lists(strategies.floats(0, 1), max_size=3))
def test_unpack_inverts_pack(shapes: list[tuple[int, ...]], cuts: list[float]) -> None:
    arrays, start = {}, 0
    for index, shape in enumerate(shapes):
        arrays[str(index)] = np.arange(start, start + math.prod(shape), dtype=np.float32).reshape(shape)
        start += math.prod(shape)
    ends = [0, *sorted(int(cut * start) for cut in cuts), start]
    layout = Layout(dict(zip(arrays, shapes, strict=True)), tuple(int(size) for size in np.diff(ends)))
    with tf.Graph().as_default(), tf1.Session() as session:
        packed = layout.pack({name: tf.constant(array) for name, array in arrays.items()})
        shards, unpacked = session.run([packed, layout.unpack(packed)])
    assert np.array_equal(np.concatenate(shards), np.arange(start))
    assert [len(shard) for shard in shards] == list(layout.shards)
    assert all(np.array_equal(unpacked[name], array) for name, array in arrays.items())


def test_every_op_of_a_variable_has_a_device() -> None:
    shards = shards_on(PS, {"a": Parameter((10,), 0.1), "large": Parameter((3000, 64), 0.1)})
    for operation in shards[0].updates.graph.get_operations():
        assert operation.device or operation.colocation_groups() != [b"loc:@" + operation.name.encode()], operation.name


def test_the_seed_determines_the_initial_values() -> None:
    parameters = {"a": Parameter((100, 10), 0.5), "b": Parameter((100, 10), 0.5), "zero": Parameter((10,))}
    first, again, other = (initial_values(parameters, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in parameters)
    assert not np.array_equal(first["a"], other["a"])
    assert not np.array_equal(first["a"], first["b"])
    assert 0.35 < first["a"].std() < 0.5  # truncation at two deviations reduces the deviation by an eighth
    assert np.abs(first["a"]).max() <= 1.0
    assert not first["zero"].any()


def test_initial_values_do_not_depend_on_the_sharding() -> None:
    parameters = {"a": Parameter((100, 10), 0.5), "large": Parameter((3000, 64), 0.5)}
    whole, cut = (initial_values(parameters, shards=shards) for shards in (1, 3))
    assert all(np.array_equal(whole[name], cut[name]) for name in parameters)


@hypothesis.given(
    strategies.lists(strategies.tuples(strategies.integers(1, 3 * MIN_SHARD_SIZE), strategies.booleans()), min_size=1),
    strategies.integers(1, 4),
)
def test_a_layout_that_splits_no_parameter(sizes: list[tuple[int, bool]], servers: int) -> None:
    parameters = {
        f"p{number}": Parameter((size,), trainable=trainable or not number, decays=trainable)
        for number, (size, trainable) in enumerate(sizes)
    }
    layout = plan(parameters, servers, split=False)
    assert 1 <= len(layout.shards) <= servers
    assert sum(layout.shards) == sum(size for size, _ in sizes)
    shards = arrays_of(parameters, layout)
    trainable = [parameter for parameter in parameters.values() if parameter.trainable]
    assert [array for shard in shards for array in shard] == [
        ShardArray(parameter.shape, parameter.decays) for parameter in trainable
    ]
    assert all(shards), "each shard has a trainable parameter"
    found = [sum(math.prod(array.shape) for array in shard) for shard in shards]
    assert tuple(found) == layout.trainable_per_shard
