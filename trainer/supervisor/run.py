"""The supervisor's settings: one file that the chart renders, parsed to typed values.

`trainer.cli` reads it once; every other module takes the values.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from trainer.errors import ConfigurationError

RestartPolicy = Literal["ExitCode", "OnFailure", "Never", "Always"]
CleanPodPolicy = Literal["All", "Running", "None"]
SuccessPolicy = Literal["Chief", "AllWorkers"]

Seconds = Annotated[int, Field(ge=1)]


CAMEL_CASE = ConfigDict(alias_generator=to_camel, extra="forbid")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """The StatefulSet of a role, or the client's Job."""

    __pydantic_config__ = CAMEL_CASE

    replicas: Annotated[int, Field(ge=1)]
    restart_policy: RestartPolicy
    job: str | None = None
    """The Job's name; None for a StatefulSet."""

    def is_final(self, code: int) -> bool:
        """Whether a task does not restart after this exit code. The chart's `task.sh` applies the same rule."""
        return {"Always": False, "Never": True, "OnFailure": code == 0, "ExitCode": code < 128}[self.restart_policy]


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
    replacement_timeout_seconds: Seconds | None = None
    clean_pod_policy: CleanPodPolicy
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
    job: str
    """The supervisor's own Job, which its events refer to."""
    job_uid: str = ""
    """Distinguishes the Job from an earlier one of the same name."""
    hash: str
    """The hash of all that defines the run. A different hash is a different run."""
    leader: str
    """The task that initialises the variables, saves checkpoints and writes the result."""
    roles: Mapping[str, Role]
    tensorboard_gated: bool
    """Whether TensorBoard starts only when the leader has a node, because it must run on that node."""
    result_command: str | None
    """The command that prints result.json; None if no pod mounts the training directory after the run."""
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None
    """The port of the run's metrics; None to serve none."""

    def stateful_set(self, role: str) -> str:
        """The name of a role's StatefulSet, and of its headless Service."""
        return f"{self.fullname}-{role}"


def read(path: Path, job_uid: str) -> Run:
    """Read the file that the chart renders. The chart cannot know the uid of the supervisor's Job.

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
    return dataclasses.replace(run, job_uid=job_uid)
