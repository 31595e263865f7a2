"""The graph of one replica: model, batches, parameters, replication and checkpoints.

`build` only adds ops to a graph. `trainer.training.loop` runs them.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.data.epochs import Epochs
from trainer.data.examples import Examples
from trainer.data.orders import Deal
from trainer.data.stream import IN_MEMORY_BYTES, Stream
from trainer.errors import ConfigurationError
from trainer.graph import devices, execution, keras_optimizer, step_graph, tables
from trainer.graph.batches import Batches, Feeding, InMemoryBatches, MultiDeviceBatches, dealt_batches, stream_batches
from trainer.graph.checkpoints import Saver
from trainer.graph.course import SharedCourse
from trainer.graph.dense_values import DenseValues
from trainer.graph.keras_optimizer import KerasOptimizer
from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import MIN_SHARD_SIZE, Layout, Shard, chunks, create, plan
from trainer.graph.replication import (
    Compute,
    Replication,
    Step,
    StepFunction,
    StepOutputs,
    allreduce,
    asynchronous,
    local_sgd,
    mirrored,
    synchronous,
)
from trainer.graph.replication.membership import Membership
from trainer.graph.step_graph import StepTemplate
from trainer.graph.totals import Totals
from trainer.models import Model, Parameter
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Operation, Tensor, Variable

LARGE_BYTES = 100 << 20
"""From this size on, a note says why a parameter is no table."""
MARK_BYTES = 4
"""What a row of a table takes beside its values and slots."""
MAX_MESSAGE_BYTES = (1 << 31) - (1 << 20)
"""Upper limit of what crosses the wire at once: that of gRPC, less the rest of a message."""


@dataclass(frozen=True)
class Replica:
    """The graph of a replica, and its ops."""

    graph: Graph
    step_graph: Sequence[StepTemplate]
    """The templates of the step, one per device. They keep the Python functions of the model alive."""
    batches: Feeding
    learners: int
    """Batches per step of this replica: one per device."""
    replication: Replication
    totals: Totals | None
    """The sums of the present epoch, if they are wanted."""
    examples_of_epoch: int | None
    """The examples that are in the sums at its end, if replicas bring them at different times; None otherwise."""
    dense_values: DenseValues | None
    """Reads and changes the parameters for callbacks, on the chief."""
    global_step: Tensor
    """int64 scalar: the current global step."""
    is_ready: Tensor
    """bool scalar: all variables are initialized and the chief has marked the run ready."""
    is_initialized: Tensor
    """bool scalar: all variables are initialized."""
    initialize: Operation
    """Op that initializes all variables. Only the chief runs it."""
    mark_ready: Operation
    """Op that makes `is_ready` true. Only the chief runs it."""
    rate_scale: Variable
    """float32 variable that multiplies the learning rate; None if that cannot change."""
    is_over: Variable
    """bool variable: the chief has ended the run before its last step; None if it cannot."""
    is_over_now: Tensor
    """bool scalar: its value."""
    epochs: Epochs | None
    """Those after which the chief may do that."""
    hook_steps: int | None
    """Steps after which callbacks of the chief follow within an epoch, if they do."""
    end_early: Operation
    """Op with which the chief does that."""
    course: SharedCourse
    """The course of the run: valid after joining it."""
    run_id: Tensor
    """string scalar: the run whose variables the parameter servers hold. Read it only when `is_ready`."""
    saver: Any
    """The `Saver` of the chief, with its ops on the chief; None on other tasks."""
    notes: Sequence[str]
    """Sentences on large parameters: the tables, and those that are none."""


def build(
    settings: Settings,
    cluster: Cluster | None,
    model: Model,
    parameters: dict[str, Parameter],
    source: Examples | Stream,
    gpus: int,
    run: str,
    epochs: Epochs | None = None,
    hook_steps: int | None = None,
) -> Replica:
    """Build the graph of this task's replica, or of a single process if there is no cluster.

    Args:
        settings: Settings of the run.
        cluster: The cluster and this task; None for a single process.
        model: The model.
        parameters: The parameters of the model, by name.
        source: The training split.
        gpus: GPUs of this task; 0 uses the CPU.
        run: Unique identifier of the run on the parameter servers.
        epochs: Those after which the chief may end the run early, or change what it trains with; None if it does not.
        hook_steps: Steps after which it may do so within an epoch.

    Raises:
        ConfigurationError: replicas_to_aggregate exceeds the number of replicas.
    """
    of_tables = _choose_tables(settings, model, parameters)
    parameters = {name: each for name, each in parameters.items() if name not in of_tables}
    at = _place(settings, cluster, gpus, has_tables=bool(of_tables))
    own, replicas = len(at.compute), len(cluster.replicas) if cluster else 1
    size = settings.batch_size
    is_independent = cluster is not None and settings.strategy == "ps" and not _is_synchronous(settings, cluster)
    deal = _deal(settings, cluster, source, own, model.fixed_batch is not None, is_independent)
    batch = size if model.fixed_batch or (deal and deal.is_even) else None
    has_servers = cluster is not None and settings.strategy == "ps"
    by_array = not _is_element_wise(model.optimizer, parameters)
    is_synchronous = _is_synchronous(settings, cluster)
    homes = len(at.homes)
    if has_servers:  # several shards of a server move at the same time
        at = replace(at, homes=[*at.homes] * chunks(parameters, homes))
    layout = plan(parameters, len(at.homes), split=not by_array, least=0 if of_tables else MIN_SHARD_SIZE)
    with_tables = min(homes, len(layout.shards))  # a server without dense parameters has no part of a table either
    # One template per device: TensorFlow matches a Python function's gradient to its forward call by function number.
    if cluster and cluster.ps:
        _check_sizes(layout, of_tables, len(cluster.ps), with_tables)
    is_averaged = settings.local_steps == 1 and (is_synchronous or settings.strategy == "allreduce")
    # Batches of a step count by their examples. Each contribution to an accumulator ends with its weight.
    is_weighted = batch is None and (own > 1 or (replicas > 1 and (is_averaged or is_synchronous)))
    make = functools.partial(
        step_graph.make,
        ends_with_weight=is_weighted or (is_synchronous and is_averaged),
        is_weighted=is_weighted,
        continues_counts=epochs is not None,
        of_tables=of_tables,
        servers=with_tables,
        batches=own,
    )
    templates = [make(model, layout, source.signature, batch) for _ in at.compute]
    ops = sum(each.template.ops for each in templates)
    steps = execution.steps_per_execution(
        settings, ops, [each for each in (epochs and epochs.steps, hook_steps) if each]
    )

    graph = tf.Graph()
    with graph.as_default(), tf1.device(at.compute[0]):
        shared = has_servers and not is_synchronous
        can_roll_back = settings.on_divergence == "restore"
        with tf1.device(at.homes[0] if has_servers else at.host):
            course = SharedCourse(settings.train_steps)
        optimizer = _optimizer(settings, model, shared, at.homes[0], can_roll_back or epochs is not None, course)
        shards = create(
            parameters,
            layout,
            at.homes,
            settings.seed,
            optimizer.slots,
            shared and can_roll_back,
            optimizer.slot_values,
            by_array,
            settings.wire_dtype if has_servers else "float32",
        )
        initial = {slot: optimizer.slot_values.get(slot, 0.0) for slot in optimizer.slots}
        parts = tables.create(of_tables, [shard.device for shard in shards[:with_tables]], initial, run)
        shards[:with_tables] = [replace(shard, tables=own) for shard, own in zip(shards, parts, strict=False)]
        with tf1.device(at.homes[0] if has_servers else at.host):
            run_id = tf1.get_variable("run_id", initializer=run, trainable=False, use_resource=True)
            is_over = tf1.get_variable("is_over", initializer=False, use_resource=True) if epochs else None
        batches = _make_batches(settings, source, deal, batch, at, is_shared=shared)
        home = at.homes[0] if has_servers else at.compute[0]
        totals = None if epochs is None else Totals.create(model.no_counts, home, replicas * own == 1)
        keeps_weight = is_averaged and (is_synchronous or replicas > 1)
        make_step = _steps(settings, at, templates, batches, shards, totals, is_weighted and not keeps_weight)
        replication = _replicate(
            settings, optimizer, cluster, shards, make_step, steps, at.compute[0], is_over, is_weighted, course
        )
        if totals:
            replication = _add_totals(replication, totals)
        if deal is None:  # each replica reads examples of its own
            replication = replace(replication, claim=None)
        with tf1.device(at.host):
            values = [variable for shard in shards for variable in shard.variables] + optimizer.variables
            values += [course.variable] if is_over is None else [course.variable, is_over]
            values += [totals.vector] if totals else []
            is_initialized = tf.reduce_all(tf.stack([tf1.is_variable_initialized(value) for value in values]))
            is_ready = tf.logical_and(is_initialized, tf1.is_variable_initialized(run_id))
            is_chief = cluster is None or cluster.is_chief
            servers = dict.fromkeys(at.homes) if has_servers else {}
            own_slots = optimizer.slots, list(servers), can_roll_back, run, optimizer.slot_values
            saver = Saver(layout, shards, *own_slots) if is_chief else None
        brings_all = is_averaged and deal is not None and deal.batches == own * replicas
        reset = [replication.membership.reset] if replication.membership else []
        replica = Replica(
            graph=graph,
            step_graph=templates,
            batches=MultiDeviceBatches(batches),
            learners=own,
            replication=replication,
            totals=totals,
            examples_of_epoch=deal.examples if deal and brings_all and deal.epochs == epochs else None,
            dense_values=DenseValues(layout, shards) if is_chief and epochs else None,
            global_step=shards[0].updates.read_value(),
            is_ready=is_ready,
            is_initialized=is_initialized,
            initialize=tf.group(tf1.variables_initializer(values), *reset),
            mark_ready=run_id.initializer,
            course=course,
            run_id=run_id.read_value(),
            saver=saver,
            rate_scale=optimizer.scale,
            is_over=is_over,
            is_over_now=None if is_over is None else is_over.read_value(),
            epochs=epochs,
            hook_steps=hook_steps,
            end_early=_end_early(is_over, replication),
            notes=[*_tables_note(of_tables, optimizer, with_tables), *_dense_notes(settings, model, parameters)],
        )
    graph.finalize()
    return replica


@dataclass(frozen=True)
class _Placement:
    """On which devices a replica computes, and on which the parameters are."""

    host: str
    """The CPU of this task."""
    compute: Sequence[str]
    homes: Sequence[str]
    """Of the shards of the parameters."""
    learners: Sequence[int]
    """The numbers of these devices among those of all replicas, which may have different numbers of devices."""
    index: int
    """That of this replica. Workers that join the run have those from `replicas` on."""
    replicas: int
    """Those of the run's begin."""


