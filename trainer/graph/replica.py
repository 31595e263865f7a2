"""The graph of one replica: model, batches, parameters, replication and checkpoints.

`build` only adds ops to a graph. `trainer.training.loop` runs them.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.checkpoint.saver import Saver
from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.data.epochs import Epochs
from trainer.data.examples import Examples
from trainer.data.file_leases import FileLeases
from trainer.data.leases import LEAST_STEPS, MOST_STEPS
from trainer.data.orders import Deal
from trainer.data.stream import Stream
from trainer.graph import devices, execution, keras_optimizer, learners, step_graph
from trainer.graph.adam import AdamOptimizer
from trainer.graph.batches import Feeding, MultiDeviceBatches
from trainer.graph.keras_optimizer import KerasOptimizer
from trainer.graph.large_parameters import check_sizes, choose_tables, dense_notes, tables_note
from trainer.graph.optimizer import Optimizer
from trainer.graph.placement import Placement, place
from trainer.graph.replication import (
    Replication,
    StepFunction,
    allreduce,
    asynchronous,
    local_sgd,
    synchronous,
)
from trainer.graph.replication.gate import Gate
from trainer.graph.replication.lease_table import SharedLeases
from trainer.graph.replication.membership import Membership
from trainer.graph.step_graph import StepTemplate
from trainer.graph.totals import Totals
from trainer.mode import Mode
from trainer.models import Model, Parameter
from trainer.shards import tables
from trainer.shards.course import SharedCourse
from trainer.shards.dense_values import DenseValues
from trainer.shards.parameters import MIN_SHARD_SIZE, Shard, chunks, create, plan
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Operation, Tensor, Variable


@dataclass(frozen=True)
class Replica:
    """The graph of a replica, and its ops."""

    graph: Graph
    mode: Mode
    step_graph: Sequence[StepTemplate]
    """The templates of the step, one per device. They keep the Python functions of the model alive."""
    batches: Feeding
    replication: Replication
    deal: Deal | None
    """How the examples are dealt; None if they come in an order of their own."""
    files: FileLeases | None
    """The files that are dealt in place of examples."""
    leases: SharedLeases | None
    """Which replica takes what of these; None if each one takes its part of all steps."""
    open_course: Operation
    """Op that lets a run of epochs go on until all leases are done; None if its last step is not that of rounds."""
    totals: Totals | None
    """The sums of the present epoch, if they are wanted."""
    gate: Gate | None
    """Where this replica waits for callbacks of the chief, or lets the others wait for them; None if nobody does."""
    dense_values: DenseValues | None
    """Reads and changes the parameters for callbacks, on the chief."""
    global_step: Tensor
    """int64 scalar: the current global step."""
    is_ready: Tensor
    """bool scalar: all variables are initialized and the chief has marked the run ready."""
    are_ready: Tensor
    """bool [shards]: the same for the variables of each shard. Those that are not sharded are the first one's."""
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
    """Steps after which replicas wait for callbacks of the chief within an epoch; None if they do not."""
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


