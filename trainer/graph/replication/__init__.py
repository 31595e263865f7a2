"""Replication: how replicas that train the same parameters cooperate.

Each strategy is a module with a function `build`, which adds its ops to a replica's graph and returns a `Replication`.
`trainer.training.loop` runs a `Replication` without knowing its strategy.

One execution (session run) takes several steps, which are unrolled in the graph. This amortizes the cost of Python and
of the session run. Each step still reads a shard of the parameters after the previous step has updated it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainer.graph.replication.membership import Membership
from trainer.shards.parameters import Rows
from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation, Tensor


@dataclass(frozen=True)
class StepOutputs:
    """The gradients and metrics of one batch."""

    gradients: Sequence[Tensor]
    """float32 [n] for each shard of the parameters, followed by the gradients of the rows that the step reads."""
    loss: Tensor
    """float32 scalar."""
    metrics: Mapping[str, Tensor]
    """float32 scalars by name."""
    counts: Sequence[Tensor] = ()
    """The state of the metrics after the batch, if the step continues one."""
    totals: Tensor | None = None
    """What `trainer.graph.totals` sums over an epoch: the sum of this execution so far, if it is wanted."""


Compute = Callable[[Sequence[Tensor]], StepOutputs]
"""Adds the ops that compute the outputs of a step from what `Shard.read` gives for each shard and its rows."""


@dataclass(frozen=True)
class Step:
    """What a step reads, and what it computes from that."""

    compute: Compute
    rows: Sequence[Rows]
    """For each shard, the rows that the step reads."""


StepFunction = Callable[[int], Step]
"""Adds the ops that find the rows of the step with this index in an execution, and returns the step."""


@dataclass(frozen=True)
class Execution:
    """The ops of one session run of several steps."""

    step: Tensor
    """int64 scalar: takes the steps and returns the global step after them."""
    loss: Tensor
    """float32 scalar: the loss of the last step's batch, before its update."""
    metrics: Mapping[str, Tensor]
    """float32 scalars by name: the metrics of the last step's batch, before its update."""
    totals: Tensor | None = None
    """`StepOutputs.totals` of the last step."""
    is_counted: Tensor | None = None
    """bool scalar: whether each step has waited for what this replica contributed; None if none is sure to do so."""


@dataclass(frozen=True)
class CollectiveGroup:
    """Ops that synchronize replicas which hold the parameters and therefore take each step together."""

    wanted: Tensor
    """int64 scalar placeholder: the steps that this replica proposes for the next execution."""
    agreed: Tensor
    """int64 scalar: the steps that the chief proposes. All replicas take this number next."""
    leave: Operation
    """Op that each replica runs once after the last step. It completes when all replicas run it."""


@dataclass(frozen=True)
class Rounds:
    """Ops with which the chief follows the number of replicas that contribute to the rounds of synchronous training."""

    wanted: Tensor
    """int32 scalar placeholder: the contributions that each round needs from now on, at least 1."""
    counted: Tensor
    """bool [replicas] placeholder: those whose contributions count. By default all do."""
    delay: Tensor
    """int64 scalar placeholder: after how many rounds those count that did not count before. By default 0."""
    begun: Tensor
    """int64 scalar: the global step of the present round, which all shards have reached."""
    given: Tensor
    """int32 [shards]: the contributions to the present round."""
    step: Tensor
    """int64 scalar placeholder: the global step of the round that `complete` and `again` are for. They have no effect
    on a later one."""
    needed: Tensor
    """int32 scalar: the contributions that the present round can have, of those that count, at most `wanted`. It may
    wait for more, as it began before these were set."""
    want: Operation
    """Op that sets these. A round that already waits for more goes on waiting."""
    complete: Operation
    """Op that brings a round which waits for more contributions than `needed`, and has these, at least one, nearer to
    its end. It does not change the average."""
    again: Operation
    """Op that has every replica contribute to the round again."""


@dataclass(frozen=True)
class Replication:
    """The ops with which one replica participates."""

    executions: Mapping[int, Execution]
    """Executions by their number of steps, those of `trainer.graph.execution.sizes`."""
    join: Operation
    """Op to run once per session before the first step."""
    lead: Operation
    """Op that the chief runs once per session, after the variables are initialized."""
    updates: Mapping[int, Tensor]
    """int64 scalars that the chief's update loop runs concurrently with its steps, by their number of global steps.
    Each returns the global step after it. Empty if replicas apply their own updates."""
    independent_replicas: int = 1
    """Listed replicas that advance the global step without waiting for each other."""
    membership: Membership | None = None
    """The replicas that take part. None unless parameter servers hold the parameters."""
    rounds: Rounds | None = None
    """On the chief of synchronous replicas."""
    release: Callable[[], Operation] = tf.no_op
    """Adds the op with which the chief lets replicas go on that wait for a step, as the run is over."""
    sum: Callable[[Tensor], Tensor] = tf.identity
    """Adds the sum over all replicas of a value that each one has; identity if they share the variables."""
    collective: CollectiveGroup | None = None
    """None if parameter servers hold the parameters, so that replicas can leave and rejoin."""
