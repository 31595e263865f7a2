"""The cluster and this process's task, parsed from TF_CONFIG, a cluster file or the classic flags to a typed value.

The functions are pure: they read only their arguments. `trainer.cli` calls `resolve` once, at the edge.

TF_CONFIG has the meaning of `tf.distribute.cluster_resolver.TFConfigClusterResolver`
(https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable), with the
additions of Kubeflow's TFJob: "master" is an alias of "chief", and the evaluator may be listed although it is not part
of the training cluster.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainer import mode
from trainer.errors import ConfigurationError
from trainer.mode import Strategy
from trainer.text import truncate

Role = Literal["chief", "worker", "ps", "evaluator"]
ROLES: tuple[Role, ...] = get_args(Role)
ALIASES: Mapping[str, Role] = {"master": "chief"}


@dataclass(frozen=True)
class Task:
    """One process of the cluster, such as worker 0."""

    role: Role
    index: int

    def __str__(self) -> str:
        return f"{self.role} {self.index}"

    @property
    def slug(self) -> str:
        """The name of this task in file names: `worker-0`."""
        return f"{self.role}-{self.index}"

    @property
    def device(self) -> str:
        """The TensorFlow name of this task: `/job:worker/task:0`."""
        return f"/job:{self.role}/task:{self.index}"


@dataclass(frozen=True)
class Cluster:
    """The addresses ("HOST:PORT") of every training task, by role, and this process's own task.

    The evaluator is not part of the cluster: it connects to no task and only reads checkpoints.
    """

    task: Task
    chief: tuple[str, ...] = ()
    worker: tuple[str, ...] = ()
    ps: tuple[str, ...] = ()

    @property
    def spec(self) -> dict[str, list[str]]:
        """The cluster in the form of `tf.train.ClusterSpec`, without empty roles."""
        addresses = {"chief": self.chief, "worker": self.worker, "ps": self.ps}
        return {role: list(hosts) for role, hosts in addresses.items() if hosts}

    @property
    def replicas(self) -> tuple[Task, ...]:
        """The tasks that compute gradients: the chief, if present, and the workers."""
        chiefs = tuple(Task("chief", index) for index in range(len(self.chief)))
        return chiefs + tuple(Task("worker", index) for index in range(len(self.worker)))

    @property
    def parameter_servers(self) -> tuple[Task, ...]:
        """The tasks that hold the variables."""
        return tuple(Task("ps", index) for index in range(len(self.ps)))

    @property
    def chief_task(self) -> Task:
        """The replica that initializes, saves and ends the run: the chief, or worker 0 without a chief."""
        return self.replicas[0]

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self.task == self.chief_task

    @property
    def replica_index(self) -> int:
        """This task's index among the replicas; the chief's is 0.

        Raises:
            ValueError: this task computes no gradients (a ps or an evaluator).
        """
        return self.replicas.index(self.task)

    def address(self, task: Task) -> str:
        """Return the "HOST:PORT" of a task of this cluster."""
        return self.spec[task.role][task.index]

    @property
    def ports(self) -> set[int]:
        """The ports of all tasks."""
        return {int(address.rpartition(":")[2]) for addresses in self.spec.values() for address in addresses}

    def to_tf_config(self) -> str:
        """Return this cluster as the value of TF_CONFIG, in TensorFlow's own form."""
        task = {"type": self.task.role, "index": self.task.index}
        return json.dumps({"cluster": self.spec, "task": task, "environment": "cloud"})


@dataclass(frozen=True)
class ClassicFlags:
    """`--ps_hosts --worker_hosts --job_name --task_index` of the classic `mnist_replica.py`; None means not given."""

    ps_hosts: str | None = None
    worker_hosts: str | None = None
    job_name: str | None = None
    task_index: int | None = None


@dataclass(frozen=True)
class ClusterFile:
    """The file of `--cluster_file`, in the form of TF_CONFIG's `cluster`, for clusters too large for a variable."""

    path: str
    text: str


