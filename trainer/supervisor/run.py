"""The supervisor's settings: one file that the chart renders, parsed to typed values.

`trainer.cli` reads it once; every other module takes the values.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from trainer.errors import ConfigurationError

CleanPodPolicy = Literal["All", "Running", "None"]
SuccessPolicy = Literal["Chief", "AllWorkers"]
RoleName = Literal["chief", "worker", "ps", "evaluator", "client"]
Action = Literal["Ignore", "Restart", "RestartAll", "Fail"]
ExitAction = Literal["Ignore", "Restart", "RestartAll", "Fail", "End"]
"""End: for good, which is a success with code 0 and fails the run with others."""

EXITS = r"^(([0-9]{1,3}-[0-9]{1,3}|!?[0-9]{1,3}(,[0-9]{1,3})*):(Ignore|Restart|RestartAll|Fail|End)( |$))+$"
Seconds = Annotated[int, Field(ge=1)]


CAMEL_CASE = ConfigDict(alias_generator=to_camel, extra="forbid")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExitCodes:
    """Exit codes of a task that a rule applies to; never 0."""

    __pydantic_config__ = CAMEL_CASE

    operator: Literal["In", "NotIn"]
    values: Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(min_length=1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodCondition:
    """A condition of a pod, such as DisruptionTarget."""

    __pydantic_config__ = CAMEL_CASE

    type: str
    status: str = "True"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """What to do when a task fails. A rule has exit codes or conditions; without both it applies to each failure."""

    __pydantic_config__ = CAMEL_CASE

    action: Action
    roles: list[RoleName] = dataclasses.field(default_factory=list)
    """Empty for all roles."""
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: list[PodCondition] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """The rules for failures; the first that applies decides. Named as in the Jobs and JobSets of Kubernetes."""

    __pydantic_config__ = CAMEL_CASE

    rules: list[Rule] = dataclasses.field(default_factory=list)
    max_restarts: Annotated[int, Field(ge=0)] | None = None
    """How often RestartAll may restart all tasks before the run fails; None for no limit."""

    def on_conditions(self, role: str, conditions: Mapping[str, str]) -> Action | None:
        """The action after a pod of this role has these conditions, by type; None if no rule applies to it."""
        for rule in self.rules:
            patterns = {pattern.type: pattern.status for pattern in rule.on_pod_conditions}
            if (not rule.roles or role in rule.roles) and patterns.items() & conditions.items():
                return rule.action
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """The StatefulSet of a role, or the client's Job."""

    __pydantic_config__ = CAMEL_CASE

    replicas: Annotated[int, Field(ge=1)]
    exits: Annotated[str, Field(pattern=EXITS)]
    """CODES:ACTION for exit codes, separated by spaces; the first that applies decides. The chart makes it from the
    failure policy and the restart policy, for its `task.sh` too."""
    addresses: int | None = None
    """The most tasks that the cluster has addresses for. None for other roles than the worker."""
    job: str | None = None
    """The Job's name; None for a StatefulSet."""

    def on_exit(self, code: int) -> ExitAction:
        """What follows when a task ends with this code."""
        for rule in self.exits.split():
            codes, _, action = rule.partition(":")
            if _applies(codes, code):
                return cast(ExitAction, action)
        return "End"


def _task(fullname: str, role: str, index: int) -> str:
    return f"{fullname}-{role}-{index}"


@functools.lru_cache(maxsize=4)  # of thousands of tasks, in each pass
def _roles_of(fullname: str, scales: tuple[tuple[str, int], ...]) -> Mapping[str, str]:
    names = {_task(fullname, role, index): role for role, count in scales for index in range(count)}
    return MappingProxyType(names)


