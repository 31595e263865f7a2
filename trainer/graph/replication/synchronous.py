"""Synchronous replication: each round applies the average of N replicas' contributions from the same parameters.

An `Aggregation` defines the contributions: `gradients`, with one global step per round, or those of `local_sgd`.

With N below the number of replicas, the slowest replicas of each round are backups: their contributions arrive too late
and are dropped (Chen et al., "Revisiting Distributed Synchronous SGD", 2016).

The parameter servers hold two kinds of objects. Next to each shard of the parameters, an accumulator collects
contributions, each marked with the global step of its parameters, and drops stale ones. For each replica, a queue of
tokens announces the rounds; a token is the global step at the start of the round. A replica dequeues its newest token,
reads the parameters, contributes once, and waits for the next token. The chief's update loop takes the average of N
contributions, applies it and enqueues the next tokens. Contributions above N between two updates are also dropped.

The gradients of the rows of a table go to `RowSums`, which sums those of each row, and the weights of contributions. A
contribution to it is made before that of the dense parameters, so that a round which has all of these has all of those.

The parameter servers exchange few messages, so that a run can have many of them. The first one learns when each of them
has applied a round. It then hands out the tokens, passes each replica's on to all as the start of its reads, and tells
all of the next round, with the contributions that it needs. An accumulator itself counts a step when its contributions
are taken. `round_begun`, a variable on the first one, is the step that all shards have reached, or after a restart of
the chief the first one.

Workers may come and go, so N is a variable on the first parameter server, which the chief changes between two rounds
(`trainer.training.watch.replica_monitor`). A contribution ends with its weight: 1.0, or the share of the examples of
its batch in a full one. The average is the sum of the others divided by the sum of these. So the chief can end a round
that waits for a lost replica: it adds zeros until N is reached, which do not change the average.

A contribution counts if the round waits for it: otherwise it would take the place of another one. So a replica that
joins marks its contributions as stale until the chief has seen it. `counted_from`, a variable on the first parameter
server, has for each replica the first round that waits for it.

Unlike in `tf.compat.v1.train.SyncReplicasOptimizer`, each replica has its own queue. It therefore contributes at most
once per round, and a replica that rejoins does not process stale tokens. After the last step, no replica waits for a
token.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.graph.execution import sizes
from trainer.graph.optimizer import Optimizer
from trainer.graph.replication import Execution, Replication, Rounds, StepFunction, StepOutputs
from trainer.graph.replication.membership import Membership
from trainer.kernels import row_sums
from trainer.kernels.row_sums import RowSums
from trainer.shards.parameters import Rows, Shard
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor, Variable

NEVER = 2**62
"""The first round of a replica whose contributions do not count."""
TOKEN_QUEUE_CAPACITY = 1000
"""Capacity of a token queue. A replica that is absent for the rest of a long run dequeues no tokens."""


@dataclass(frozen=True)
class Aggregation:
    """What a replica contributes in each round, and how the average is applied."""

    steps: int
    """Global steps per round."""
    size: Callable[[Shard], int]
    """The elements of an average for this shard. A contribution has one more: its weight."""
    push: Callable[[int, Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Rows], StepOutputs]]
    """Adds the ops of an execution's round with this index: the contribution for each shard, [size + 1] and then the
    gradients of rows, as `Shard.send` prepares it; these rows for each shard; and the outputs of the last step. The
    second argument has for each shard an op on its device, after which its parameters are read. Only the reads depend
    on it: any other dependency would be one more message over the wire."""
    apply: Callable[[Sequence[Tensor], Sequence[Rows], Sequence[Sequence[Operation]]], list[Operation]]
    """Adds the ops that apply the averages, each [size] and then the averages of rows, and these rows, to their shards,
    on the shards' devices. Each shard is read after the ops that the third argument has for it, while the averages are
    pending. Returns for each shard the last op, which counts the steps."""


def gradients(shards: Sequence[Shard], make_step: StepFunction, optimizer: Optimizer) -> Aggregation:
    """The aggregation of gradients, each with its weight at its end: each round is one step of the optimizer."""

    def push(number: int, starts: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Rows], StepOutputs]:
        step, values = make_step(number), []
        for shard, rows, start in zip(shards, step.rows, starts, strict=True):
            with tf.control_dependencies([start]):
                values.append(shard.read(rows)[0])
        outputs = step.compute(values)
        sent = [shard.send(gradient) for shard, gradient in zip(shards, outputs.gradients, strict=True)]
        return sent, step.rows, outputs

    def apply(
        averages: Sequence[Tensor], rows: Sequence[Rows], after: Sequence[Sequence[Operation]]
    ) -> list[Operation]:
        applied = []
        clipped = optimizer.clip(shards, averages, rows)
        for shard, average, own, ended in zip(shards, clipped, rows, after, strict=True):
            with tf.control_dependencies(ended):
                applied += optimizer.apply([shard], [shard.read()[1]], [average], [own])
        return applied

    return Aggregation(1, lambda shard: shard.size, push, apply)


@dataclass(frozen=True)
class Accumulator:
    """What collects the contributions to a shard. All replicas share it by name."""

    shard: Shard
    size: int
    """The elements of an average of the dense parameters."""
    dense: Any
    """The `ConditionalAccumulator` of contributions [size + 1]."""
    sparse: Sequence[RowSums]
    """For each table, the sums of contributions."""

    @classmethod
    def create(cls, shard: Shard, size: int) -> "Accumulator":
        """Add the ops to the default graph, on the shard's device."""

        def named(name: str) -> dict[str, Any]:
            return {"shared_name": name, "name": name, "reduction_type": "SUM"}

        with tf1.device(shard.device):
            dense = tf1.ConditionalAccumulator(tf.float32, [size + 1], **named(f"{shard.name}/gradients"))
            sparse = [
                row_sums.create(f"{shard.name}/gradients_{number}", table.rows, table.dim)
                for number, table in enumerate(shard.tables)
            ]
        return cls(shard, size, dense, sparse)

    def add(self, contribution: Tensor, rows: Rows, step: Tensor) -> Operation:
        """Add the ops of a contribution, computed at this global step."""
        vector, gradients = self.shard.split_rows(contribution, rows, more=1)
        added = [
            sums.add(own, gradient, vector[-1], step)
            for sums, own, gradient in zip(self.sparse, rows, gradients, strict=False)
        ]
        with tf.control_dependencies(added):
            return self.dense.apply_grad(vector, step)

    def fill(self, step: Tensor) -> Operation:
        """Add the op of a contribution of zeros, which does not change the average."""
        return self.dense.apply_grad(tf.zeros([self.size + 1]), step)

    def take(self, count: Tensor) -> tuple[Tensor, Rows]:
        """Add the ops that wait for this many contributions, and return their average and its rows."""
        total = self.dense.take_grad(count)
        average = tf.math.divide_no_nan(total[:-1], total[-1])
        if not self.sparse:
            return average, ()
        with tf.control_dependencies([total]):
            taken = [each.take() for each in self.sparse]
        return tf.concat([average, *(averages for _, averages in taken)], axis=0), [rows for rows, _ in taken]

    def start(self, step: Tensor) -> Operation:
        """Add the ops that start a round at this global step: contributions to earlier ones are dropped."""
        return tf.group(self.dense.set_global_step(step), *[each.start(step) for each in self.sparse])

    def empty(self) -> Operation:
        """Add the ops that empty it. They add something to the dense one first, so that the take does not block."""
        with tf.control_dependencies([self.fill(tf.int64.max)]):
            return tf.group(self.dense.take_grad(1), *[each.empty() for each in self.sparse])


