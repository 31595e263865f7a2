"""The mode of a run: how its replicas share the parameters, and what goes together with that.

This is the one place that compares the settings of replication. All others read what it derives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trainer.errors import ConfigurationError

Strategy = Literal["ps", "allreduce"]
Name = Literal["single", "allreduce", "asynchronous", "synchronous", "local_sgd"]


class Choices(Protocol):
    """The settings of replication: those of `trainer.config.Settings`."""

    @property
    def strategy(self) -> Strategy: ...
    @property
    def sync_replicas(self) -> bool | None: ...
    @property
    def has_keras_model(self) -> bool: ...
    @property
    def replicas_to_aggregate(self) -> int | None: ...
    @property
    def straggler_seconds(self) -> float | None: ...
    @property
    def spare_workers(self) -> int: ...
    @property
    def local_steps(self) -> int: ...
    @property
    def wire_dtype(self) -> str: ...


class Members(Protocol):
    """The replicas of a cluster: `trainer.cluster.spec.Cluster`."""

    @property
    def task(self) -> Any: ...
    @property
    def replicas(self) -> Sequence[Any]: ...
    @property
    def replica_index(self) -> int: ...


def averages(choices: Choices) -> bool:
    """Whether replicas with parameter servers wait for each other, and average.

    Asynchrony acts as additional momentum (Mitliagkas et al., 2016), so a model that one process trains may learn
    less, or nothing: whoever brings a model asks for it.
    """
    if choices.sync_replicas is None:
        return choices.strategy == "ps" and choices.has_keras_model
    return choices.sync_replicas


ROUNDS: Sequence[Name] = ("synchronous", "local_sgd")
"""The modes in which replicas with parameter servers wait for each other."""
REFUSED: Sequence[tuple[Callable[[Choices], Any], str]] = (
    (
        lambda its: its.strategy != "ps" and its.sync_replicas,
        "sync_replicas={its.sync_replicas} conflicts with strategy={its.strategy}, which always averages the gradients "
        "of all replicas; remove sync_replicas.",
    ),
    (
        lambda its: its.strategy != "ps" and its.replicas_to_aggregate,
        "replicas_to_aggregate={its.replicas_to_aggregate} conflicts with strategy={its.strategy}, which always "
        "averages the gradients of all replicas; remove replicas_to_aggregate.",
    ),
    (
        lambda its: its.replicas_to_aggregate and not averages(its),
        "replicas_to_aggregate={its.replicas_to_aggregate}, but only synchronous replicas aggregate gradients; set "
        "sync_replicas=true or remove replicas_to_aggregate.",
    ),
    (
        lambda its: its.straggler_seconds and not averages(its),
        "straggler_seconds={its.straggler_seconds:g}, but only synchronous replicas wait for each other; set "
        "sync_replicas=true and strategy=ps, or remove straggler_seconds.",
    ),
    (
        lambda its: its.local_steps > 1 and not averages(its),
        "local_steps={its.local_steps}, but only synchronous replicas average their parameters; set "
        "sync_replicas=true and strategy=ps.",
    ),
    (
        lambda its: its.wire_dtype != "float32" and its.local_steps > 1,
        "wire_dtype={its.wire_dtype} is for gradients between tasks, and conflicts with local_steps={its.local_steps}; "
        "remove one of them.",
    ),
)
"""What settings do not go together, and the sentence for that."""


def check(choices: Choices) -> None:
    """Check that settings go together.

    Raises:
        ConfigurationError: they do not.
    """
    for is_refused, sentence in REFUSED:
        if is_refused(choices):
            raise ConfigurationError(sentence.format(its=choices))


def is_cluster(strategy: Strategy, ps: int, replicas: int) -> bool:
    """Whether tasks are a cluster. A replica alone without parameter servers is none, as for TensorFlow."""
    return bool(ps) or replicas > 1 or strategy == "allreduce"


def check_roles(origin: str, strategy: Strategy, ps: int, replicas: int) -> None:
    """Check that a cluster has the roles that its strategy needs. `origin` says where it is given.

    Raises:
        ConfigurationError: it does not.
    """
    if strategy == "allreduce" and ps:
        raise ConfigurationError(
            f"{origin}: {ps} ps, but with strategy allreduce the workers hold the parameters; leave them out, or "
            "choose strategy ps."
        )
    if strategy == "ps" and not ps and replicas > 1:
        raise ConfigurationError(
            f"{origin}: no ps, but with strategy ps they hold the parameters of {replicas} replicas; add one, choose "
            "strategy allreduce, or train in a single process without a cluster."
        )


def check_alone(strategy: Strategy) -> None:
    """Check that a process without a cluster can train.

    Raises:
        ConfigurationError: it cannot.
    """
    if strategy == "allreduce":
        raise ConfigurationError(
            "strategy: allreduce needs a cluster of workers, but none is given; set TF_CONFIG or --worker_hosts, "
            "or choose strategy ps to train in a single process."
        )


def default_ps(strategy: Strategy) -> int:
    """The parameter servers that a launch starts unless it says how many."""
    return 1 if strategy == "ps" else 0


@dataclass(frozen=True)
class Mode:
    """How replicas share the parameters."""

    name: Name
    """As logs and results name it."""
    replicas: int
    """The replicas that the cluster lists; 1 without a cluster."""
    index: int
    """That of this one; 0 if it is an evaluator. Workers that join the run have those from `beginners` on."""
    beginners: int
    """The replicas of the run's begin: the others are spare workers."""
    devices: int
    """Those of each replica, with a batch on each."""
    contributions: int
    """The replicas whose gradients a step averages; the others are backups."""
    local_steps: int
    """Steps that a replica takes between two averages of the parameters; 1 if it averages gradients, or none."""

    @classmethod
    def of(cls, choices: Choices, cluster: Members | None, devices: int) -> "Mode":
        """The mode of settings that go together.

        Raises:
            ConfigurationError: replicas_to_aggregate exceeds the number of replicas.
        """
        replicas = len(cluster.replicas) if cluster else 1
        index = cluster.replica_index if cluster and cluster.task in cluster.replicas else 0
        name = _name(choices, cluster is not None)
        contributions = (choices.replicas_to_aggregate or replicas) if name in ROUNDS else replicas
        if contributions > replicas:
            raise ConfigurationError(
                f"replicas_to_aggregate={contributions}, but the cluster has {replicas} replicas and each contributes "
                f"one gradient per step; set at most {replicas}."
            )
        return cls(
            name,
            replicas,
            index,
            max(1, replicas - choices.spare_workers),
            devices,
            contributions,
            choices.local_steps if name == "local_sgd" else 1,
        )

    @property
    def has_servers(self) -> bool:
        """Whether parameter servers hold the parameters, and not each replica."""
        return self.is_independent or self.has_rounds

    @property
    def is_independent(self) -> bool:
        """Whether replicas do not wait for each other."""
        return self.name == "asynchronous"

    @property
    def has_rounds(self) -> bool:
        """Whether the chief leads rounds, to which replicas contribute by way of the parameter servers."""
        return self.name in ROUNDS

    @property
    def is_collective(self) -> bool:
        """Whether replicas are a group of which all run the same ops."""
        return self.name == "allreduce"

    @property
    def averages_gradients(self) -> bool:
        """Whether a step averages the gradients of several replicas."""
        return self.name in ("synchronous", "allreduce")

    @property
    def sends_weights(self) -> bool:
        """Whether a replica's contribution to an average ends with its weight, also if all have the same."""
        return self.name == "synchronous"

    @property
    def divides_by_weights(self) -> bool:
        """Whether the average over replicas, and not that over the devices of each, is divided by the weights."""
        return self.sends_weights or (self.is_collective and self.replicas > 1)

    @property
    def averages_parameters(self) -> bool:
        """Whether replicas average their parameters after some steps of their own."""
        return self.name == "local_sgd"

    @property
    def moves_rows(self) -> bool:
        """Whether a step may move rows of a table, instead of the whole."""
        return not (self.is_collective or self.averages_parameters)

    @property
    def batches(self) -> int:
        """The batches of a global step that count."""
        waits = self.has_rounds or self.is_collective
        return self.devices * (min(self.beginners, self.contributions) if waits else 1)

    def weighs(self, batch: int | None) -> bool:
        """Whether batches of this size, None if it varies, count by their examples in a step that averages several."""
        several = self.devices > 1 or (self.replicas > 1 and not self.is_independent)
        return batch is None and several


def _name(choices: Choices, is_cluster: bool) -> Name:
    if choices.strategy == "allreduce":
        return "allreduce"
    if not is_cluster:
        return "single"
    if not averages(choices):
        return "asynchronous"
    return "local_sgd" if choices.local_steps > 1 else "synchronous"