def _place(settings: Settings, cluster: Cluster | None, gpus: int, has_tables: bool) -> _Placement:
    here, index = (cluster.task.device, cluster.replica_index) if cluster else ("", 0)
    host = f"{here}/device:CPU:0"
    compute = devices.all_of(gpus, here)
    if cluster and settings.strategy == "ps":
        homes = [f"{ps.device}/device:CPU:0" for ps in cluster.parameter_servers]
    else:  # each replica holds the parameters; tables may be larger than a GPU's memory
        homes = [host] if has_tables else compute[:1]
    listed = len(cluster.replicas) if cluster else 1
    replicas = max(1, listed - settings.spare_workers)
    learners = [index + listed * number for number in range(len(compute))]
    return _Placement(host, compute, homes, learners, index, replicas)


def _deal(
    settings: Settings,
    cluster: Cluster | None,
    source: Examples | Stream,
    own: int,
    is_full: bool,
    is_independent: bool,
) -> Deal | None:
    """How the examples are dealt to replicas with `own` devices; None if they come in an order of their own.

    Replicas that do not wait for each other claim steps of examples in memory. Other examples are read ahead, so each
    of these replicas has a part of what all take.
    """
    if isinstance(source, Stream) and not source.read:
        return None
    examples = len(source) if isinstance(source, Examples) else source.size
    assert examples  # noqa: S101 - what is read by indices has a size
    batches = _count_batches(settings, cluster, own)
    if is_independent and cluster and not _is_in_memory(source):
        batches *= max(1, len(cluster.replicas) - settings.spare_workers)
    return Deal(examples, settings.batch_size, batches, settings.seed, is_full)


