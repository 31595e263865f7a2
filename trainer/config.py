"""Every setting of a run, typed and documented once.

A value comes from, in this order: the command line, the environment (`TRAINER_` and the name in capitals), the file
given by `--config`, the default here. Nothing else in the package reads the environment for settings.

The classic names of `mnist_replica.py` keep their meanings; on the command line dashes do for underscores.
"""

import argparse
import dataclasses
import re
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from trainer.cluster.spec import Strategy
from trainer.errors import ConfigurationError

ENVIRONMENT_PREFIX = "TRAINER_"
FORMER_NAMES = {"steps_per_call": "steps_per_execution", "time_split": "step_time_breakdown"}
"""Former names of settings, accepted with a notice until the next release."""
FORMER_STRATEGIES = {"local": "mirrored"}
"""Former values of `strategy`, likewise."""


def _unless_bool(expected: Literal["int_type", "float_type"]) -> BeforeValidator:
    """Refuses what YAML makes of `true` or `yes`, which pydantic would take for the number 1."""

    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticKnownError(expected)
        return value

    return BeforeValidator(check)


Whole = Annotated[int, _unless_bool("int_type")]
Real = Annotated[float, _unless_bool("float_type")]
Count = Annotated[Whole, Field(ge=1, lt=2**31)]
Seconds = Annotated[Real, Field(gt=0)]


@dataclasses.dataclass(frozen=True)
class StepRange:
    """Global steps from the first to the last, both among them; written 100-150."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


_STEP_RANGE = r"^([1-9][0-9]*)-([1-9][0-9]*)$"


def _parse_step_range(value: Any) -> StepRange:
    if isinstance(value, StepRange):
        return value
    found = re.match(_STEP_RANGE, value) if isinstance(value, str) else None
    if found is None or int(found[1]) > int(found[2]):
        raise PydanticCustomError(
            "step_range", "input should be two global steps from 1, the first not above the last, as in 100-150"
        )
    return StepRange(int(found[1]), int(found[2]))


Steps = Annotated[
    StepRange,
    BeforeValidator(_parse_step_range),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": _STEP_RANGE}),
]


def _setting(default: Any, help: str) -> Any:  # noqa: A002 - argparse's word for it
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Which task of which cluster this is."""

    ps_hosts: str | None = _setting(None, "addresses of the parameter servers, HOST:PORT,HOST:PORT,…")
    worker_hosts: str | None = _setting(None, "addresses of the workers, HOST:PORT,HOST:PORT,…")
    job_name: str | None = _setting(None, "role of this task: chief, worker, ps or evaluator")
    task_index: Annotated[Whole, Field(ge=0)] | None = _setting(None, "index of this task within its role, from 0")
    cluster_file: Path | None = _setting(
        None, "a JSON file in the form of TF_CONFIG's cluster, for clusters too large for an environment variable"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How this one task is watched."""

    metrics_port: Annotated[Whole, Field(ge=1, lt=2**16)] | None = _setting(
        None, "port on which this task serves metrics to Prometheus (default: none)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What to train."""

    model: str = _setting("mlp", "mlp, cnn, or a Python file of your own with the same two functions")
    hidden_units: Count = _setting(100, "units in the hidden layer")
    dataset: Literal["digits", "mnist", "npz"] = _setting(
        "digits", "digits (bundled, works offline), mnist (IDX files in data_dir) or npz (a folder of your own)"
    )
    data_dir: Path = _setting(Path("/tmp/mnist-data"), "folder of the mnist or npz files")  # noqa: S108
    download: bool = _setting(True, "fetch absent MNIST files into data_dir, once, checked by their checksums")
    train_steps: Count = _setting(2000, "global steps to train, all replicas together")
    batch_size: Count = _setting(100, "examples per replica and step")
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] = _setting(0, "of initial values and of every replica's shuffling")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How gradients change parameters."""

    learning_rate: Annotated[Real, Field(gt=0)] = _setting(0.003, "Adam's learning rate")
    learning_rate_schedule: Literal["constant", "cosine", "linear"] = _setting(
        "constant", "the learning rate over the run: constant, or cosine or linear down to 0 at train_steps"
    )
    warmup_steps: Annotated[Whole, Field(ge=0, lt=2**31)] = _setting(
        0, "global steps in which the learning rate rises linearly to its value"
    )
    epsilon: Annotated[Real, Field(gt=0)] = _setting(1e-8, "Adam's epsilon, added to the root of the second moment")
    amsgrad: bool = _setting(True, "divide by the largest second moment so far (AMSGrad), not by the current one")
    global_clipnorm: Annotated[Real, Field(gt=0)] | None = _setting(
        None, "scale a gradient down to this norm, over all parameters, where it is larger (default: never)"
    )
    weight_decay: Annotated[Real, Field(ge=0)] = _setting(
        0.0, "decoupled weight decay: each update takes the learning rate times this share of every parameter off"
    )
    staleness_aware: bool = _setting(
        True, "divide the learning rate of an asynchronous gradient by the updates made since its parameters were read"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicationSettings:
    """How replicas work together."""

    strategy: Strategy = _setting(
        "ps",
        "who holds the parameters: ps (parameter servers), allreduce (each worker, all of them) or mirrored (one "
        "process, for all of its devices)",
    )
    sync_replicas: bool = _setting(False, "average the replicas' gradients for each step, instead of each on its own")
    replicas_to_aggregate: Count | None = _setting(
        None, "gradients to average per step; fewer than there are replicas makes the rest backups (default: all)"
    )
    local_steps: Count = _setting(
        1, "steps that each synchronous replica takes by itself before parameters, not gradients, are averaged"
    )
    steps_per_execution: Count | None = _setting(
        None,
        "steps per run of the session, between which a task hears nothing (default: at most 50, and half a second)",
    )
    num_gpus: Annotated[Whole, Field(ge=0)] | None = _setting(
        None, "GPUs of this machine that replicas share by index; 0 for CPU only (default: those that are visible)"
    )
    intra_op_threads: Count | None = _setting(None, "threads of one op (default: from the CPUs this process may use)")
    inter_op_threads: Count | None = _setting(None, "ops at the same time (default: from the CPUs likewise)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LifeSettings:
    """How a task lives."""

    train_dir: Path | None = _setting(
        None, "checkpoints, summaries and the result; a run found there is continued (default: a new folder in runs/)"
    )
    report_steps: Count = _setting(
        100, "global steps between two points of the curves; as many or more, and a second, between two progress lines"
    )
    save_steps: Count | None = _setting(None, "global steps between two checkpoints (default: by time only)")
    save_seconds: Seconds = _setting(60.0, "seconds between two checkpoints")
    keep_checkpoints: Count = _setting(5, "checkpoints to keep, besides the best")
    eval_seconds: Seconds = _setting(
        5.0, "seconds between two evaluations on the held-out split, which take at most a twentieth of the chief's time"
    )
    export: Literal["best", "last"] = _setting("best", "which checkpoint becomes the SavedModel at the end")
    on_divergence: Literal["warn", "stop", "restore"] = _setting(
        "warn",
        "when the loss is no number, or far above its past for 1,000 steps: warn, stop the run (code 4), or restore "
        "the best checkpoint and halve the learning rate",
    )
    wait_seconds: Seconds = _setting(600.0, "longest wait for other tasks, at the start and after one was lost")
    stall_seconds: Seconds = _setting(
        600.0, "longest time without any global step before this task gives up (code 138)"
    )
    grace_seconds: Seconds = _setting(
        25.0, "longest time for a last checkpoint once this task is told to end (SIGTERM, Ctrl-C)"
    )
    profile_steps: Steps | None = _setting(
        None, "global steps that the chief profiles for TensorBoard, such as 100-150 (default: none)"
    )
    step_time_breakdown: bool = _setting(
        False, "trace a few calls, and say at the end how a step divides into waiting, reading, computing, applying"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(WatchSettings, LifeSettings, ReplicationSettings, OptimizerSettings, RunSettings, ClusterSettings):
    """All settings of one task."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