def build(
    shards: Sequence[Shard],
    aggregation: Aggregation,
    steps: int,
    stop: Callable[[], Tensor],
    replicas: int,
    replica_index: int,
    replicas_to_aggregate: int,
    membership: Membership,
    is_over: Variable = None,
) -> Replication:
    """Add the ops of one synchronous replica to the default graph.

    Args:
        shards: The parameters.
        aggregation: Defines the contributions and how they are applied.
        steps: Steps per execution, a multiple of the steps per round.
        stop: Adds the global step at which the run ends.
        replicas: Number of listed replicas.
        replica_index: Index of this replica; 0 is the chief.
        replicas_to_aggregate: Contributions per round, at most.
        membership: Which of the replicas take part.
        is_over: bool variable: whether the run ends before its last step; None if it cannot.
    """
    accumulators = [Accumulator.create(shard, aggregation.size(shard)) for shard in shards]
    with tf1.device(shards[0].device):
        # `lead` sets it. Until then it may be that of a run which lost another parameter server.
        begun = tf1.get_variable("round_begun", initializer=tf.zeros([], tf.int64), trainable=False, use_resource=True)
        queues = [_token_queue(index) for index in range(replicas)]
        none = tf.zeros([replicas], tf.int64)
        counted_from = tf1.get_variable("counted_from", initializer=none, trainable=False, use_resource=True)
        are_kept = tf.constant(row_sums.are_kept())
        kept = tf1.get_variable("row_sums_are_kept", initializer=are_kept, trainable=False, use_resource=True)
    limit = replicas_to_aggregate if replicas_to_aggregate < replicas else None
    rounds = steps // aggregation.steps
    queue = queues[replica_index]

    def reached() -> Tensor:
        """The step that all shards have reached, in the restored run too."""
        return tf.minimum(begun.read_value(), shards[0].updates.read_value())

    def is_running() -> Tensor:
        running = reached() < stop()
        return running if is_over is None else tf.logical_and(running, tf.logical_not(is_over.read_value()))

    def counts_from() -> Tensor:
        """The first round for which this replica counts."""
        return counted_from.read_value()[replica_index]

    of_replica = queue, limit, membership, counts_from
    join, executions = _follow(shards, aggregation, rounds, is_running, accumulators, *of_replica, reached)
    if any(shard.tables for shard in shards):
        with tf1.device(shards[0].device):
            join = tf.group(join, row_sums.check(kept))
    if replica_index > 0:
        return Replication(executions, join, lead=tf.no_op(), updates={}, membership=membership)
    with tf1.device(shards[0].device):
        number = tf.constant(replicas_to_aggregate)
        wanted = tf1.get_variable("contributions_wanted", initializer=number, trainable=False, use_resource=True)
    lead, updates = _lead(shards, aggregation, rounds, accumulators, queues, [wanted, counted_from], begun)
    lead = tf.group(lead, membership.reset, kept.initializer)
    return Replication(
        executions,
        join,
        lead,
        updates,
        membership=membership,
        rounds=_rounds(shards, accumulators, wanted, counted_from, begun, aggregation.steps, queues),
        release=lambda: _release(shards, accumulators, queues),
    )