def resolve(
    tf_config: str | None, flags: ClassicFlags, file: ClusterFile | None = None, strategy: Strategy = "ps"
) -> tuple[Cluster | None, list[str]]:
    """Determine the cluster and this process's task.

    Args:
        tf_config: The value of the environment variable TF_CONFIG; None or blank if it is not set.
        flags: The classic flags; each given one takes precedence over the file and TF_CONFIG.
        file: The cluster file, if given; it takes precedence over the whole cluster of TF_CONFIG.
        strategy: Determines the required and the forbidden roles.

    Returns:
        The cluster, or None if no source names one, or only one replica (training in a single process), and a sentence
        for each conflict between two sources.

    Raises:
        ConfigurationError: one sentence that names the culprit and the expected value.
    """
    config = _parse_json("TF_CONFIG", tf_config) if tf_config and tf_config.strip() else {}
    if not isinstance(config, dict):
        raise ConfigurationError(f'TF_CONFIG must be a JSON object with "cluster" and "task": {_shorten(tf_config)}')
    hosts = _cluster_from("TF_CONFIG", config.get("cluster", {}))
    task_type, task_index = _task_from(config)

    conflicts = []
    origin, source = "TF_CONFIG", "TF_CONFIG"
    if file:
        origin, source = f"--cluster_file: {file.path}", "--cluster_file"
        listed = _cluster_from(origin, _parse_json(origin, file.text))
        if hosts not in ({}, listed):
            conflicts.append(f"--cluster_file wins over TF_CONFIG: the cluster of {file.path} instead of its own.")
        hosts = listed

    def prefer(name: str, flag: Any, source: str, configured: Any) -> Any:
        if flag is None:
            return configured
        if configured not in (None, (), flag):
            conflicts.append(f"--{name} wins over {source}: {_show(flag)} instead of {_show(configured)}.")
        return flag

    for role, name, flag in (("ps", "ps_hosts", flags.ps_hosts), ("worker", "worker_hosts", flags.worker_hosts)):
        hosts[role] = prefer(name, _split(name, flag), source, hosts.get(role, ()))
    task_type = prefer("job_name", _role("--job_name", flags.job_name), "TF_CONFIG", task_type)
    task_index = prefer("task_index", flags.task_index, "TF_CONFIG", task_index)

    if not file and not any(hosts.values()) and task_type is None and task_index is None:
        mode.check_alone(strategy)
        return None, []
    if (flags.ps_hosts, flags.worker_hosts) != (None, None) or (not file and (not config or flags != ClassicFlags())):
        origin = "the cluster's flags"
    return _checked(origin, hosts, task_type, task_index, strategy), conflicts


def _parse_json(origin: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{origin} is not JSON ({error.msg} at character {error.pos}): {_shorten(text)}"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigurationError(
            f"{origin} is nested too deeply, or holds too long a number: {_shorten(text)}"
        ) from None


def _cluster_from(origin: str, cluster: Any) -> dict[str, tuple[str, ...]]:
    """Return the addresses ("HOST:PORT") by role. Check the evaluator's, then drop them."""
    if not isinstance(cluster, dict):
        raise ConfigurationError(f"{origin}: cluster must map roles to lists of addresses, not {_shorten(cluster)}.")
    hosts: dict[str, tuple[str, ...]] = {}
    for name, addresses in cluster.items():
        role = _role(f"{origin}: cluster", name)
        if role in hosts:
            raise ConfigurationError(f"{origin}: cluster names both chief and master, which are the same role.")
        if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
            raise ConfigurationError(
                f'{origin}: cluster.{name} must be a list of "HOST:PORT" strings, not {_shorten(addresses)}.'
            )
        hosts[str(role)] = tuple(addresses)
        for address in addresses:
            _check_address(f"{origin}: cluster.{name}", address)
    hosts.pop("evaluator", None)
    return hosts