RUN_GROUPS: Mapping[str, type] = {
    "what to train, and for how long": RunSettings,
    "the optimiser": OptimizerSettings,
    "how replicas work together": ReplicationSettings,
    "the life of a task": LifeSettings,
}
"""The settings that a whole run shares, by their headings in `--help`."""
TASK_GROUPS: Mapping[str, type] = {
    **RUN_GROUPS,
    "which task of which cluster this is (without these and TF_CONFIG, one process trains alone)": ClusterSettings,
    "how this task is watched": WatchSettings,
}
"""Those, and the ones that each task has for itself."""
_ADAPTER = TypeAdapter(Settings)


def names(groups: Mapping[str, type]) -> list[str]:
    """The names of all settings of these groups."""
    return [field.name for group in groups.values() for field in dataclasses.fields(group)]


def to_yaml(settings: Settings) -> str:
    """The settings as a file that `--config` reads back."""
    return str(yaml.safe_dump(_ADAPTER.dump_python(settings, mode="json"), sort_keys=False))


class Parser(argparse.ArgumentParser):
    """An ArgumentParser for this package: `--train-steps` is `--train_steps`, and an error is a ConfigurationError."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog, description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
        )

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments.

        Raises:
            ConfigurationError: they do not fit.
        """
        return self.parse_args([_current(word) for word in words])

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong as a ConfigurationError."""
        raise ConfigurationError(f"{message.removeprefix('argument ')} (see {self.prog} --help).")


def _current(word: str) -> str:
    """A word of the command line, with the current name of a setting in underscores."""
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        return word
    setting = name[2:].replace("-", "_")
    if setting in FORMER_NAMES:
        _announce_rename(f"--{setting}", f"--{FORMER_NAMES[setting]}")
    return f"--{FORMER_NAMES.get(setting, setting)}{equals}{value}"


def _announce_rename(former: str, current: str) -> None:
    print(f"trainer: {former} is now {current}; the former name is accepted until the next release.", file=sys.stderr)


def add_settings(parser: argparse.ArgumentParser, groups: Mapping[str, type]) -> None:
    """Give the parser an option for each setting of these groups, `--config` and `--print_config`."""
    for title, group in groups.items():
        section = parser.add_argument_group(title)
        for field in dataclasses.fields(group):
            default = f" (default: {field.default})" if field.default is not None else ""
            # A bare `--sync_replicas` and the classic `--sync_replicas=True` are both understood.
            switch: dict[str, Any] = {"nargs": "?", "const": "true"} if field.type is bool else {}
            section.add_argument(
                f"--{field.name}",
                default=argparse.SUPPRESS,
                metavar=_metavar(field.type),
                help=(field.metadata["help"] + default).replace("%", "%%"),
                **switch,
            )
    section = parser.add_argument_group("where settings come from")
    section.add_argument("--config", metavar="FILE", type=Path, help="a YAML file of settings, by these names")
    section.add_argument("--print_config", action="store_true", help="print the settings in force as YAML, and stop")


def _metavar(annotation: Any) -> str:
    text = str(annotation)
    for sign, name in (
        ("StepRange", "FIRST-LAST"),
        ("Literal", "NAME"),
        ("float", "X"),
        ("int", "N"),
        ("bool", "BOOL"),
        ("Path", "PATH"),
    ):
        if sign in text:
            return name
    return "TEXT"


def load(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Merge the sources of settings, and check each value.

    Args:
        arguments: What a parser with `add_settings` parsed.
        environment: The process's environment variables.

    Raises:
        ConfigurationError: one sentence that names the setting, where it was set, its value and what was expected.
    """
    known = names(TASK_GROUPS)
    from_file = _with_current_names(_read_yaml(arguments.config), f"{arguments.config}: ") if arguments.config else {}
    variables = {name: environment.get(ENVIRONMENT_PREFIX + name.upper(), "") for name in [*known, *FORMER_NAMES]}
    set_variables = {name: value for name, value in variables.items() if value}
    from_environment = _with_current_names(set_variables, ENVIRONMENT_PREFIX, str.upper)
    from_command_line = {name: getattr(arguments, name) for name in known if hasattr(arguments, name)}
    given = {**from_file, **from_environment, **from_command_line}
    if (strategy := given.get("strategy")) in FORMER_STRATEGIES:
        given["strategy"] = FORMER_STRATEGIES[strategy]
        _announce_rename(f"strategy {strategy}", f"strategy {given['strategy']}")
    try:
        return _checked(_ADAPTER.validate_python(given))
    except ValidationError as error:
        problem = error.errors()[0]
    name = str(problem["loc"][0])
    if name in from_command_line:
        origin = f"--{name}"
    elif name in from_environment:
        origin = ENVIRONMENT_PREFIX + name.upper()
    else:
        origin = f"{arguments.config}: {name}"
    if name not in known:
        raise ConfigurationError(f"{' '.join(origin.split())}: there is no such setting.")
    expected = problem["msg"][0].lower() + problem["msg"][1:]
    raise ConfigurationError(f"{origin}: {reprlib.repr(problem['input'])} was given; {expected}.")


