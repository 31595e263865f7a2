"""Synchronous replication: each global step applies the average of N replicas' gradients of the same parameters.

With N below the number of replicas, the slowest of each step are backups: their gradients come too late and are
dropped (Chen et al., "Revisiting Distributed Synchronous SGD", 2016).

Two kinds of things on the parameter servers make it work. An accumulator beside each part of the parameters takes
gradients marked with the step whose parameters they are of, and drops stale ones. A queue of tokens for each replica
tells it that a step has begun; a token is that step's number. A replica waits for a token, takes the newest if there
are several, reads the parameters, and gives one gradient. The chief, in a loop of its own, takes N gradients' average,
applies it, and hands out the next tokens.

Unlike `tf.compat.v1.train.SyncReplicasOptimizer`, each replica has a queue of its own: so it gives each step at most
one gradient, a replica that was away finds no pile of stale work, and at the end nobody is left waiting, because the
last update hands out tokens too.
"""

from collections.abc import Sequence
from typing import Any

from trainer import adam
from trainer.parameters import Part
from trainer.replication import Learn, Replication
from trainer.tensorflow import tf, tf1

TOKENS_KEPT = 1000
"""Tokens kept for a replica that does not take them: it may be away for the rest of a long run."""


def build(
    parts: Sequence[Part],
    learn: Learn,
    learning_rate: float,
    replicas: int,
    replica_index: int,
    replicas_to_aggregate: int,
) -> Replication:
    """Add the ops of one synchronous replica to the default graph.

    Args:
        parts: Where the parameters are.
        learn: Gives the gradients.
        learning_rate: Adam's.
        replicas: How many replicas there are.
        replica_index: Which one this is; 0 is the chief.
        replicas_to_aggregate: How many gradients make a step.
    """
    global_step = parts[0].updates
    accumulators = [_accumulator(part) for part in parts]
    with tf1.device(parts[0].device):
        queues = [_token_queue(index) for index in range(replicas)]
        mine = queues[replica_index]
        with tf.control_dependencies(
            [mine.dequeue_many(mine.size())]
        ):  # a former life's tokens; nobody else takes them
            join = mine.enqueue(global_step.read_value())
        local_step = mine.dequeue_many(tf.maximum(mine.size(), 1))[-1]

    with tf.control_dependencies([local_step]):
        values, _ = zip(*[part.read() for part in parts], strict=True)
    lesson = learn(values)
    given = []
    for part, accumulator, gradient in zip(parts, accumulators, lesson.gradients, strict=True):
        with tf1.device(part.device):
            given.append(accumulator.apply_grad(gradient, local_step))
    with tf.control_dependencies(given):
        step = global_step.read_value()
    if replica_index > 0:
        return Replication(step, lesson.loss, lesson.accuracy, join, lead=tf.no_op(), update=None)

    def begin_step(number: Any) -> Any:
        """Let replicas begin this step: gradients of earlier steps' parameters will be dropped."""
        marked = []
        for part, accumulator in zip(parts, accumulators, strict=True):
            with tf1.device(part.device):
                marked.append(accumulator.set_global_step(number))
        with tf.control_dependencies(marked), tf1.device(parts[0].device):
            return tf.group(*[_offer(queue, number) for queue in queues])

    applied, forgotten = [], []
    for part, accumulator in zip(parts, accumulators, strict=True):
        with tf1.device(part.device):
            average = accumulator.take_grad(replicas_to_aggregate)
            forgotten.append(_forget(accumulator, part.values.shape))
        applied.append(adam.apply(part, part.read()[1], average, learning_rate))
    with tf.control_dependencies(applied):
        next_step = global_step.read_value()
    with tf.control_dependencies([begin_step(next_step)]), tf1.device(parts[0].device):
        update = tf.identity(next_step)

    # A chief that comes back finds gradients of which its former life took some and not others: all are forgotten, and
    # replicas give theirs again.
    with tf.control_dependencies(forgotten):
        lead = begin_step(global_step.read_value())
    return Replication(step, lesson.loss, lesson.accuracy, join, lead, update)


def _accumulator(part: Part) -> Any:
    """The accumulator of a part's gradients, which all replicas share by its name."""
    name = f"{part.name}/gradients"
    with tf1.device(part.device):
        return tf1.ConditionalAccumulator(tf.float32, part.values.shape, shared_name=name, name=name)


def _token_queue(index: int) -> Any:
    """The queue of one replica's tokens, int64 scalars, which the chief and that replica share by its name."""
    name = f"tokens/{index}"
    return tf.queue.FIFOQueue(TOKENS_KEPT, tf.int64, shapes=[()], shared_name=name, name=name)


def _offer(queue: Any, token: Any) -> Any:
    """Put a token into a queue that is not full; as the chief alone puts tokens there, this never blocks."""
    room = tf.cast(queue.size() < TOKENS_KEPT, tf.int32)
    return queue.enqueue_many([tf.fill([room], token)])


def _forget(accumulator: Any, shape: Any) -> Any:
    """Empty an accumulator; the gradient given first keeps the taking from waiting."""
    with tf.control_dependencies([accumulator.apply_grad(tf.zeros(shape), tf.int64.max)]):
        return accumulator.take_grad(1)