def _follow(
    shards: Sequence[Shard],
    aggregation: Aggregation,
    rounds: int,
    is_running: Callable[[], Tensor],
    accumulators: Sequence[Accumulator],
    queue: Any,
    limit: int | None,
    membership: Membership,
    counts_from: Callable[[], Tensor],
    reached: Callable[[], Tensor],
) -> tuple[Operation, dict[int, Execution]]:
    """Add the ops of every replica: join the run and contribute.

    `queue` is the token queue of the replica. `limit` is the number of contributions per round; None without backups.
    `counts_from` adds the first round that waits for it.
    """
    home = shards[0].device

    def dequeue_tokens() -> Tensor:
        """Dequeue all tokens. Waits for at least one until the last step."""
        return queue.dequeue_many(tf.maximum(queue.size(), tf.cast(is_running(), tf.int32)))

    with tf1.device(home):
        old_tokens = queue.dequeue_many(queue.size())  # left by an earlier process of this task
    with tf1.device(home), tf.control_dependencies([old_tokens]):
        join = queue.enqueue(reached())

    executions, tokens = {}, []
    contributed: list[Operation] = []
    pushed: list[list[Operation]] = [[] for _ in shards]
    for number in range(rounds):
        with tf.control_dependencies(contributed), tf1.device(home):
            token = tf.reduce_max(dequeue_tokens())  # without tokens, the smallest int64, which is a stale step
            local_step = token
            if limit is None:
                with tf.control_dependencies([token]):
                    local_step = tf.where(token >= counts_from(), token, tf.int64.min)
            tokens.append(token)
        local_steps = []
        for shard, earlier in zip(shards, pushed, strict=True):
            with tf.control_dependencies(earlier), tf1.device(shard.device):
                local_steps.append(tf.identity(local_step))
        contributions, rows, outputs = aggregation.push(number, local_steps)
        pushed = []
        every = zip(shards, accumulators, local_steps, contributions, rows, strict=True)
        for shard, accumulator, step, contribution, own in every:
            with tf1.device(shard.device):
                arrived = tf.identity(shard.receive(contribution))
                marked = step if limit is None else _stale_if_full(accumulator.dense, limit, arrived, step)
                pushed.append([accumulator.add(arrived, own, marked)])
        with tf.control_dependencies(pushed[0]):  # of the first shard, which is on the same device
            contributed = [membership.contributed(token)]
        if number + 1 in sizes(rounds):
            with tf.control_dependencies([*contributed, *itertools.chain(*pushed)]), tf1.device(home):
                next_tokens = dequeue_tokens()
                with tf.control_dependencies([queue.enqueue_many([next_tokens])]):  # for the next execution
                    after, is_counted = reached(), None
                    if limit is None:
                        expected = tokens[0] + aggregation.steps * np.arange(number + 2, dtype=np.int64)
                        has_all = tf.reduce_all(tf.equal(tf.stack([*tokens, after]), expected))
                        is_counted = has_all & (tokens[0] >= counts_from())
                    executions[(number + 1) * aggregation.steps] = Execution(
                        after, outputs.loss, outputs.metrics, outputs.totals, is_counted
                    )
    return join, executions