def _with_current_names(found: Mapping[str, Any], origin: str, spelling: Callable[[str], str] = str) -> dict[str, Any]:
    """The settings by their current names; a former name beside the current one is ignored."""
    for former in FORMER_NAMES.keys() & found.keys():
        _announce_rename(origin + spelling(former), spelling(FORMER_NAMES[former]))
    return {FORMER_NAMES.get(name, name): value for name, value in found.items() if FORMER_NAMES.get(name) not in found}


def _checked(settings: Settings) -> Settings:
    """Rules between settings."""
    strategy, local_steps = settings.strategy, settings.local_steps
    for name in ("sync_replicas", "replicas_to_aggregate"):
        if strategy != "ps" and getattr(settings, name):
            raise ConfigurationError(
                f"{name}: {getattr(settings, name)} was given beside strategy {strategy}, which averages the gradients "
                f"of all replicas for each step by itself; leave {name} out."
            )
    if settings.replicas_to_aggregate and not settings.sync_replicas and strategy == "ps":
        raise ConfigurationError(
            f"replicas_to_aggregate: {settings.replicas_to_aggregate} was given, but only synchronous replicas "
            "aggregate gradients; set sync_replicas too, or leave it out."
        )
    if local_steps > 1 and not settings.sync_replicas:
        raise ConfigurationError(
            f"local_steps: {local_steps} was given, but only synchronous replicas average their parameters; "
            "set sync_replicas too, with strategy ps."
        )
    if settings.train_steps % local_steps:
        raise ConfigurationError(
            f"local_steps: rounds of {local_steps} steps do not end at train_steps {settings.train_steps}; "
            "choose a divisor of it."
        )
    profiled = settings.profile_steps
    if profiled and profiled.first > settings.train_steps:
        raise ConfigurationError(
            f"profile_steps: {profiled} begins after the run's last step, {settings.train_steps}: "
            "name earlier steps, or more train_steps."
        )
    return settings


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config: {path} cannot be read: {error}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"--config: {path} is not YAML: {' '.join(str(error).split())}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(f"--config: {path} must map settings' names to values.")
    return {str(name): value for name, value in content.items()}
