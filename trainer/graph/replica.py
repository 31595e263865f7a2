"""The graph of one replica: the model between its batch and the shared variables, and the ops of its life.

`build` only adds ops to a graph. `trainer.training.train` runs them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.data.datasets import Examples
from trainer.errors import ConfigurationError
from trainer.graph import devices, execution, step_graph
from trainer.graph.batches import Batches, Feeding, MultiDeviceBatches, make_batches
from trainer.graph.checkpoints import Saver
from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Shard, create, plan
from trainer.graph.replication import (
    GradientFunction,
    Replication,
    allreduce,
    asynchronous,
    local_sgd,
    mirrored,
    synchronous,
)
from trainer.graph.step_graph import GraphTemplate
from trainer.models import Model, Parameter
from trainer.tensorflow import tf, tf1


@dataclass(frozen=True)
class Replica:
    """A replica's ops, in their graph."""

    graph: Any
    step_graph: Sequence[GraphTemplate]
    """What is copied into the graph for each step, by learners; kept for the Python functions that a model may have."""
    batches: Feeding
    learners: int
    """How many batches a step of this replica learns from."""
    replication: Replication
    global_step: Any
    """int64 scalar: the global step now."""
    is_ready: Any
    """bool scalar: every variable has a value and the chief leads."""
    is_initialized: Any
    """bool scalar: every variable has a value."""
    initialize: Any
    """Gives every variable its initial value; the chief's."""
    mark_ready: Any
    """Makes `is_ready` true; the chief's."""
    rate_scale: Any
    """The optimiser's variable of this name; None where the run cannot be rolled back."""
    run_id: Any
    """string scalar: the run that the parameter servers hold; to be read when `is_ready`."""
    saver: Any
    """The chief's `Saver`, all of its own ops on the chief; None on others."""


def build(
    settings: Settings,
    cluster: Cluster | None,
    model: Model,
    parameters: dict[str, Parameter],
    examples: Examples,
    gpus: int,
    run: str,
) -> Replica:
    """Build the graph of this task's replica, or of a single process where there is no cluster.

    Args:
        settings: Of the run.
        cluster: Who else is there.
        model: Gives the logits.
        parameters: What the model asks for.
        examples: To train on.
        gpus: GPUs that the replicas of this machine share; 0 computes on the CPU.
        run: Tells this run from others, on the parameter servers.

    Raises:
        ConfigurationError: replicas_to_aggregate is more than there are replicas.
    """
    here, worker, index = (cluster.task.device, cluster.task.index, cluster.replica_index) if cluster else ("", 0, 0)
    host = f"{here}/device:CPU:0"
    if settings.strategy == "mirrored":
        compute = devices.all_of(gpus)
    else:
        compute = [f"{here}/device:GPU:{worker % gpus}" if gpus else host]
    if settings.strategy == "ps":
        homes = [f"{ps.device}/device:CPU:0" for ps in cluster.parameter_servers] if cluster else [host]
    else:  # the replica's own
        homes = compute[:1]
    layout = plan(parameters, len(homes))
    # One for each learner: a Python function's gradient finds its own call by the number of the function.
    templates = [step_graph.make(model, layout, examples, settings.batch_size) for _ in compute]
    steps = execution.steps_per_execution(settings, sum(template.ops for template in templates))

    graph = tf.Graph()
    with graph.as_default(), tf1.device(compute[0]):
        shared = cluster is not None and settings.strategy == "ps" and not settings.sync_replicas
        optimizer = Optimizer.create(settings, shared, homes[0])
        rolls_back = settings.on_divergence == "restore"
        shards = create(parameters, layout, homes, settings.seed, optimizer.slots, drops_stale=shared and rolls_back)
        with tf1.device(homes[0] if settings.strategy == "ps" else host):
            leading = tf1.get_variable("led_run", initializer=run, trainable=False, use_resource=True)
        batches = []
        for number, device in enumerate(compute):
            with tf1.device(device), tf1.variable_scope(f"learner_{number}"):
                batches.append(make_batches(examples, settings.batch_size, (settings.seed, index + number), host))

        def learner(template: GraphTemplate, own: Batches) -> GradientFunction:
            return lambda values, number: template.copy(values, *own.tensors(number))

        learners = [learner(template, own) for template, own in zip(templates, batches, strict=True)]
        compute_gradients = learners[0] if len(learners) == 1 else mirrored.learn_on(compute, learners)
        replication = _replicate(settings, optimizer, cluster, shards, compute_gradients, steps, compute[0])

        with tf1.device(host):
            values = [variable for shard in shards for variable in shard.variables] + optimizer.variables
            is_initialized = tf.reduce_all(tf.stack([tf1.is_variable_initialized(value) for value in values]))
            is_ready = tf.logical_and(is_initialized, tf1.is_variable_initialized(leading))
            is_chief = cluster is None or cluster.is_chief
            servers = homes if cluster and settings.strategy == "ps" else []
            saver = Saver(layout, shards, optimizer.slots, servers, rolls_back) if is_chief else None
        replica = Replica(
            graph=graph,
            step_graph=templates,
            batches=MultiDeviceBatches(batches),
            learners=len(learners),
            replication=replication,
            global_step=shards[0].updates.read_value(),
            is_ready=is_ready,
            is_initialized=is_initialized,
            initialize=tf1.variables_initializer(values),
            mark_ready=leading.initializer,
            run_id=leading.read_value(),
            saver=saver,
            rate_scale=optimizer.scale,
        )
    graph.finalize()
    return replica


def _replicate(
    settings: Settings,
    optimizer: Optimizer,
    cluster: Cluster | None,
    shards: Sequence[Shard],
    compute_gradients: GradientFunction,
    steps: int,
    device: str,
) -> Replication:
    """Add the ops of the way in which this replica trains, on this device, together with the others."""
    index, replicas = (cluster.replica_index, len(cluster.replicas)) if cluster else (0, 1)
    aggregate = settings.replicas_to_aggregate or replicas
    if aggregate > replicas:
        raise ConfigurationError(
            f"replicas_to_aggregate: {aggregate} gradients a step were asked for, but there are {replicas} replicas, "
            "each of which gives one."
        )
    if settings.strategy == "allreduce":
        return allreduce.build(shards, compute_gradients, optimizer, steps, replicas, leads=index == 0)
    if not settings.sync_replicas:
        return asynchronous.build(shards, compute_gradients, optimizer, steps)
    if settings.local_steps > 1:
        aggregation = local_sgd.aggregation(shards, compute_gradients, optimizer, settings.local_steps, device)
    else:
        aggregation = synchronous.gradients(shards, compute_gradients, optimizer)
    return synchronous.build(shards, aggregation, steps, settings.train_steps, replicas, index, aggregate)


def describe_mode(settings: Settings, cluster: Cluster | None) -> str:
    """How the run's replicas work together, in a word."""
    if settings.strategy != "ps":
        return settings.strategy
    if cluster is None:
        return "single"
    if settings.local_steps > 1:
        return "local_sgd"
    return "synchronous" if settings.sync_replicas else "asynchronous"