def _lead(
    shards: Sequence[Shard],
    aggregation: Aggregation,
    rounds: int,
    accumulators: Sequence[Accumulator],
    queues: Sequence[Any],
    waited_for: Sequence[Variable],
    begun: Variable,
) -> tuple[Operation, dict[int, Tensor]]:
    """Add the ops of the chief: start the first round, and apply the averages of each round.

    `waited_for` are the number of contributions that a round needs, and from which round on each replica counts.
    """
    wanted, counted_from = waited_for
    home, global_step = shards[0].device, shards[0].updates

    def tell(step: Tensor) -> list[Tensor]:
        """Tell each shard of a round: its global step and the contributions that it needs, on the shard's device."""
        with tf.control_dependencies([step]), tf1.device(home):
            counted = tf.reduce_sum(tf.cast(counted_from.read_value() <= step, tf.int64))
            present = tf.stack([step, tf.clip_by_value(counted, 1, tf.cast(wanted.read_value(), tf.int64))])
        told = []
        for shard in shards:
            with tf1.device(shard.device):
                told.append(tf.identity(present))
        return told

    def mark(told: Sequence[Tensor]) -> list[Operation]:
        """For each shard, add the op after which it drops contributions to earlier rounds."""
        marked = []
        for shard, accumulator, present in zip(shards, accumulators, told, strict=True):
            with tf1.device(shard.device):
                marked.append(accumulator.start(present[0]))
        return marked

    def hand_out(step: Tensor, after: Sequence[Operation]) -> Operation:
        """Begin a round: enqueue its tokens."""
        with tf.control_dependencies(after), tf1.device(home):
            known = begun.assign(step, read_value=False)
        with tf.control_dependencies([known]), tf1.device(home):
            return tf.group(*[_enqueue(queue, step) for queue in queues])

    # An earlier process of the chief may have taken contributions from some accumulators only. Discard all of them; the
    # replicas contribute again.
    emptied = []
    for shard, accumulator in zip(shards, accumulators, strict=True):
        with tf1.device(shard.device):
            emptied.append(accumulator.empty())
    emptied += [each.initializer for each in waited_for]
    with tf.control_dependencies(emptied), tf1.device(home):
        # It may have applied a round to some shards only. All take that round again.
        first_step = tf.reduce_min(tf.stack([shard.updates.read_value() for shard in shards]))
    counted = [shard.updates.assign(first_step, read_value=False) for shard in shards]
    with tf.control_dependencies(counted):
        lead = hand_out(first_step, mark(tell(first_step)))

    updates = {}
    with tf1.device(home):
        told = tell(global_step.read_value())
    after: list[list[Operation]] = [[present] for present in told]
    enqueued: list[Operation] = []
    for number in range(rounds):
        averages, rows = [], []
        for shard, accumulator, present, ended in zip(shards, accumulators, told, after, strict=True):
            with tf.control_dependencies(ended), tf1.device(shard.device):
                average, own = accumulator.take(tf.cast(present[1], tf.int32))
            averages.append(average)
            rows.append(own)
        applied = aggregation.apply(averages, rows, after)
        with tf.control_dependencies(applied), tf1.device(home):
            next_step = global_step.read_value()
        told = tell(next_step)
        # The accumulators have counted one step.
        marked = mark(told) if aggregation.steps > 1 else []
        enqueued.append(hand_out(next_step, marked))
        after = [[each] for each in marked or told]
        if number + 1 in (1, rounds):
            with tf.control_dependencies(enqueued), tf1.device(home):
                updates[(number + 1) * aggregation.steps] = tf.identity(next_step)
    return lead, updates


