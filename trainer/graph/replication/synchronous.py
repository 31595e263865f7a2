"""Synchronous replication: each round applies the average of N replicas' contributions from the same parameters.

An `Aggregation` defines the contributions: `gradients`, with one global step per round, or those of `local_sgd`.

With N below the number of replicas, the slowest replicas of each round are backups: their contributions arrive too late
and are dropped (Chen et al., "Revisiting Distributed Synchronous SGD", 2016).

The parameter servers hold two kinds of objects. Next to each shard of the parameters, an accumulator collects
contributions, each marked with the global step of its parameters, and drops stale ones. For each replica, a queue of
tokens announces the rounds; a token is the global step at the start of the round. A replica dequeues its newest token,
reads the parameters, contributes once, and waits for the next token. The chief's update loop takes the average of N
contributions, applies it and enqueues the next tokens. Contributions above N between two updates are also dropped.

Unlike in `tf.compat.v1.train.SyncReplicasOptimizer`, each replica has its own queue. It therefore contributes at most
once per round, and a replica that rejoins does not process stale tokens. After the last step, no replica waits for a
token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Shard
from trainer.graph.replication import Execution, GradientFunction, Replication, StepOutputs
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor

TOKEN_QUEUE_CAPACITY = 1000
"""Capacity of a token queue. A replica that is absent for the rest of a long run dequeues no tokens."""


@dataclass(frozen=True)
class Aggregation:
    """What a replica contributes in each round, and how the average is applied."""

    steps: int
    """Global steps per round."""
    size: Callable[[Shard], int]
    """The elements of a contribution to this shard."""
    push: Callable[[int, Tensor], tuple[Sequence[Tensor], StepOutputs]]
    """Adds the ops of an execution's round with this index: the contribution for each shard, [size], as `Shard.send`
    prepares it, and the outputs of the last step. The second argument is an op after which the parameters are read.
    Only the reads depend on it: any other dependency would be one more message over the wire."""
    apply: Callable[[Sequence[Tensor]], list[Operation]]
    """Adds the ops that apply the averages to their shards, on the shards' devices and after the current control
    dependencies, so that their other inputs are read while the averages are pending. Returns for each shard the last
    op, which counts the steps."""


def gradients(shards: Sequence[Shard], compute_gradients: GradientFunction, optimizer: Optimizer) -> Aggregation:
    """The aggregation of gradients: each round is one step of the optimizer."""

    def push(number: int, start: Tensor) -> tuple[Sequence[Tensor], StepOutputs]:
        with tf.control_dependencies([start]):
            values, _ = zip(*[shard.read() for shard in shards], strict=True)
        outputs = compute_gradients(values, number)
        return [shard.send(gradient) for shard, gradient in zip(shards, outputs.gradients, strict=True)], outputs

    def apply(averages: Sequence[Tensor]) -> list[Operation]:
        counts = [shard.read()[1] for shard in shards]
        return optimizer.apply(shards, counts, optimizer.clip(shards, averages))

    return Aggregation(1, lambda shard: shard.size, push, apply)


def build(
    shards: Sequence[Shard],
    aggregation: Aggregation,
    steps: int,
    train_steps: int,
    replicas: int,
    replica_index: int,
    replicas_to_aggregate: int,
) -> Replication:
    """Add the ops of one synchronous replica to the default graph.

    Args:
        shards: The parameters.
        aggregation: Defines the contributions and how they are applied.
        steps: Steps per execution, a multiple of the steps per round.
        train_steps: The last global step of the run.
        replicas: Number of replicas.
        replica_index: Index of this replica; 0 is the chief.
        replicas_to_aggregate: Contributions per round.
    """
    accumulators = [_accumulator(shard, aggregation.size(shard)) for shard in shards]
    with tf1.device(shards[0].device):
        queues = [_token_queue(index) for index in range(replicas)]
    limit = replicas_to_aggregate if replicas_to_aggregate < replicas else None
    rounds = steps // aggregation.steps
    join, executions = _follow(shards, aggregation, rounds, train_steps, accumulators, queues[replica_index], limit)
    if replica_index > 0:
        return Replication(executions, join, lead=tf.no_op(), updates={})
    lead, updates = _lead(shards, aggregation, rounds, accumulators, queues, replicas_to_aggregate)
    return Replication(executions, join, lead, updates)


def _follow(
    shards: Sequence[Shard],
    aggregation: Aggregation,
    rounds: int,
    train_steps: int,
    accumulators: Sequence[Any],
    queue: Any,
    limit: int | None,
) -> tuple[Operation, dict[int, Execution]]:
    """Add the ops of every replica: join the run and contribute.

    `queue` is the token queue of the replica. `limit` is the number of contributions per round; None without backups.
    """
    home, global_step = shards[0].device, shards[0].updates

    def dequeue_tokens() -> Tensor:
        """Dequeue all tokens. Waits for at least one until the last step."""
        running = tf.cast(global_step.read_value() < train_steps, tf.int32)
        return queue.dequeue_many(tf.maximum(queue.size(), running))

    with tf1.device(home):
        old_tokens = queue.dequeue_many(queue.size())  # left by an earlier process of this task
    with tf1.device(home), tf.control_dependencies([old_tokens]):
        join = queue.enqueue(global_step.read_value())

    executions = {}
    pushed: list[Operation] = []
    for number in range(rounds):
        with tf.control_dependencies(pushed), tf1.device(home):
            local_step = tf.reduce_max(dequeue_tokens())  # without tokens, the smallest int64, which is a stale step
        contributions, outputs = aggregation.push(number, local_step)
        pushed = []
        for shard, accumulator, contribution in zip(shards, accumulators, contributions, strict=True):
            with tf1.device(shard.device):
                arrived = tf.identity(shard.receive(contribution))
                step = local_step if limit is None else _stale_if_full(accumulator, limit, arrived, local_step)
                pushed.append(accumulator.apply_grad(arrived, step))
        if number + 1 in (1, rounds):
            with tf.control_dependencies(pushed), tf1.device(home):
                next_tokens = dequeue_tokens()
                with tf.control_dependencies([queue.enqueue_many([next_tokens])]):  # for the next execution
                    executions[(number + 1) * aggregation.steps] = Execution(
                        global_step.read_value(), outputs.loss, outputs.metrics
                    )
    return join, executions


def _lead(
    shards: Sequence[Shard],
    aggregation: Aggregation,
    rounds: int,
    accumulators: Sequence[Any],
    queues: Sequence[Any],
    replicas_to_aggregate: int,
) -> tuple[Operation, dict[int, Tensor]]:
    """Add the ops of the chief: start the first round, and apply the averages of each round."""
    home, global_step = shards[0].device, shards[0].updates

    def start_round(step: Tensor) -> tuple[list[Operation], Operation]:
        """Start a round at this global step. Contributions from the parameters of earlier steps are dropped.

        Returns:
            Ops that complete when the accumulators drop them, and an op that completes when all tokens are enqueued.
        """
        marked = []
        for shard, accumulator in zip(shards, accumulators, strict=True):
            with tf1.device(shard.device):
                marked.append(accumulator.set_global_step(step))
        with tf.control_dependencies(marked), tf1.device(home):
            return marked, tf.group(*[_enqueue(queue, step) for queue in queues])

    # An earlier process of the chief may have taken contributions from some accumulators only. Discard all of them; the
    # replicas contribute again.
    emptied = []
    for shard, accumulator in zip(shards, accumulators, strict=True):
        with tf1.device(shard.device):
            emptied.append(_empty(accumulator, aggregation.size(shard)))
    with tf.control_dependencies(emptied):
        _, lead = start_round(global_step.read_value())

    updates = {}
    marked: list[Operation] = []
    enqueued: list[Operation] = []
    for number in range(rounds):
        averages = []
        with tf.control_dependencies(marked):
            for shard, accumulator in zip(shards, accumulators, strict=True):
                with tf1.device(shard.device):
                    averages.append(accumulator.take_grad(replicas_to_aggregate))
            applied = aggregation.apply(averages)
        with tf.control_dependencies(applied), tf1.device(home):
            next_step = global_step.read_value()
        marked, tokens_enqueued = start_round(next_step)
        enqueued.append(tokens_enqueued)
        if number + 1 in (1, rounds):
            with tf.control_dependencies(enqueued), tf1.device(home):
                updates[(number + 1) * aggregation.steps] = tf.identity(next_step)
    return lead, updates


def _accumulator(shard: Shard, size: int) -> Any:
    """The accumulator of a shard's contributions. All replicas share it by name."""
    name = f"{shard.name}/gradients"
    with tf1.device(shard.device):
        return tf1.ConditionalAccumulator(tf.float32, [size], shared_name=name, name=name)


def _token_queue(index: int) -> Any:
    """The queue of one replica's tokens, int64 scalars. The chief and the replica share it by name."""
    name = f"tokens/{index}"
    return tf.queue.FIFOQueue(TOKEN_QUEUE_CAPACITY, tf.int64, shapes=[()], shared_name=name, name=name)


def _enqueue(queue: Any, token: Tensor) -> Operation:
    """Enqueue a token if the queue is not full. Never blocks."""
    room = tf.cast(queue.size() < TOKEN_QUEUE_CAPACITY, tf.int32)
    return queue.enqueue_many([tf.fill([room], token)])


def _stale_if_full(accumulator: Any, limit: int, arrived: Tensor, local_step: Tensor) -> Tensor:
    """The step of an arrived contribution; a stale step if the accumulator already has `limit` contributions."""
    with tf.control_dependencies([arrived]):
        return tf.where(accumulator.num_accumulated() < limit, local_step, tf.int64.min)


def _empty(accumulator: Any, length: int) -> Tensor:
    """Empty an accumulator. It adds zeros first, so that the take does not block."""
    with tf.control_dependencies([accumulator.apply_grad(tf.zeros([length]), tf.int64.max)]):
        return accumulator.take_grad(1)
