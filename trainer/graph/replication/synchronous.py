"""Synchronous replication: each round applies the average of what N replicas give, made of the same parameters.

What they give is an `Exchange`: `gradients`, for one global step a round, or what `averaging` has them give.

With N below the number of replicas, the slowest of each round are backups: their gifts come too late and are
dropped (Chen et al., "Revisiting Distributed Synchronous SGD", 2016).

Two kinds of things on the parameter servers make it work. An accumulator beside each shard of the parameters takes
gifts marked with the step whose parameters they are of, and drops stale ones. A queue of tokens for each replica
tells it that a round has begun; a token is the global step then. A replica takes its newest token, reads the
parameters, gives once, and waits for the next token. The chief, in a loop of its own, takes N replicas' average,
applies it, and hands out the next tokens. Between two runs of that loop more than N may come; they are dropped too.

Unlike `tf.compat.v1.train.SyncReplicasOptimizer`, each replica has a queue of its own: so it gives each round at most
once, and a replica that was away finds no pile of stale work. After the last step nobody waits for a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Shard
from trainer.graph.replication import Execution, GradientFunction, Replication, StepOutputs
from trainer.tensorflow import tf, tf1

TOKENS_KEPT = 1000
"""Tokens kept for a replica that does not take them: it may be away for the rest of a long run."""


@dataclass(frozen=True)
class Aggregation:
    """What a replica gives in each round, and what becomes of the average."""

    steps: int
    """Global steps that a round makes."""
    size: int
    """Numbers in what is given, for each number of the shard that it is for."""
    push: Callable[[int, Any], tuple[Sequence[Any], StepOutputs]]
    """Adds the ops of a call's round of a number: what it gives for each shard, float32 [size * n], of parameters read
    after an op that lets it begin, and what it learnt last. Only the reading waits for that op: nothing else needs to
    hear of it, which would be one more message over the wire."""
    apply: Callable[[Sequence[Any]], list[Any]]
    """Adds the ops by which the averages change their shards, on the shards' devices, after the control dependencies in
    force, so that what else they need is read while the averages are awaited; for each shard the last of them, which
    counts the steps."""


def gradients(shards: Sequence[Shard], compute_gradients: GradientFunction, optimizer: Optimizer) -> Aggregation:
    """The exchange of gradients, each round one step of the optimiser."""

    def push(number: int, begin: Any) -> tuple[Sequence[Any], StepOutputs]:
        with tf.control_dependencies([begin]):
            values, _ = zip(*[shard.read() for shard in shards], strict=True)
        outputs = compute_gradients(values, number)
        return outputs.gradients, outputs

    def apply(averages: Sequence[Any]) -> list[Any]:
        counts = [shard.read()[1] for shard in shards]
        return optimizer.apply(shards, counts, averages)

    return Aggregation(1, 1, push, apply)


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
        shards: Where the parameters are.
        aggregation: What replicas give for them.
        steps: How many steps a call takes, in whole rounds.
        train_steps: The run's last global step.
        replicas: How many replicas there are.
        replica_index: Which one this is; 0 is the chief.
        replicas_to_aggregate: How many of them make a round.
    """
    accumulators = [_accumulator(shard, aggregation.size) for shard in shards]
    with tf1.device(shards[0].device):
        queues = [_token_queue(index) for index in range(replicas)]
    wanted = replicas_to_aggregate if replicas_to_aggregate < replicas else None
    rounds = steps // aggregation.steps
    join, executions = _follow(shards, aggregation, rounds, train_steps, accumulators, queues[replica_index], wanted)
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
    wanted: int | None,
) -> tuple[Any, dict[int, Execution]]:
    """What every replica does: join the run, and give.

    `queue` has its tokens. With backups, only so many gifts of a round are `wanted`; None where all are.
    """
    home, global_step = shards[0].device, shards[0].updates

    def take_tokens() -> Any:
        """All tokens that are there, at least one; after the last step also none."""
        running = tf.cast(global_step.read_value() < train_steps, tf.int32)
        return queue.dequeue_many(tf.maximum(queue.size(), running))

    with tf1.device(home):
        forgotten = queue.dequeue_many(queue.size())  # a former life's tokens; nobody else takes them
    with tf1.device(home), tf.control_dependencies([forgotten]):
        join = queue.enqueue(global_step.read_value())

    executions = {}
    given: list[Any] = []
    for number in range(rounds):
        with tf.control_dependencies(given), tf1.device(home):
            local_step = tf.reduce_max(take_tokens())  # of no tokens: the least of all numbers, a stale step
        contributions, outputs = aggregation.push(number, local_step)
        given = []
        for shard, accumulator, contribution in zip(shards, accumulators, contributions, strict=True):
            with tf1.device(shard.device):
                arrived = tf.identity(contribution)
                mark = local_step if wanted is None else _unless_enough(accumulator, wanted, arrived, local_step)
                given.append(accumulator.apply_grad(arrived, mark))
        if number + 1 in (1, rounds):
            with tf.control_dependencies(given), tf1.device(home):
                next_tokens = take_tokens()
                with tf.control_dependencies([queue.enqueue_many([next_tokens])]):  # for the next call
                    executions[(number + 1) * aggregation.steps] = Execution(
                        global_step.read_value(), outputs.loss, outputs.accuracy
                    )
    return join, executions