def _task_from(config: Mapping[str, Any]) -> tuple[Role | None, int | None]:
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise ConfigurationError(f"TF_CONFIG: task must be an object with type and index, not {_shorten(task)}.")
    index = task.get("index")
    if isinstance(index, str) and re.fullmatch("[0-9]{1,9}", index):  # TensorFlow's resolver takes "0" for 0 too
        index = int(index)
    if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
        raise ConfigurationError(f"TF_CONFIG: task.index must be a whole number, not {_shorten(index)}.")
    return _role("TF_CONFIG: task.type", task.get("type")), index


def _role(origin: str, name: Any) -> Role | None:
    if name is None:
        return None
    role = ALIASES.get(name, name) if isinstance(name, str) else None
    if role not in ROLES:
        known = ", ".join([*ROLES, *ALIASES])
        raise ConfigurationError(f"{origin}: unknown role {_shorten(name)}; the roles are {known}.")
    return role


def _split(name: str, hosts: str | None) -> tuple[str, ...] | None:
    if hosts is None:
        return None
    addresses = tuple(address.strip() for address in hosts.split(",")) if hosts.strip() else ()
    for address in addresses:
        _check_address(f"--{name}", address)
    return addresses


def _check_address(origin: str, address: str) -> None:
    host, colon, port = address.rpartition(":")
    if address and not colon:
        raise ConfigurationError(f'{origin}: the address {_shorten(address)} has no port; "HOST:PORT" was expected.')
    if not host.strip("[]") or not host.isprintable() or any(character in " /," for character in host):
        raise ConfigurationError(f'{origin}: the address {_shorten(address)} has no host; "HOST:PORT" was expected.')
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ConfigurationError(
            f'{origin}: the address {_shorten(address)} has no port from 1 to 65535; "HOST:PORT" was expected.'
        )


def _checked(
    origin: str, hosts: Mapping[str, tuple[str, ...]], role: Role | None, index: int | None, strategy: Strategy
) -> Cluster | None:
    """Check the rules between the fields. They guarantee that every property of `Cluster` works."""
    if role is None:
        raise ConfigurationError(
            f"{origin}: which task is this one? Set task.type in TF_CONFIG or --job_name to one of {', '.join(ROLES)}."
        )
    if index is None:
        raise ConfigurationError(f"{origin}: which {role} is this one? Set task.index in TF_CONFIG or --task_index.")
    chief, worker, ps = (hosts.get(name, ()) for name in ("chief", "worker", "ps"))
    seen: dict[str, str] = {}
    for name in ("chief", "worker", "ps"):
        for position, address in enumerate(hosts.get(name, ())):
            if address in seen:
                raise ConfigurationError(
                    f"{origin}: {seen[address]} and {name} {position} share the address {address}."
                )
            seen[address] = f"{name} {position}"
    if len(chief) > 1:
        raise ConfigurationError(f"{origin}: a run has one chief, {len(chief)} are listed: {', '.join(chief)}.")
    if role == "evaluator":
        if index < 0:
            raise ConfigurationError(f"{origin}: evaluator {index} does not exist; indices start at 0.")
        return Cluster(Task(role, index), chief, worker, ps)
    listed = len(hosts.get(role, ()))
    if not 0 <= index < listed:
        expected = f"the indices are 0 to {listed - 1}" if listed else f"no {role} is listed"
        remedy = "; list its address (in the chart: worker.maxReplicas)" if listed and role == "worker" else ""
        raise ConfigurationError(f"{origin}: this task is {role} {index}, but {expected}{remedy}.")
    if not chief and not worker:
        raise ConfigurationError(f"{origin}: no worker and no chief is listed; list at least one of them.")
    replicas = len(chief) + len(worker)
    if not mode.is_cluster(strategy, len(ps), replicas):
        return None
    mode.check_roles(origin, strategy, len(ps), replicas)
    return Cluster(Task(role, index), chief, worker, ps)


def _show(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(truncate(text, 60))