MOST_FILES = 1024
"""The files that were begun when a checkpoint was saved and that a run deals again, at most. It deals more where there
are more."""


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
    is_shuffled: bool = True,
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
        is_shuffled: Whether each epoch has another order of the examples, or files, that are dealt.

    Raises:
        ConfigurationError: replicas_to_aggregate exceeds the number of replicas.
    """
    mode = Mode.of(settings, cluster, len(devices.all_of(gpus)))
    of_tables = choose_tables(mode, model, parameters)
    parameters = {name: each for name, each in parameters.items() if name not in of_tables}
    at = place(mode, cluster, gpus, has_tables=bool(of_tables))
    deal = learners.deal(settings, mode, source, model.fixed_batch is not None, is_shuffled)
    batch = settings.batch_size if model.fixed_batch or (deal and deal.is_even) else None
    by_array = not _is_element_wise(model.optimizer, parameters)
    homes = len(at.homes)
    if mode.has_servers:  # several shards of a server move at the same time
        at = replace(at, homes=[*at.homes] * chunks(parameters, homes))
    layout = plan(parameters, len(at.homes), split=not by_array, least=0 if of_tables else MIN_SHARD_SIZE)
    with_tables = min(homes, len(layout.shards))  # a server without dense parameters has no part of a table either
    if mode.has_servers:
        check_sizes(layout, of_tables, homes, with_tables)
    is_weighted = mode.weighs(batch)
    make = functools.partial(
        step_graph.make,
        ends_with_weight=is_weighted or mode.sends_weights,
        is_weighted=is_weighted,
        continues_counts=epochs is not None,
        of_tables=of_tables,
        servers=with_tables,
        batches=mode.devices,
    )
    # One template per device: TensorFlow matches a Python function's gradient to its forward call by function number.
    templates = [make(model, layout, source.signature, batch) for _ in at.compute]
    ops = sum(each.template.ops for each in templates)
    intervals = [each for each in (epochs and epochs.steps, hook_steps) if each]
    steps = execution.steps_per_execution(settings, mode.local_steps, ops, intervals)

    graph = tf.Graph()
    with graph.as_default(), tf1.device(at.compute[0]):
        can_roll_back = settings.on_divergence == "restore"
        with tf1.device(at.shared):
            course = SharedCourse(settings.train_steps)
            run_id = tf1.get_variable("run_id", initializer=run, trainable=False, use_resource=True)
            is_over = tf1.get_variable("is_over", initializer=False, use_resource=True) if epochs else None
        has_scale = can_roll_back or epochs is not None
        optimizer = _optimizer(settings, mode, model, at.homes[0], has_scale, course)
        shards = create(
            parameters,
            layout,
            at.homes,
            settings.seed,
            optimizer.slots,
            mode.is_independent and can_roll_back,
            optimizer.slot_values,
            by_array,
            settings.wire_dtype if mode.has_servers else "float32",
        )
        initial = {slot: optimizer.slot_values.get(slot, 0.0) for slot in optimizer.slots}
        parts = tables.create(of_tables, [shard.device for shard in shards[:with_tables]], initial, run)
        shards[:with_tables] = [replace(shard, tables=own) for shard, own in zip(shards, parts, strict=False)]
        files = learners.files(settings, mode, source, model.fixed_batch is not None, is_shuffled)
        batches = learners.make_batches(settings, mode, at, source, files or deal, batch)
        home = at.homes[0] if mode.has_servers else at.compute[0]
        totals = Totals.create(model.no_counts, home, mode.replicas * mode.devices == 1) if epochs else None
        is_normalized = is_weighted and not mode.divides_by_weights
        make_step = learners.make_steps(settings, mode, at, templates, batches, shards, totals, is_normalized)
        replication = _replicate(settings, mode, at, shards, optimizer, make_step, steps, is_weighted, course, is_over)
        if totals:
            replication = _add_totals(replication, totals)
        waits = epochs is not None and mode.has_servers and mode.contributions == mode.replicas
        gate = Gate.create(mode.replicas, mode.index, at.homes[0]) if waits else None
        leases, open_course, own = None, None, (mode.replicas, mode.index, at.homes[0])
        if files:
            leases = SharedLeases.create(*own, slots=1, steps=(1, MOST_STEPS), spare=MOST_FILES)
        elif deal and mode.has_servers:
            can_open = mode.has_rounds and settings.epochs
            # read outside of the leases' lock: the lock of a table has the variable for itself
            at_step = shards[0].updates.read_value()
            open_course = functools.partial(course.open, global_step=at_step) if can_open else None
            least = -(-max(LEAST_STEPS, steps) // mode.local_steps) * mode.local_steps
            slots = deal.batches // mode.devices
            leases = SharedLeases.create(*own, slots, (least, MOST_STEPS), mode.has_rounds, open_course=open_course)
        if leases:
            replication = _add_reports(replication, leases)
        with tf1.device(at.host):
            more = [course.variable] if is_over is None else [course.variable, is_over]
            more += [totals.vector] if totals else []
            more += [gate.variable] if gate else []
            more += leases.variables if leases else []
            values = [variable for shard in shards for variable in shard.variables] + optimizer.variables + more
            of_each = [[tf1.is_variable_initialized(value) for value in shard.variables] for shard in shards]
            of_each[0] += [tf1.is_variable_initialized(value) for value in optimizer.variables + more]
            made = []
            for shard, are_initialized in zip(shards[:with_tables], of_each, strict=False):
                with tf1.device(shard.device):
                    are_initialized += [each for table in shard.tables for each in table.is_initialized()]
                    made += [each for table in shard.tables for each in table.initialize()]
            have_values = tf.stack([tf.reduce_all(tf.stack(are_initialized)) for are_initialized in of_each])
            is_initialized = tf.reduce_all(have_values)
            are_ready = tf.logical_and(have_values, tf1.is_variable_initialized(run_id))
            is_chief = cluster is None or cluster.is_chief
            servers = dict.fromkeys(at.homes) if mode.has_servers else {}
            own_slots = optimizer.slots, list(servers), can_roll_back, run, optimizer.slot_values
            saver = Saver(layout, shards, *own_slots) if is_chief else None
        reset = [replication.membership.reset] if replication.membership else []
        replica = Replica(
            graph=graph,
            mode=mode,
            step_graph=templates,
            batches=MultiDeviceBatches(batches),
            replication=replication,
            deal=deal,
            files=files,
            leases=leases,
            open_course=open_course(True) if open_course else None,
            totals=totals,
            gate=gate,
            dense_values=DenseValues(layout, shards) if is_chief and epochs else None,
            global_step=shards[0].updates.read_value(),
            is_ready=tf.reduce_all(are_ready),
            are_ready=are_ready,
            is_initialized=is_initialized,
            initialize=tf.group(tf1.variables_initializer(values), *made, *reset),
            mark_ready=run_id.initializer,
            course=course,
            run_id=run_id.read_value(),
            saver=saver,
            rate_scale=optimizer.scale,
            is_over=is_over,
            is_over_now=None if is_over is None else is_over.read_value(),
            epochs=epochs,
            hook_steps=None if mode.is_independent else hook_steps,
            end_early=_end_early(is_over, replication),
            notes=[
                *learners.order_notes(mode, deal, files),
                *tables_note(of_tables, optimizer, with_tables),
                *dense_notes(settings, mode, model, parameters),
            ],
        )
    graph.finalize()
    return replica


def _add_totals(replication: Replication, totals: Totals) -> Replication:
    """Let each execution add what it has to the totals of the epoch."""
    executions = {}
    for steps, each in replication.executions.items():
        with tf.control_dependencies([each.step]):
            added = totals.add(replication.sum(each.totals))
        with tf.control_dependencies([added]):
            executions[steps] = replace(each, step=tf.identity(each.step))
    return replace(replication, executions=executions)


def _add_reports(replication: Replication, leases: SharedLeases) -> Replication:
    """Let each execution report how many parts its replica has taken before."""
    executions = {}
    for steps, each in replication.executions.items():
        with tf1.device(each.step.device), tf.control_dependencies([leases.report]):
            executions[steps] = replace(each, step=tf.identity(each.step))
    return replace(replication, executions=executions)


def _end_early(is_over: Variable, replication: Replication) -> Operation:
    """Add the op with which the chief ends the run, and lets the replicas go on that wait for a step."""
    if is_over is None:
        return None
    with tf.control_dependencies([is_over.assign(True, read_value=False)]):
        return replication.release()


def _optimizer(
    settings: Settings, mode: Mode, model: Model, device: str, has_scale: bool, course: SharedCourse
) -> Optimizer:
    """The optimizer of a compiled Keras model, otherwise that of the settings."""
    if model.optimizer is None:
        return AdamOptimizer.create(settings, mode.is_independent, device, has_scale, last_step=course.last_step)
    return KerasOptimizer.create(settings, mode.is_independent, device, has_scale, keras=model.optimizer)


def _is_element_wise(optimizer: Any, parameters: Mapping[str, Parameter]) -> bool:
    """Whether an update does the same to each element of all parameters, by a Keras optimizer or the trainer's own."""
    is_so = optimizer is None or keras_optimizer.is_element_wise(optimizer)
    return is_so and all(each.decays and each.constraint is None for each in parameters.values())


def _replicate(
    settings: Settings,
    mode: Mode,
    at: Placement,
    shards: Sequence[Shard],
    optimizer: Optimizer,
    make_step: StepFunction,
    steps: int,
    is_weighted: bool,
    course: SharedCourse,
    is_over: Variable,
) -> Replication:
    """Add the ops of the replication of this mode."""
    replicas, index = mode.replicas, mode.index
    if mode.is_collective:
        is_divided = is_weighted and mode.divides_by_weights
        group = replicas, index == 0, settings.wire_dtype, is_divided
        return allreduce.build(shards, make_step, optimizer, steps, *group, course.variable)
    if not mode.has_servers:
        return asynchronous.build(shards, make_step, optimizer, steps)
    membership = Membership.create(replicas, index, shards[0].device)
    if mode.is_independent:
        return asynchronous.build(shards, make_step, optimizer, steps, replicas, membership)
    if mode.averages_parameters:
        aggregation = local_sgd.aggregation(shards, make_step, optimizer, mode.local_steps, at.compute[0])
    else:
        aggregation = synchronous.gradients(shards, make_step, optimizer)
    place = replicas, index, mode.contributions
    return synchronous.build(shards, aggregation, steps, course.stop, *place, membership, is_over)
