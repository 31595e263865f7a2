"""Variables and where they are."""

from typing import Any

import numpy as np

from trainer.model import Parameter
from trainer.parameters import Variables, create
from trainer.tensorflow import tf, tf1

PS = ["/job:ps/task:0/device:CPU:0", "/job:ps/task:1/device:CPU:0", "/job:ps/task:2/device:CPU:0"]
LOCAL = ["/device:CPU:0"]


def create_in_graph(parameters: dict[str, Parameter], ps_devices: list[str], seed: int = 0) -> Variables:
    with tf.Graph().as_default():
        return create(parameters, ps_devices, seed)


def initial_values(variables: Variables) -> list[Any]:
    graph = variables.global_step.graph
    with graph.as_default(), tf1.Session(graph=graph) as session:
        session.run(tf1.global_variables_initializer())
        values: list[Any] = session.run(variables.trainable)
        return values


def test_small_variables_are_dealt_out_in_turn() -> None:
    variables = create_in_graph({name: Parameter((10, 10)) for name in "abcde"}, PS)
    devices = [variable.device for variable in variables.trainable]
    assert devices == [PS[0], PS[1], PS[2], PS[0], PS[1]]
    assert variables.global_step.device == PS[0]


def test_a_large_array_is_cut_and_its_pieces_are_dealt_out_in_turn() -> None:
    variables = create_in_graph({"a": Parameter((10,)), "large": Parameter((3000, 64)), "b": Parameter((10,))}, PS)
    assert [piece.shape.as_list() for piece in variables.pieces["large"]] == [[1000, 64]] * 3
    assert [piece.device for piece in variables.pieces["large"]] == [PS[1], PS[2], PS[0]]
    assert variables.pieces["b"][0].device == PS[1]
    slices = [piece._get_save_slice_info() for piece in variables.pieces["large"]]
    assert [(info.full_name, info.full_shape, info.var_offset) for info in slices] == [
        ("large", [3000, 64], [start, 0]) for start in (0, 1000, 2000)
    ]


def test_an_array_is_not_cut_below_64_kib_nor_for_one_parameter_server() -> None:
    assert len(create_in_graph({"a": Parameter((128, 128))}, PS).pieces["a"]) == 1
    assert len(create_in_graph({"a": Parameter((256, 128))}, PS).pieces["a"]) == 2
    assert len(create_in_graph({"a": Parameter((3000, 64))}, PS[:1]).pieces["a"]) == 1


def test_a_scalar_parameter_is_a_variable_too() -> None:
    assert create_in_graph({"a": Parameter(())}, PS).pieces["a"][0].shape == ()


def test_no_op_of_a_variable_is_left_to_chance() -> None:
    variables = create_in_graph({"a": Parameter((10,), 0.1), "large": Parameter((3000, 64), 0.1)}, PS)
    for operation in variables.global_step.graph.get_operations():
        assert operation.device or operation.colocation_groups() != [b"loc:@" + operation.name.encode()], operation.name


def test_the_parameters_read_are_whole_and_in_order() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = create({"large": Parameter((3000, 64))}, ["/device:CPU:0", "/device:CPU:0"], seed=0)
        session.run(tf1.global_variables_initializer())
        expected = np.arange(3000 * 64, dtype=np.float32).reshape(3000, 64)
        for piece, rows in zip(variables.trainable, np.split(expected, 2), strict=True):
            piece.load(rows, session)
        reads, parameters = variables.read()
        assert len(reads) == 2
        assert np.array_equal(session.run(parameters["large"]), expected)


def test_initial_values_come_from_the_seed() -> None:
    parameters = {"a": Parameter((100, 10), 0.5), "b": Parameter((100, 10), 0.5), "zero": Parameter((10,))}
    first, again, other = (initial_values(create_in_graph(parameters, LOCAL, seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], first[1])
    assert 0.35 < first[0].std() < 0.5  # cut off at two deviations, which takes an eighth of the spread
    assert np.abs(first[0]).max() <= 1.0
    assert not first[2].any()


def test_pieces_of_an_array_have_different_initial_values() -> None:
    variables = create_in_graph({"large": Parameter((3000, 64), 0.5)}, LOCAL * 2)
    first, second = initial_values(variables)
    assert not np.array_equal(first, second)
