"""The plan of a launch: its arguments as a typed value, and the program of each task."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer import config, mode
from trainer.cluster import ports
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.data.files import write_atomically
from trainer.errors import AGAIN, ConfigurationError
from trainer.run_directory import writer
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.telemetry import goodput, report

CONFIG = "config.yaml"
"""The file beside the logs with the settings of all tasks."""
MAX_RESTARTS = 3
"""How often each task is restarted unless the plan says otherwise."""


@dataclass(frozen=True)
class Plan:
    """The arguments of one launch."""

    settings: Settings
    ps: int
    workers: int
    chief: bool
    evaluator: bool
    max_restarts: int
    tensorboard: bool
    json: bool

    def check(self) -> None:
        """Check that the cluster has the roles that the strategy needs.

        Raises:
            ConfigurationError: it does not.
        """
        config.check_count("ps", self.ps, 0)
        config.check_count("workers", self.workers, 0 if self.chief else 1)
        config.check_count("max_restarts", self.max_restarts, 0)
        mode.check_roles("--ps", self.settings.strategy, self.ps, self.workers + self.chief)


@dataclass(frozen=True)
class TaskProgram:
    """The program of one task."""

    task: Task
    is_chief: bool
    words: list[str]
    """Those of its `trainer` command."""
    environment: dict[str, str]
    """What differs from the launcher's environment."""


def plan_programs(
    plan: Plan, directory: TrainingDirectory, gpus: list[str], reserved: Sequence[int], scratch: Path
) -> list[TaskProgram]:
    """Write the tasks' settings, and return each task's program with its TF_CONFIG, its port and its GPUs.

    Args:
        plan: What is launched.
        directory: The training directory.
        gpus: The GPUs, by their names in CUDA_VISIBLE_DEVICES.
        reserved: A port for each server.
        scratch: A folder that lasts as long as the launch, for one of each task.

    Raises:
        OSError: the settings or the folders cannot be written.
    """
    # TF_CONFIG tells each task its role and index, CUDA_VISIBLE_DEVICES its GPUs.
    # A task does not see the GPUs of the others, and the steps of an epoch depend on them.
    each = len(gpus) // (plan.workers + int(plan.chief))
    of_launch = {"train_dir": str(directory), "num_gpus": each if each > 1 else None}
    shared = {name: getattr(plan.settings, name) for name in config.names(config.RUN_GROUPS)}
    of_tasks = Settings(**shared, given=plan.settings.given.intersection(shared))
    settings_file = directory.logs / CONFIG
    write_atomically(settings_file, config.to_yaml(config.with_given(of_tasks, **of_launch)).encode())
    numbers = iter(reserved)
    ps, worker, chief = (
        tuple(f"localhost:{next(numbers)}" for _ in range(count)) for count in (plan.ps, plan.workers, int(plan.chief))
    )
    tasks = [Task("ps", index) for index in range(plan.ps)]
    tasks += [Task("chief", 0)] if plan.chief else []
    tasks += [Task("worker", index) for index in range(plan.workers)]
    tasks += [Task("evaluator", 0)] if plan.evaluator else []
    shared_variables = {report.VARIABLE: "yes", goodput.LAUNCHED: str(time.time())} | ports.SHARING_ENVIRONMENT
    programs = []
    for task in tasks:
        cluster = Cluster(task, chief, worker, ps)
        of_task = _share(gpus, cluster.replica_index, len(cluster.replicas)) if task in cluster.replicas else []
        folder = scratch / task.slug
        folder.mkdir()
        own = {"TF_CONFIG": cluster.to_tf_config(), "CUDA_VISIBLE_DEVICES": ",".join(of_task)}
        own |= {writer.FOLDER: str(folder), AGAIN: str(folder / "again")}
        words = ["train", "--config", str(settings_file)]
        programs.append(TaskProgram(task, task == cluster.chief_task, words, shared_variables | own))
    return programs


def _share(gpus: list[str], replica: int, replicas: int) -> list[str]:
    """The GPUs of a replica. Each has one of its own if there are as many, and as many as each other."""
    if len(gpus) < replicas:
        return gpus[replica % len(gpus) :][:1] if gpus else []
    each = len(gpus) // replicas
    return gpus[replica * each : (replica + 1) * each]


def visible_gpus(wanted: int | None) -> list[str]:
    """Return the GPUs to assign, by their names in CUDA_VISIBLE_DEVICES.

    Raises:
        ConfigurationError: `wanted` is larger than the number of visible GPUs.
    """
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        gpus = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    else:
        gpus = [str(index) for index, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]
    if wanted is not None and wanted > len(gpus):
        raise ConfigurationError(
            f"num_gpus={wanted}, but {len(gpus)} are visible; lower num_gpus, or check CUDA_VISIBLE_DEVICES."
        )
    return gpus[:wanted]