def _lead(
    shards: Sequence[Shard],
    aggregation: Aggregation,
    rounds: int,
    accumulators: Sequence[Any],
    queues: Sequence[Any],
    replicas_to_aggregate: int,
) -> tuple[Any, dict[int, Any]]:
    """What the chief does besides: begin, and make global steps of what is given."""
    home, global_step = shards[0].device, shards[0].updates

    def begin_round(number: Any) -> tuple[list[Any], Any]:
        """Let replicas begin a round at this step: what is of earlier steps' parameters is dropped from now on.

        Returns:
            What is done when they are dropped, and what is done when all replicas have been told.
        """
        marked = []
        for shard, accumulator in zip(shards, accumulators, strict=True):
            with tf1.device(shard.device):
                marked.append(accumulator.set_global_step(number))
        with tf.control_dependencies(marked), tf1.device(home):
            return marked, tf.group(*[_offer(queue, number) for queue in queues])

    # A chief that comes back finds gifts of which its former life took some and not others: all are forgotten, and
    # replicas give theirs again.
    forgotten = []
    for shard, accumulator in zip(shards, accumulators, strict=True):
        with tf1.device(shard.device):
            forgotten.append(_forget(accumulator, aggregation.size * shard.values.shape[0]))
    with tf.control_dependencies(forgotten):
        _, lead = begin_round(global_step.read_value())

    updates = {}
    marked: list[Any] = []
    told: list[Any] = []
    for number in range(rounds):
        averages = []
        with tf.control_dependencies(marked):
            for shard, accumulator in zip(shards, accumulators, strict=True):
                with tf1.device(shard.device):
                    averages.append(accumulator.take_grad(replicas_to_aggregate))
            applied = aggregation.apply(averages)
        with tf.control_dependencies(applied), tf1.device(home):
            next_step = global_step.read_value()
        marked, all_told = begin_round(next_step)
        told.append(all_told)
        if number + 1 in (1, rounds):
            with tf.control_dependencies(told), tf1.device(home):
                updates[(number + 1) * aggregation.steps] = tf.identity(next_step)
    return lead, updates


def _accumulator(shard: Shard, size: int) -> Any:
    """The accumulator of what is given for a shard, which all replicas share by its name."""
    name = f"{shard.name}/gradients"
    with tf1.device(shard.device):
        shape = [size * shard.values.shape[0]]
        return tf1.ConditionalAccumulator(tf.float32, shape, shared_name=name, name=name)


def _token_queue(index: int) -> Any:
    """The queue of one replica's tokens, int64 scalars, which the chief and that replica share by its name."""
    name = f"tokens/{index}"
    return tf.queue.FIFOQueue(TOKENS_KEPT, tf.int64, shapes=[()], shared_name=name, name=name)


def _offer(queue: Any, token: Any) -> Any:
    """Put a token into a queue that is not full, so that this never blocks."""
    room = tf.cast(queue.size() < TOKENS_KEPT, tf.int32)
    return queue.enqueue_many([tf.fill([room], token)])


def _unless_enough(accumulator: Any, wanted: int, arrived: Any, local_step: Any) -> Any:
    """The step to mark an arrived gift with: a stale one where the accumulator has as many as are wanted."""
    with tf.control_dependencies([arrived]):
        return tf.where(accumulator.num_accumulated() < wanted, local_step, tf.int64.min)


def _forget(accumulator: Any, length: int) -> Any:
    """Empty an accumulator; what is given first keeps the taking from waiting."""
    with tf.control_dependencies([accumulator.apply_grad(tf.zeros([length]), tf.int64.max)]):
        return accumulator.take_grad(1)
