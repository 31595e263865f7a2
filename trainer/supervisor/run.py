"""What the supervisor is told of its run: one file that the chart renders, checked and typed.

Read once by `trainer.supervisor.supervise`; everything else takes the values.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from trainer.errors import ConfigurationError

RestartPolicy = Literal["ExitCode", "OnFailure", "Never", "Always"]
CleanPodPolicy = Literal["All", "Running", "None"]
SuccessPolicy = Literal["Chief", "AllWorkers"]

Seconds = Annotated[int, Field(ge=1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """One role's StatefulSet, or the client's Job."""

    replicas: Annotated[int, Field(ge=1)]
    restart_policy: RestartPolicy
    job: str | None = None
    """The Job's name; None for a StatefulSet."""

    def ends_with(self, code: int) -> bool:
        """Whether a task that ended with this exit code has ended for good (`task.sh` decides by the same rule)."""
        return {"Always": False, "Never": True, "OnFailure": code == 0, "ExitCode": code < 128}[self.restart_policy]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run, as the chart's values define it."""

    stem: str
    """What all names begin with: the StatefulSets are STEM-ROLE."""
    release: str
    job: str
    """The supervisor's own Job, which its events are about."""
    job_uid: str = ""
    """Tells it from an earlier Job of the same name."""
    hash: str
    """Of all that defines the run. Another hash is another run."""
    attempt: Annotated[int, Field(ge=1)]
    """Part of what the hash is of: raised to run a failed run again."""
    leader: str
    """The pod that initialises, saves and writes the result."""
    roles: Mapping[str, Role]
    success_policy: SuccessPolicy
    clean_pod_policy: CleanPodPolicy
    backoff_limit: Annotated[int, Field(ge=0)] | None
    active_deadline_seconds: Seconds | None
    start_timeout_seconds: Seconds | None
    holds_tensorboard: bool
    """Whether TensorBoard may start only when the leader has a node, for it must go there."""
    result_command: str | None
    """Shows result.json; None where no pod is left that has the training directory."""
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None
    """Where the run's own metrics are served; None for nowhere."""

    def stateful_set(self, role: str) -> str:
        """The name of a role's StatefulSet, and of its headless Service."""
        return f"{self.stem}-{role}"


def read(path: Path, job_uid: str) -> Run:
    """Read the file that the chart renders, which can hold all but the uid of the supervisor's Job.

    Raises:
        ConfigurationError: it cannot be read, or is not such a file.
    """
    try:
        run = TypeAdapter(Run).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"--run: {path} cannot be read: {' '.join(str(error).split())}.") from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"--run: {path}: {where}: {problem['msg']}.") from None
    return dataclasses.replace(run, job_uid=job_uid)