def _is_in_memory(source: Examples | Stream) -> bool:
    """Whether the examples are copied to the device."""
    return isinstance(source, Examples) and source.nbytes <= IN_MEMORY_BYTES


def _make_batches(
    settings: Settings, source: Examples | Stream, deal: Deal | None, size: int | None, at: _Placement, is_shared: bool
) -> list[Batches]:
    """The batches of each device, of this size, or of none that is known.

    With `is_shared`, replicas advance the global step without waiting for each other: each claims its steps.
    """
    if isinstance(source, Stream) and source.endless:  # one for all devices, so that each batch goes to one of them
        stream = source.endless(settings.batch_size, size is not None)
    own = len(at.compute)

    def make(number: int) -> Batches:
        if not deal:
            return stream_batches(source.signature, size, settings.batch_size, stream)
        learner = at.index * own + number
        if isinstance(source, Examples) and _is_in_memory(source):
            return InMemoryBatches(source, deal, number if is_shared else learner)
        read = source.read if isinstance(source, Stream) else lambda indices: source.take(indices).arrays
        assert read  # noqa: S101 - or there would be no deal
        return dealt_batches(source.signature, read, deal, learner, at.replicas if is_shared else 1)

    batches = []
    for number, device in enumerate(at.compute):
        with tf1.device(device), tf1.variable_scope(f"device_{number}"):
            batches.append(make(number))
    return batches