def _release(shards: Sequence[Shard], accumulators: Sequence[Accumulator], queues: Sequence[Any]) -> Operation:
    """Add the op that gives each replica a token without a round, and drops what it contributes then."""
    step, dropped = shards[0].updates.read_value(), []
    for shard, accumulator in zip(shards, accumulators, strict=True):
        with tf1.device(shard.device):
            dropped.append(accumulator.start(step + 1))
    with tf.control_dependencies(dropped), tf1.device(shards[0].device):
        return tf.group(*[_enqueue(queue, step) for queue in queues])


def _rounds(
    shards: Sequence[Shard],
    accumulators: Sequence[Accumulator],
    wanted: Variable,
    counted_from: Variable,
    begun: Variable,
    steps: int,
    queues: Sequence[Any],
) -> Rounds:
    """Add the ops with which the chief changes the number of contributions per round."""
    with tf1.device(shards[0].device):
        number, step = tf1.placeholder(tf.int32, []), tf1.placeholder(tf.int64, [])
        waited_for = tf.reduce_sum(tf.cast(counted_from.read_value() <= begun.read_value(), tf.int32))
        needed = tf.minimum(waited_for, wanted.read_value())
    given, completed = [], []
    for shard, accumulator in zip(shards, accumulators, strict=True):
        with tf1.device(shard.device):
            count = accumulator.dense.num_accumulated()
            given.append(tf.identity(count))
            has_all = tf.logical_and(count >= needed, needed > 0)
            # When the update has taken the contributions, the accumulator drops those to the same step.
            completed.append(accumulator.fill(tf.where(has_all, step, tf.int64.min)))
    with tf1.device(shards[0].device):
        counted = tf1.placeholder_with_default(tf.ones(counted_from.shape, tf.bool), counted_from.shape)
        delay = tf1.placeholder_with_default(tf.zeros([], tf.int64), [])
        with tf.control_dependencies([wanted.assign(number, read_value=False)]):
            first = tf.minimum(counted_from.read_value(), begun.read_value() + steps * delay)
        want = counted_from.assign(tf.where(counted, first, NEVER), read_value=False)
        is_present = tf.cast(tf.equal(begun.read_value(), step), tf.int32)
        again = [_enqueue(queue, step, is_present) for queue in queues]
        changes = (want, tf.group(*completed), tf.group(*again))
        return Rounds(number, counted, delay, begun.read_value(), tf.stack(given), step, needed, *changes)


def _token_queue(index: int) -> Any:
    """The queue of one replica's tokens, int64 scalars. The chief and the replica share it by name."""
    name = f"tokens/{index}"
    return tf.queue.FIFOQueue(TOKEN_QUEUE_CAPACITY, tf.int64, shapes=[()], shared_name=name, name=name)


def _enqueue(queue: Any, token: Tensor, count: Tensor | int = 1) -> Operation:
    """Enqueue a token, or none, if the queue is not full when the token is there. Never blocks."""
    with tf.control_dependencies([token]):
        room = tf.cast(queue.size() < TOKEN_QUEUE_CAPACITY, tf.int32)
    return queue.enqueue_many([tf.fill([count * room], token)])


def _stale_if_full(accumulator: Any, limit: int, arrived: Tensor, local_step: Tensor) -> Tensor:
    """The step of an arrived contribution; a stale step if the accumulator already has `limit` contributions."""
    with tf.control_dependencies([arrived, local_step]):  # a gradient may not depend on the parameters
        return tf.where(accumulator.num_accumulated() < limit, local_step, tf.int64.min)
