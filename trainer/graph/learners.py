"""What the devices of a replica learn from: the batches of each, and its part of a step."""

import functools
from collections.abc import Sequence
from dataclasses import replace

from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.data.file_leases import FileLeases
from trainer.data.orders import Deal
from trainer.data.stream import IN_MEMORY_BYTES, Stream
from trainer.graph import device_average
from trainer.graph.batches import Batches, InMemoryBatches, Share, dealt_batches, file_batches, stream_batches
from trainer.graph.placement import Placement
from trainer.graph.replication import Compute, Step, StepFunction, StepOutputs
from trainer.graph.step_graph import StepTemplate
from trainer.graph.totals import Totals
from trainer.mode import Mode
from trainer.shards.parameters import Shard
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor


def deal(
    settings: Settings, mode: Mode, source: Examples | Stream, is_full: bool, is_shuffled: bool = True
) -> Deal | None:
    """How the examples are dealt to the replicas; None if they come in an order of their own."""
    if isinstance(source, Stream) and not source.read:
        return None
    examples = len(source) if isinstance(source, Examples) else source.size
    assert examples  # noqa: S101 - what is read by indices has a size
    has_order = isinstance(source, Stream) and source.has_order
    seed = settings.seed if is_shuffled else None
    return Deal(examples, settings.batch_size, mode.batches, seed, is_full, has_order=has_order)


def files(
    settings: Settings, mode: Mode, source: Examples | Stream, is_full: bool, is_shuffled: bool = True
) -> FileLeases | None:
    """The files of the data if they are dealt to the replicas; None if each replica reads a part of the data."""
    if not isinstance(source, Stream) or not source.files or not mode.has_servers or is_full:
        return None
    readers = [functools.partial(each, settings.batch_size) for each in source.files]
    return FileLeases(readers, settings.seed if is_shuffled else None, mode.devices, mode.local_steps)


def order_notes(mode: Mode, deal: Deal | None, files: FileLeases | None) -> list[str]:
    """A sentence on an epoch of this data if it is not each example once."""
    if files:
        return [
            f"the {files.deal.examples} files of train_files() are dealt to the replicas: a file that a lost replica "
            "had begun is read once more"
        ]
    if not deal:
        return ["the data has an order of its own: a replica that restarts reads it from the begin"]
    if mode.has_rounds and mode.contributions < mode.replicas:
        return [
            f"each step takes the first {mode.contributions} of {mode.replicas} gradients, as replicas_to_aggregate "
            "says, so an epoch is without the examples of the others"
        ]
    return []


def make_batches(
    settings: Settings,
    mode: Mode,
    at: Placement,
    source: Examples | Stream,
    dealt: Deal | FileLeases | None,
    size: int | None,
) -> list[Batches]:
    """Add the batches of each device, of this size, or of none that is known."""
    if isinstance(source, Stream) and source.endless and not dealt:
        # one for all devices, so that each batch goes to one of them
        stream = source.endless(settings.batch_size, size is not None)

    def make(number: int) -> Batches:
        if not dealt:
            return stream_batches(source.signature, size, settings.batch_size, stream)
        if isinstance(dealt, FileLeases):
            return file_batches(source.signature, settings.batch_size, dealt)
        share = Share(dealt, mode.index, number, mode.devices)
        if isinstance(source, Examples) and source.nbytes <= IN_MEMORY_BYTES:
            return InMemoryBatches(source, share)
        read = source.read if isinstance(source, Stream) else lambda indices: source.take(indices).arrays
        assert read  # noqa: S101 - or there would be no deal
        return dealt_batches(source.signature, read, share)

    batches = []
    for number, device in enumerate(at.compute):
        with tf1.device(device), tf1.variable_scope(f"device_{number}"):
            batches.append(make(number))
    return batches


def make_steps(
    settings: Settings,
    mode: Mode,
    at: Placement,
    templates: Sequence[StepTemplate],
    batches: Sequence[Batches],
    shards: Sequence[Shard],
    totals: Totals | None,
    is_normalized: bool,
) -> StepFunction:
    """What makes a step, whose gradients are averaged over the devices of this replica.

    With `is_normalized`, the average is divided by its weight, which it ends with.
    """
    homes = [shard.device for shard in shards]
    is_sent = any(home not in at.compute for home in homes) and not mode.averages_parameters
    source = at.host if is_sent else at.compute[0]
    sizes = [shard.size for shard in shards] if is_normalized else None
    so_far: list[Tensor | None] = [None for _ in at.compute]
    """The totals of each device in the present execution."""

    def make_step(number: int) -> Step:
        leaves = []
        for device, of_device in zip(at.compute, batches, strict=True):
            with tf1.device(device):
                leaves.append(of_device.tensors(number))
        rows, known = templates[0].look_up(leaves, homes)
        shares = [each.share(number) for each in batches]

        def compute(index: int, values: Sequence[Tensor]) -> StepOutputs:
            """The step on the current device, which is that of this index."""
            template, share = templates[index], shares[index]
            seed = (settings.seed, at.learners[index], number)
            if totals is None:
                return template.compute(values, leaves[index], known[index], seed, share)
            if totals.is_running and number == 0:
                so_far[index] = totals.vector.read_value()
            before = so_far[index] if totals.is_running else tf.constant(totals.begun)
            outputs = template.compute(values, leaves[index], known[index], seed, share, totals.split(before))
            so_far[index] = totals.after(so_far[index], outputs, share * settings.batch_size)
            return replace(outputs, totals=so_far[index])

        functions: list[Compute] = [functools.partial(compute, index) for index in range(len(at.compute))]
        if len(functions) == 1 and not sizes:
            return Step(functions[0], rows)
        weights = shares if templates[0].is_weighted else None
        return Step(device_average.average_over(at.compute, functions, source, sizes, weights), rows)

    return make_step