def _steps(
    settings: Settings,
    at: _Placement,
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
    is_sent = any(home not in at.compute for home in homes) and settings.local_steps == 1
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
        is_alone = len(functions) == 1 and not sizes
        weights = shares if templates[0].is_weighted else None
        averaged = functions[0] if is_alone else mirrored.average_over(at.compute, functions, source, sizes, weights)
        return Step(averaged, rows)

    return make_step


def _add_totals(replication: Replication, totals: Totals) -> Replication:
    """Let each execution add what it has to the totals of the epoch."""
    executions = {}
    for steps, each in replication.executions.items():
        with tf.control_dependencies([each.step]):
            added = totals.add(replication.sum(each.totals))
        with tf.control_dependencies([added]):
            executions[steps] = replace(each, step=tf.identity(each.step))
    return replace(replication, executions=executions)


def _end_early(is_over: Variable, replication: Replication) -> Operation:
    """Add the op with which the chief ends the run, and lets the replicas go on that wait for a step."""
    if is_over is None:
        return None
    with tf.control_dependencies([is_over.assign(True, read_value=False)]):
        return replication.release()


def _optimizer(
    settings: Settings, model: Model, shared: bool, device: str, scaled: bool, course: SharedCourse
) -> Optimizer:
    """The optimizer of a compiled Keras model, otherwise that of the settings."""
    if model.optimizer is None:
        return Optimizer.create(settings, shared, device, scaled, last_step=course.last_step)
    if settings.local_steps > 1:
        raise ConfigurationError(
            "local_steps averages the moments of the trainer's own optimizer; leave out the model's compile(), or "
            "local_steps."
        )
    return KerasOptimizer.create(settings, shared, device, scaled, keras=model.optimizer)


def _choose_tables(settings: Settings, model: Model, parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters that stay on the parameter servers except for the rows that a step needs."""
    found = {name: each for name, each in parameters.items() if each.is_table}
    is_possible = settings.strategy == "ps" and settings.local_steps == 1
    return found if found and is_possible and keras_optimizer.updates_rows(model.optimizer) else {}


def _tables_note(of_tables: Mapping[str, Parameter], optimizer: Optimizer, servers: int) -> list[str]:
    if not of_tables:
        return []
    row_bytes = {name: 4 * each.shape[1] * (1 + len(optimizer.slots)) + MARK_BYTES for name, each in of_tables.items()}
    size = sum(each.shape[0] * row_bytes[name] for name, each in of_tables.items()) / servers / 2**20
    lazy = ", and the optimizer's state of other rows stays as it is" if optimizer.slots else ""
    named = ", ".join(map(_show, of_tables.items()))
    return [
        f"tables, of which a step moves and updates only the rows that it needs{lazy}: {named}; "
        f"{size:,.0f} MiB {'in memory' if servers == 1 else f'on each of {servers} parameter servers'}"
    ]


def _dense_notes(settings: Settings, model: Model, parameters: Mapping[str, Parameter]) -> list[str]:
    """Why large parameters that have the shape of a table are none."""
    if settings.strategy != "ps":
        return []
    found = []
    for name, parameter in parameters.items():
        if len(parameter.shape) != 2 or parameter.shape[0] < settings.table_rows or not parameter.trainable:
            continue
        if 4 * math.prod(parameter.shape) < LARGE_BYTES:
            continue
        if not parameter.is_table:
            reason = "the model reads it in other ways than by ids, constrains it, or has its own train_step"
        elif settings.local_steps > 1:
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
    return f"{name} ({parameter.shape[0]:,} x {parameter.shape[1]})"


def _check_sizes(layout: Layout, of_tables: Mapping[str, Parameter], servers: int, with_tables: int) -> None:
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


def _is_element_wise(optimizer: Any, parameters: Mapping[str, Parameter]) -> bool:
    """Whether an update does the same to each element of all parameters, by a Keras optimizer or the trainer's own."""
    is_so = optimizer is None or keras_optimizer.is_element_wise(optimizer)
    return is_so and all(each.decays and each.constraint is None for each in parameters.values())


def _replicate(
    settings: Settings,
    optimizer: Optimizer,
    cluster: Cluster | None,
    shards: Sequence[Shard],
    make_step: StepFunction,
    steps: int,
    device: str,
    is_over: Variable,
    is_weighted: bool,
    course: SharedCourse,
) -> Replication:
    """Add the ops of the replication strategy that the settings select."""
    index, replicas = (cluster.replica_index, len(cluster.replicas)) if cluster else (0, 1)
    aggregate = settings.replicas_to_aggregate or replicas
    if aggregate > replicas:
        raise ConfigurationError(
            f"replicas_to_aggregate={aggregate}, but the cluster has {replicas} replicas and each contributes one "
            f"gradient per step; set at most {replicas}."
        )
    if settings.strategy == "allreduce":
        dtype, is_divided = settings.wire_dtype, is_weighted and replicas > 1
        return allreduce.build(
            shards, make_step, optimizer, steps, replicas, index == 0, dtype, is_divided, course.variable
        )
    if not _is_synchronous(settings, cluster):
        membership = (
            Membership.create(replicas, index, shards[0].device) if cluster and settings.strategy == "ps" else None
        )
        return asynchronous.build(shards, make_step, optimizer, steps, replicas, membership)
    membership = Membership.create(replicas, index, shards[0].device)
    if settings.local_steps > 1:
        aggregation = local_sgd.aggregation(shards, make_step, optimizer, settings.local_steps, device)
    else:
        aggregation = synchronous.gradients(shards, make_step, optimizer)
    return synchronous.build(
        shards, aggregation, steps, course.last_step, replicas, index, aggregate, membership, is_over
    )


def batches_per_step(settings: Settings, cluster: Cluster | None) -> int:
    """The batches of all replicas that a global step counts, which each task of a cluster finds alike.

    A task does not see the devices of the others, so that in a cluster `num_gpus` says how many a replica has.
    """
    own = settings.num_gpus or 1 if cluster else len(devices.all_of(devices.count_gpus(settings)))
    return _count_batches(settings, cluster, own)


def _count_batches(settings: Settings, cluster: Cluster | None, own: int) -> int:
    """The batches of all replicas that a global step counts, if each replica has `own` devices."""
    if (
        cluster is None
        or settings.strategy == "mirrored"
        or (settings.strategy == "ps" and not settings.is_synchronous)
    ):
        return own
    replicas = max(1, len(cluster.replicas) - settings.spare_workers)
    return own * min(replicas, settings.replicas_to_aggregate or replicas)


def _is_synchronous(settings: Settings, cluster: Cluster | None) -> bool:
    """Whether gradients are averaged. A process without a cluster has none to average, unless that is asked for."""
    return settings.is_synchronous if cluster else bool(settings.sync_replicas)


def describe_mode(settings: Settings, cluster: Cluster | None) -> str:
    """The name of the run's replication mode, for its result and logs."""
    if settings.strategy != "ps":
        return settings.strategy
    if cluster is None:
        return "single"
    if settings.local_steps > 1:
        return "local_sgd"
    return "synchronous" if settings.is_synchronous else "asynchronous"
