"""The ops that read, write and watch the part of a table on one server, for checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainer.checkpoint.table_files import Table
from trainer.shards.dynamic_part import DynamicPart
from trainer.shards.parameters import Shard
from trainer.shards.tables import Part, TablePart
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor


class Slice(NamedTuple):
    """Placeholders, int64 scalars, for the number of the first row, and for that after the last one."""

    start: Tensor
    end: Tensor

    def of(self, start: int, end: int) -> Mapping[Tensor, int]:
        """What they are fed with."""
        return {self.start: start, self.end: end}


@dataclass(frozen=True)
class PartOps:
    """The ops for the part of a table on one server. Rows are what `Table.join` takes."""

    counts: Tensor | None
    """int64 [5]: see `DynamicTable.counts`; None of a table that does not grow."""
    slice: Sequence[Tensor]
    """The rows from `start` to `end`."""
    count: Tensor
    """int64 scalar: the number of staged rows."""
    numbers: Tensor
    """int64 [end - start]: the staged rows from number `start` to `end`."""
    values: Sequence[Tensor]
    """These rows."""
    clear: Operation
    """Op that drops the staged rows."""
    period: Tensor
    """int32 scalar: the period."""
    begin: Operation
    """Op that sets it."""
    is_initialized: Tensor
    """bool scalar: whether all variables are initialized."""
    run_id: Tensor
    """string scalar: the run that they belong to."""
    create: Operation
    """Op that initializes them, the values with 0, as those of no run."""
    complete: Operation
    """Op that makes them those of this run."""
    given: Sequence[Tensor]
    """Placeholders for rows."""
    write: Operation
    """Op that writes `given`, from row `start` on if they have no ids."""


def add(table: Table, part: Part, shard: Shard, slice_: Slice, period: Tensor) -> PartOps:
    """Add the ops for a part to the default graph. Placeholders are on the current device.

    Args:
        table: Its table.
        part: The part.
        shard: That of its server.
        slice_: What `slice`, `numbers`, `values` and `write` are fed with.
        period: int32 scalar placeholder: what `begin` is fed with.
    """
    if isinstance(part, DynamicPart):
        return _dynamic(table, part, shard, slice_, period)
    return _fixed(table, part, shard, slice_, period)


def _fixed(table: Table, part: TablePart, shard: Shard, slice_: Slice, period: Tensor) -> PartOps:
    given = tf1.placeholder(tf.float32, [None, table.width])
    with tf1.device(shard.device):
        sliced = tf.range(slice_.start, tf.minimum(slice_.end, part.rows))
        received = tf.identity(given)
        places = tf.range(slice_.start, slice_.start + tf.shape(received, tf.int64)[0])
        written = list(zip(part.variables, tf.split(received, 1 + len(table.slots), axis=1), strict=True))

        def write() -> Operation:
            return tf.group(
                *[
                    tf.raw_ops.ResourceScatterUpdate(resource=each.handle, indices=places, updates=value)
                    for each, value in written
                ]
            )

        floats = [each.assign(tf.zeros(each.shape), read_value=False) for each in part.variables]
        others = [part.periods.initializer, part.period.initializer, part.run_id.assign("", read_value=False)]
        (count, numbers, values) = _staged(part, shard, slice_)
        return PartOps(
            counts=None,
            slice=[tf.concat([each.sparse_read(sliced) for each in part.variables], axis=1)],
            count=count,
            numbers=numbers,
            values=[tf.concat(values, axis=1)],
            clear=tf.raw_ops.StageClear(**_area(part, shard)),
            period=part.period.read_value(),
            begin=shard.alone(lambda: part.period.assign(period, read_value=False)),
            is_initialized=_is_initialized(part),
            run_id=part.run_id.read_value(),
            create=tf.group(*floats, *others),
            complete=part.run_id.initializer,
            given=[given],
            write=shard.alone(write),
        )


def _dynamic(table: Table, part: DynamicPart, shard: Shard, slice_: Slice, period: Tensor) -> PartOps:
    given = [tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.int32, [None])]
    given.append(tf1.placeholder(tf.float32, [None, table.width]))
    with tf1.device(shard.device):
        count, numbers, values = _staged(part, shard, slice_)
        counts = part.table.counts()
        return PartOps(
            counts=counts,
            slice=part.table.between(*slice_),
            count=count,
            numbers=numbers,
            values=values,
            clear=tf.raw_ops.StageClear(**_area(part, shard)),
            period=tf.cast(counts[3], tf.int32),
            begin=part.table.begin(period),
            is_initialized=_is_initialized(part),
            run_id=part.run_id.read_value(),
            create=tf.group(*part.initialize(), part.run_id.assign("", read_value=False)),
            complete=part.run_id.initializer,
            given=given,
            write=part.table.load(*given),
        )


def _is_initialized(part: Part) -> Tensor:
    of_variables = [tf1.is_variable_initialized(each) for each in part.all_variables]
    return tf.reduce_all(tf.stack([*of_variables, *part.is_initialized()]))


def stage(part: Part, shard: Shard, since: Tensor, period: Tensor) -> Operation:
    """Add the op that keeps the rows of a part on its server that have changed since a period, and begins another one.

    It is on the current device, that of the shard. No update may run meanwhile.
    """
    if isinstance(part, DynamicPart):
        values = part.table.changed(since, period)
    else:
        with tf.control_dependencies([part.period.assign(period, read_value=False)]):
            rows = tf.reshape(tf.where(part.periods.read_value() >= since), [-1])
        values = [rows, *(each.sparse_read(rows) for each in part.variables)]
    area = _area(part, shard)
    with tf.control_dependencies([tf.raw_ops.StageClear(**area)]):  # of an earlier chief
        return tf.raw_ops.Stage(values=values, shared_name=area["shared_name"])


def _staged(part: Part, shard: Shard, slice_: Slice) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """How many rows are kept, and the numbers and what else belongs to those of a slice."""
    staged = tf.raw_ops.StagePeek(index=0, **_area(part, shard))
    numbers, *values = (each[slice_.start : slice_.end] for each in staged)
    return tf.size(staged[0], tf.int64), numbers, values


def _area(part: Part, shard: Shard) -> dict[str, Any]:
    """The staging area of the changed rows of a part."""
    if isinstance(part, DynamicPart):
        types = [tf.int64, tf.int64, tf.int32, tf.float32]
    else:
        types = [tf.int64, *[tf.float32] * len(part.variables)]
    return {"shared_name": f"{shard.name}/{part.name}/changed", "dtypes": types}