def _applies(codes: str, code: int) -> bool:
    first, is_range, last = codes.partition("-")
    if is_range:
        return int(first) <= code <= int(last)
    return (str(code) in codes.removeprefix("!").split(",")) != codes.startswith("!")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """TensorBoard, where the supervisor sets its scale."""

    __pydantic_config__ = CAMEL_CASE

    gated: bool
    """Whether it starts only when the leader has a node, because it must run on that node."""
    service_account: str | None
    """The service account that the supervisor creates. None if it exists already."""
    annotations: Mapping[str, str]
    """Of that service account."""
    leaves_node: bool
    """Whether TensorBoard starts again after the run, because the leader's node has GPUs."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None
    """Seconds after the run at which it ends; None for never."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A Job before or after the training."""

    __pydantic_config__ = CAMEL_CASE

    name: str
    digest: str
    """The hash of what determines its output: its values, the volumes, and what comes before it."""
    job: str
    """The Job's name, which is also that of its service account, unless the supervisor creates the Job."""
    always: bool = False
    """Whether it runs in each run, and all that follow it."""
    manifest: Mapping[str, Any] | None = None
    """The Job, if the supervisor creates it: for each version of the data, or because all stages have one service
    account; None if the chart does."""
    template: str = ""
    """The hash of that manifest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
    """The stages of a run, in their order."""

    __pydantic_config__ = CAMEL_CASE

    before: list[Stage] = dataclasses.field(default_factory=list)
    after: list[Stage] = dataclasses.field(default_factory=list)

    @property
    def all(self) -> list[Stage]:
        """The stages before and after the training."""
        return [*self.before, *self.after]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elastic:
    """Between which numbers of workers the supervisor chooses."""

    __pydantic_config__ = CAMEL_CASE

    min: Annotated[int, Field(ge=1)]
    max: Annotated[int, Field(ge=1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gang:
    """Tasks that start together or not at all."""

    __pydantic_config__ = CAMEL_CASE

    kind: Literal["workload", "kueue", "volcano", "coscheduling"]
    """Who sees to it; named as in scheduling.gang."""
    members: Mapping[RoleName, Annotated[int, Field(ge=1)]]
    """How many tasks of each role must start together."""
    queue: str = ""
    """The queue that admits them, for kinds that have queues."""

    @property
    def size(self) -> int:
        """How many tasks must start together."""
        return sum(self.members.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataWatch:
    """A Lance dataset of which each version is trained on."""

    __pydantic_config__ = CAMEL_CASE

    uri: str
    """A path in the supervisor's pod, or a URI."""
    tag: str
    """The tag of the versions to train on; empty for each new version."""
    interval_seconds: Seconds
    """The time between two looks at the dataset."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunValues:
    """The chart's values of `run`. `make chart-docs` writes their schema; values.yaml has the defaults.

    Helm omits values that are null.
    """

    __pydantic_config__ = CAMEL_CASE

    success_policy: SuccessPolicy
    backoff_limit: Annotated[int, Field(ge=0)] | None = None
    active_deadline_seconds: Seconds | None = None
    start_timeout_seconds: Seconds | None = None
    scheduling_timeout_seconds: Seconds | None = None
    replacement_timeout_seconds: Seconds | None = None
    node_wait_seconds: Seconds = 300
    node_loss_seconds: Seconds | None = None
    clean_pod_policy: CleanPodPolicy
    last_lines: Annotated[int, Field(ge=0)] = 0
    notify_secret: str = ""
    failure_policy: FailurePolicy = dataclasses.field(default_factory=FailurePolicy)
    elastic: Elastic | None = None
    suspend: bool
    attempt: Annotated[int, Field(ge=1)]
    """Part of the hash: users raise it to run a failed run again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(RunValues):
    """A run, as the chart's values define it."""

    fullname: str
    """The prefix of all names: the StatefulSets are FULLNAME-ROLE."""
    chart: str
    """The chart's name, with which the release's name and a role select pods."""
    release: str
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The labels of each object that the supervisor creates."""
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The annotations of each object that the supervisor creates."""
    job: str
    """The supervisor's own Job, which its events refer to."""
    job_uid: str = ""
    """Distinguishes the Job from an earlier one of the same name."""
    supervisor: str = ""
    """The uid of this supervisor's pod."""
    hash: str
    """The hash of all that defines the run, with its images. A different hash is a different run."""
    definition: str
    """The hash of the values that define the run and differ from the chart's defaults, without `attempt`."""
    leader: str
    """The task that initialises the variables, saves checkpoints and writes the result."""
    roles: Mapping[str, Role]
    tensorboard: TensorBoard | None
    """None if TensorBoard is disabled, or runs at any time on any node."""
    result_command: str | None
    """The command that prints result.json; None if no pod mounts the training directory after the run."""
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None
    """The port of the run's metrics; None to serve none."""
    gang: Gang | None = None
    """None if each task is scheduled alone."""
    data_watch: DataWatch | None = None
    """None if the run is on one version of the data."""
    data_version: str = ""
    """The version of the data, if that is watched; empty until one is found."""
    stages: Stages = dataclasses.field(default_factory=Stages)

    @property
    def is_queued(self) -> bool:
        """Whether the tasks start when Kueue has admitted the run."""
        return self.gang is not None and self.gang.kind == "kueue"

    @property
    def is_placed_together(self) -> bool:
        """Whether a scheduler finds nodes for all tasks or for none."""
        return self.gang is not None and not self.is_queued

    @property
    def tasks_wait(self) -> bool:
        """Whether tasks that have started wait until the supervisor notes that they may run their program."""
        return bool(self.data_watch or self.stages.before)

    @property
    def waits_for_data(self) -> bool:
        """Whether the run is suspended until a version of the data is found."""
        return self.data_watch is not None and not self.data_version

    def on_version(self, version: str) -> "Run":
        """The run on a version of the data. It is another run, whose stages run again."""

        def of_stages(stages: list[Stage]) -> list[Stage]:
            return [dataclasses.replace(stage, digest=f"{stage.digest}.v{version}") for stage in stages]

        return dataclasses.replace(
            self,
            data_version=version,
            definition=f"{self.definition}.v{version}",
            result_command=self.result_command and self.result_command.replace("$(DATA_VERSION)", version),
            stages=Stages(before=of_stages(self.stages.before), after=of_stages(self.stages.after)),
        )

    @property
    def after(self) -> str:
        """The digests of all that comes after the training; the last stage need not depend on those before it."""
        return ",".join(stage.digest for stage in self.stages.after)

    def on_exit(self, role: str, code: int) -> ExitAction:
        """What follows when a task of this role ends with this code."""
        return self.roles[role].on_exit(code)

    def is_final(self, role: str, code: int) -> bool:
        """Whether a task of this role does not restart after this exit code."""
        return self.on_exit(role, code) in ("End", "Fail", "RestartAll")

    def role_of(self, task: str) -> str:
        """The role of a task with this name."""
        return task.removeprefix(f"{self.fullname}-").rpartition("-")[0]

    def is_task(self, name: str) -> bool:
        """Whether a task of this or an earlier run may have this name. Copies of `kubectl debug` have others."""
        return re.fullmatch(rf"{re.escape(self.fullname)}-[a-z]+-[0-9]+", name) is not None

    def lists(self, task: str) -> bool:
        """Whether the cluster has an address for the task. Anybody may scale a StatefulSet further."""
        role = self.roles.get(self.role_of(task))
        limit = 0 if role is None else role.replicas if role.addresses is None else role.addresses
        return self.is_task(task) and int(task.rpartition("-")[2]) < limit

    def task(self, role: str, index: int) -> str:
        """The name of a task."""
        return _task(self.fullname, role, index)

    def roles_of(self, scales: tuple[tuple[str, int], ...]) -> Mapping[str, str]:
        """The roles of the first tasks of some roles, by task.

        Args:
            scales: The roles, and how many tasks of each.
        """
        return _roles_of(self.fullname, scales)

    def stateful_set(self, role: str) -> str:
        """The name of a role's StatefulSet, and of its headless Service."""
        return f"{self.fullname}-{role}"


def read(path: Path, job_uid: str, supervisor: str) -> Run:
    """Read the file that the chart renders. The chart cannot know the uids of the supervisor's Job and pod.

    Raises:
        ConfigurationError: the file cannot be read, or its content is invalid.
    """
    try:
        run = TypeAdapter(Run).validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--run: {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = [".".join(map(str, problem["loc"]))] if problem["loc"] else []
        raise ConfigurationError(": ".join(["--run", str(path), *where, problem["msg"]]) + ".") from None
    return dataclasses.replace(run, job_uid=job_uid, supervisor=supervisor)
