"""A model's parameters as variables, spread over the parameter servers.

Large arrays are cut along their first axis when there are several parameter servers, and the pieces are dealt out in
turn (round robin). Checkpoints hold whole arrays under the model's names, so a run may continue with another number of
parameter servers, or with none.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.model import Parameter
from trainer.tensorflow import tf, tf1


@dataclass(frozen=True)
class Variables:
    """The variables of a graph, each on its parameter server."""

    global_step: Any
    """int64 scalar, on the first parameter server."""
    pieces: Mapping[str, tuple[Any, ...]]
    """float32 variables by parameter: the array itself, or its pieces along the first axis."""

    @property
    def trainable(self) -> list[Any]:
        """All pieces, in a fixed order."""
        return [piece for pieces in self.pieces.values() for piece in pieces]

    def read(self) -> tuple[list[Any], dict[str, Any]]:
        """Add ops that read every piece now (after the control dependencies in force).

        Returns:
            The tensors read, in the order of `trainable`, and the parameters by name, made from them: gradients are to
            be taken with respect to the former, models are to be given the latter.
        """
        reads = {name: [piece.read_value() for piece in pieces] for name, pieces in self.pieces.items()}
        whole = {name: parts[0] if len(parts) == 1 else tf.concat(parts, axis=0) for name, parts in reads.items()}
        return [part for parts in reads.values() for part in parts], whole


def create(parameters: Mapping[str, Parameter], ps_devices: list[str], seed: int) -> Variables:
    """Add the variables of these parameters, and the global step, to the default graph.

    Args:
        parameters: What the model asks for, by name.
        ps_devices: The parameter servers' devices; ["/device:CPU:0"] keeps everything in this process.
        seed: Of the initial values.
    """
    devices = itertools.cycle(ps_devices)
    with tf1.device(ps_devices[0]):
        global_step = tf1.train.create_global_step()
    partitioner = tf1.min_max_variable_partitioner(max_partitions=len(ps_devices), min_slice_size=64 << 10)
    pieces = {}
    for position, (name, parameter) in enumerate(parameters.items()):
        with tf1.device(_next_for_variables(devices, ps_devices[0])):
            variable = tf1.get_variable(
                name,
                parameter.shape,
                tf.float32,
                _initializer(parameter, (seed, position)),
                partitioner=partitioner if len(ps_devices) > 1 and parameter.shape else None,
                use_resource=True,
            )
        pieces[name] = tuple(variable) if hasattr(variable, "as_tensor") else (variable,)
    return Variables(global_step, pieces)


def _initializer(parameter: Parameter, seed: tuple[int, int]) -> Any:
    """Gives a variable, or a piece of one, its initial values: the same for a seed however the array is cut."""

    def initial_values(shape: Any, dtype: Any = tf.float32, partition_info: Any = None) -> Any:
        if not parameter.stddev:
            return tf.zeros(shape, dtype)
        whole = tf.random.stateless_truncated_normal(parameter.shape, seed, stddev=parameter.stddev, dtype=dtype)
        return tf.slice(whole, partition_info.var_offset, shape) if partition_info else whole

    return initial_values


def _next_for_variables(devices: Iterator[str], first: str) -> Any:
    """A device function by which each variable goes to the next device; a variable cut in pieces is several."""

    def choose(operation: Any) -> str:
        return next(devices) if operation.type == "VarHandleOp" else first

    return choose
