"""Large parameters: which are tables, why others are none, and whether a server takes them."""

import math
from collections.abc import Mapping

from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.graph import keras_optimizer
from trainer.graph.keras_optimizer import KerasOptimizer
from trainer.graph.optimizer import Optimizer
from trainer.kernels import library, row_update
from trainer.mode import Mode
from trainer.models import Model, Parameter
from trainer.shards.parameters import Layout

LARGE_BYTES = 100 << 20
"""From this size on, a note says why a parameter is no table."""
ANOTHER = "row_ops.cc does not have this optimizer with these settings"
HOW = "python -m trainer.kernels compiles faster ones, with g++"
MARK_BYTES = 4
"""What a row of a table takes beside its values and slots."""
MAX_MESSAGE_BYTES = (1 << 31) - (1 << 20)
"""Upper limit of what crosses the wire at once: that of gRPC, less the rest of a message."""


def choose_tables(mode: Mode, model: Model, parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters that stay on the parameter servers except for the rows that a step needs.

    Raises:
        ConfigurationError: a table grows, which this run does not support.
    """
    found = {name: each for name, each in parameters.items() if each.is_table}
    can_move = mode.moves_rows and keras_optimizer.updates_rows(model.optimizer)
    if growing := next((name for name, each in found.items() if each.growth), None):
        _check_growing(growing, mode, model, can_move)
    return found if can_move else {}


def _check_growing(name: str, mode: Mode, model: Model, can_move: bool) -> None:
    """Check that tables may grow.

    Raises:
        ConfigurationError: they may not.
    """
    what = f"{name} is the table of a DynamicEmbedding, which"
    if not mode.moves_rows:
        raise ConfigurationError(f"{what} is for strategy ps without local_steps; use Embedding with Hashing.")
    if library.load() is None:
        raise ConfigurationError(f"{what} needs the ops of row_ops.cc: {HOW}.")
    if not can_move or row_update.of(model.optimizer) is None:
        given = (
            "compile() names none" if model.optimizer is None else f"not {type(model.optimizer).__name__} as it is set"
        )
        raise ConfigurationError(
            f"{what} needs an optimizer of Keras such as SGD, Adagrad, RMSprop, Adam, AdamW or Ftrl, without clipnorm, "
            f"use_ema or a function as the learning rate, but {given}."
        )


def tables_note(of_tables: Mapping[str, Parameter], optimizer: Optimizer, servers: int) -> list[str]:
    """A sentence on the tables, if there are any."""
    if not of_tables:
        return []
    row_bytes = {name: 4 * each.shape[1] * (1 + len(optimizer.slots)) + MARK_BYTES for name, each in of_tables.items()}
    fixed = [name for name, each in of_tables.items() if not each.growth]
    size = sum(of_tables[name].shape[0] * row_bytes[name] for name in fixed) / servers / 2**20
    lazy = ", and the optimizer's state of other rows stays as it is" if optimizer.slots else ""
    named = ", ".join(map(_show, of_tables.items()))
    by_op = isinstance(optimizer, KerasOptimizer) and optimizer.row_update is not None
    how = "the ops of row_ops.cc" if by_op else f"the ops of TensorFlow: {HOW if library.load() is None else ANOTHER}"
    return [
        f"tables, of which a step moves and updates only the rows that it needs{lazy}: {named}; "
        f"{size:,.0f} MiB {'in memory' if servers == 1 else f'on each of {servers} parameter servers'}",
        f"rows are updated by {how}",
    ]


def dense_notes(settings: Settings, mode: Mode, model: Model, parameters: Mapping[str, Parameter]) -> list[str]:
    """Why large parameters that have the shape of a table are none."""
    if not (mode.moves_rows or mode.averages_parameters):
        return []
    found = []
    for name, parameter in parameters.items():
        if len(parameter.shape) != 2 or parameter.shape[0] < settings.table_rows or not parameter.trainable:
            continue
        if 4 * math.prod(parameter.shape) < LARGE_BYTES:
            continue
        if not parameter.is_table:
            reason = "the model reads it in other ways than by ids, constrains it, or has its own train_step"
        elif mode.averages_parameters:
            reason = "local_steps is not 1"
        elif model.optimizer is None:
            reason = "the model is not compiled with an optimizer"
        elif keras_optimizer.clips_each_array(model.optimizer):
            reason = "clipnorm clips by the norm of its whole gradient, so use global_clipnorm or clipvalue"
        else:
            reason = f"the optimizer {type(model.optimizer).__name__} does not update rows by themselves"
        found.append(f"each step moves all of {_show((name, parameter))}, because {reason}; see docs/tables.md")
    return found


def _show(item: tuple[str, Parameter]) -> str:
    name, parameter = item
    most = "up to " if parameter.growth else ""
    return f"{name} ({most}{parameter.shape[0]:,} x {parameter.shape[1]})"


def check_sizes(layout: Layout, of_tables: Mapping[str, Parameter], servers: int, with_tables: int) -> None:
    """Check that what crosses the wire at once is below gRPC's limit. Tables whose servers draw them do not.

    Args:
        layout: Layout of the dense parameters.
        of_tables: The tables.
        servers: The number of parameter servers.
        with_tables: How many of them have parts of the tables.

    Raises:
        ConfigurationError: it is not.
    """
    sizes = {"the dense parameters": (sum(layout.shards), len(layout.shards))}
    sizes |= {
        f"the given values of {name}": (math.prod(each.shape), with_tables)
        for name, each in of_tables.items()
        if each.value is not None
    }
    for name, (size, messages) in sizes.items():
        largest = 4 * size / messages
        if largest > MAX_MESSAGE_BYTES:
            raise ConfigurationError(
                f"ps: {name} would be {4 * size / servers / 2**30:.1f} GiB on each of {servers} parameter servers, in "
                f"messages of {largest / 2**30:.1f} GiB, but gRPC moves less than 2 GiB at once; start at least "
                f"{math.ceil(servers * largest / MAX_MESSAGE_BYTES)}."
            )
