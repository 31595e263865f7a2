"""Every setting of a run, typed and documented once.

Sources, the first one wins: the command line, the environment (`TRAINER_` and the name in capitals), the file of
`--config` or, without one, that of the run which `train_dir` holds, the default in this file. No other module reads
settings from the environment.

The names of the classic `mnist_replica.py` keep their meaning. On the command line, dashes and underscores are
equivalent.
"""

import argparse
import contextlib
import dataclasses
import os
import re
import reprlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from trainer import mode
from trainer.errors import ConfigurationError
from trainer.mode import Strategy
from trainer.text import CREDENTIALS, did_you_mean
from trainer.text.yaml_text import load_all

ENVIRONMENT_PREFIX = "TRAINER_"
OPS_MODELS = ("cnn", "mlp")
"""The models of this package that are no Keras models, by the names of their modules."""
BUILT_IN_MODELS = (*OPS_MODELS, "columns")
"""All models of this package."""
FILES_WITH_COLUMNS = ("csv", "parquet", "tfrecord")
"""The data sets that are files with columns."""
GIVEN = "given"
"""In a file of all settings of a run: the names of those that were given. `--config` reads these alone."""
MODEL_ARGUMENTS = "--model_arguments"
SETTINGS_FILE = "settings.yaml"
"""In a training directory: the settings with which its chief has begun last."""


def _unless_bool(expected: Literal["int_type", "float_type"]) -> BeforeValidator:
    """Reject a YAML boolean (`true`, `yes`), which pydantic would convert to the number 1."""

    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticKnownError(expected)
        return value

    return BeforeValidator(check)


Integer = Annotated[int, _unless_bool("int_type")]
Number = Annotated[float, _unless_bool("float_type")]
Count = Annotated[Integer, Field(ge=1, lt=2**31)]
Seconds = Annotated[Number, Field(gt=0)]


@dataclasses.dataclass(frozen=True)
class StepRange:
    """An inclusive range of global steps, written 100-150."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


_STEP_RANGE = r"^([1-9][0-9]*)-([1-9][0-9]*)$"


def _parse_step_range(value: Any) -> StepRange:
    if isinstance(value, StepRange):
        return value
    match = re.match(_STEP_RANGE, value) if isinstance(value, str) else None
    if match is None or int(match[1]) > int(match[2]):
        raise PydanticCustomError(
            "step_range", "input should be a range of global steps FIRST-LAST, with 1 <= FIRST <= LAST, such as 100-150"
        )
    return StepRange(int(match[1]), int(match[2]))


Steps = Annotated[
    StepRange,
    BeforeValidator(_parse_step_range),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": _STEP_RANGE}),
]


Version = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) else value),
    WithJsonSchema({"type": ["string", "integer"]}),
]


def _setting(default: Any, help: str, *aliases: str) -> Any:  # noqa: A002 - the name in argparse
    return dataclasses.field(default=default, metadata={"help": help, "aliases": aliases})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The cluster, and the task that this process runs."""

    ps_hosts: str | None = _setting(None, "addresses of the parameter servers, HOST:PORT,HOST:PORT,…")
    worker_hosts: str | None = _setting(None, "addresses of the workers, HOST:PORT,HOST:PORT,…")
    job_name: str | None = _setting(None, "role of this task: chief, worker, ps or evaluator")
    task_index: Annotated[Integer, Field(ge=0)] | None = _setting(None, "index of this task within its role, from 0")
    cluster_file: Path | None = _setting(
        None, "JSON file with the `cluster` object of TF_CONFIG, for clusters too large for an environment variable"
    )
    spare_workers: Annotated[Integer, Field(ge=0)] = _setting(
        0, "how many of the listed workers, the last ones, do not exist when the run begins; they may join it later"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitoringSettings:
    """Monitoring of this task."""

    metrics_port: Annotated[Integer, Field(ge=1, lt=2**16)] | None = _setting(
        None, "port on which this task serves Prometheus metrics (default: none)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The model, the data and the length of the run."""

    model: str = _setting(
        "mlp",
        "mlp, cnn, columns (of tables, for which it is the default), or the path of a Python file or "
        "folder, or the name of a Python module, whose function model() returns a Keras model",
    )
    model_arguments: str = _setting(
        "", "what the model's file finds in sys.argv after its own name; also all that follows -- on the command line"
    )
    hidden_units: Count = _setting(100, "units in the hidden layer")
    initial_weights: Path | None = _setting(
        None, "initial values of a Keras model: a .keras or .weights.h5 file (default: the model's initializers)"
    )
    table_rows: Count = _setting(
        100_000,
        "rows from which on an array that a Keras model reads by ids alone, such as an embedding, is a table: with "
        "strategy ps, a step moves and updates only the rows that it needs",
    )
    dataset: Literal["digits", "mnist", "npz", "lance", "csv", "parquet", "tfrecord"] | None = _setting(
        None,
        "digits (bundled, works offline), mnist (IDX files in data_dir), npz (.npz files in data_dir), lance "
        "(a Lance dataset at data_dir), csv, parquet or tfrecord (a file or a folder) (default: train_data() of the "
        "model's file, if there is one, what the names of the files in data_dir say, or digits)",
    )
    data_dir: str = _setting(
        "/tmp/mnist-data",  # noqa: S108
        "file or directory of the data, or URI; on the command line also --data",
        "--data",
    )
    target: str | None = _setting(None, "of tables: the column to predict (default: target, label or y)")
    inputs: str | None = _setting(None, "of tables: the inputs, A,B (default: all other columns)")
    exclude: str | None = _setting(None, "of tables: columns that are no inputs, A,B (default: none)")
    id: str | None = _setting(
        None,
        "of tables: the column that identifies a row, which is no input, and which predictions have "
        "(default: one whose values all differ, as those of an id)",
    )
    sample_weight: str | None = _setting(
        None, "of tables: the column with the weight of a row in the loss (default: all rows count alike)"
    )
    regression: bool | None = _setting(
        None,
        "of tables: predict a value instead of a class (default: for numbers with fractions, below 0, or "
        "of more than 20 different values)",
    )
    max_skipped: Annotated[Integer, Field(ge=0)] = _setting(10, "of tables: the most rows that may be unusable")
    data_version: Version | None = _setting(None, "version or tag of a Lance dataset (default: the newest version)")
    download: bool = _setting(True, "download missing MNIST files to data_dir and verify their checksums")
    train_steps: Count = _setting(2000, "global steps to train, over all replicas")
    epochs: Annotated[Integer, Field(ge=0, lt=2**31)] | None = _setting(
        None,
        "passes over the training data, which determine train_steps; with 0 train_steps counts (default: the epochs of "
        "the model's file, unless train_steps is given)",
    )
    batch_size: Count = _setting(100, "examples per replica and step")
    seed: Annotated[Integer, Field(ge=0, lt=2**63)] = _setting(
        0, "seed of the initial values and of each replica's shuffling"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How the optimizer applies gradients."""

    learning_rate: Annotated[Number, Field(gt=0)] = _setting(0.003, "Adam's learning rate")
    learning_rate_schedule: Literal["constant", "cosine", "linear"] = _setting(
        "constant", "learning rate over the run: constant, or cosine or linear decay to 0 at train_steps"
    )
    warmup_steps: Annotated[Integer, Field(ge=0, lt=2**31)] = _setting(
        0, "global steps over which the learning rate rises linearly to its value"
    )
    epsilon: Annotated[Number, Field(gt=0)] = _setting(
        1e-8, "Adam's epsilon, added to the square root of the second moment"
    )
    amsgrad: bool = _setting(True, "use AMSGrad: divide by the largest second moment so far instead of the current one")
    global_clipnorm: Annotated[Number, Field(gt=0)] | None = _setting(
        None,
        "clip gradients so that their global norm over all parameters is at most this value (default: no clipping)",
    )
    weight_decay: Annotated[Number, Field(ge=0)] = _setting(
        0.0, "decoupled weight decay: each update subtracts learning_rate * weight_decay * parameter"
    )
    staleness_aware: bool = _setting(
        True,
        "divide the learning rate of an asynchronous gradient by the number of updates since its parameters were read",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicationSettings:
    """How replicas share parameters and gradients, and which devices they use."""

    strategy: Strategy = _setting(
        "ps",
        "where the parameters of several replicas are: ps (sharded over the parameter servers) or allreduce (a full "
        "copy on each worker)",
    )
    sync_replicas: bool | None = _setting(
        None,
        "average the gradients of the replicas in each step, instead of applying each one asynchronously "
        "(default: false for mlp and cnn, otherwise true)",
    )
    replicas_to_aggregate: Count | None = _setting(
        None,
        "most gradients to average per step; with fewer than the replicas that take part, the others are backups "
        "(default: all)",
    )
    straggler_seconds: Seconds | None = _setting(
        None,
        "in synchronous training: seconds without a step after which it goes on without the gradients that are late "
        "(default: it waits for every replica that takes part)",
    )
    local_steps: Count = _setting(
        1, "local SGD: steps that each synchronous replica takes locally before the replicas average their parameters"
    )
    wire_dtype: Literal["float32", "bfloat16"] = _setting(
        "float32",
        "type of gradients, and of parameters from parameter servers, between tasks; bfloat16 halves the bytes and "
        "rounds to 8 bits",
    )
    steps_per_execution: Count | None = _setting(
        None,
        "steps per session run; a task handles signals between two runs (default: at most 50 steps and a second)",
    )
    num_gpus: Annotated[Integer, Field(ge=0)] | None = _setting(
        None,
        "GPUs that a task computes on, with a batch on each; the launcher deals them to the replicas; 0 trains on the "
        "CPU (default: all visible GPUs)",
    )
    intra_op_threads: Count | None = _setting(None, "threads per op (default: from the CPUs available to this process)")
    inter_op_threads: Count | None = _setting(
        None, "ops that run in parallel (default: from the CPUs available to this process)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Checkpoints, reports, evaluation and timeouts of a task."""

    train_dir: str | None = _setting(
        None,
        "directory of checkpoints, summaries and the result, or its URI on an object store, such as s3://bucket/run; "
        "continues a run found there (default: a new one in runs/)",
    )
    report_steps: Count = _setting(
        100, "global steps between two summaries; progress lines are at least this many steps and one second apart"
    )
    save_steps: Count | None = _setting(
        None, "global steps between two checkpoints (default: only save_seconds and save_share count)"
    )
    save_seconds: Seconds = _setting(60.0, "longest time between two checkpoints, in seconds")
    save_share: Annotated[Number, Field(ge=0, lt=1)] = _setting(
        0.01,
        "save earlier than save_seconds, but not within 3 seconds, if saving takes at most this share of the time; 0, "
        "or save_steps, turns this off",
    )
    keep_checkpoints: Count = _setting(5, "latest checkpoints to keep, in addition to the best one")
    keep_checkpoint_hours: Seconds | None = _setting(
        None, "in addition, keep one checkpoint for each so many hours (default: none)"
    )
    eval_seconds: Seconds = _setting(
        5.0, "seconds between two evaluations on the held-out split; they take at most 5% of the chief's time"
    )
    eval_batch_size: Count | None = _setting(
        None, "held-out examples at once (default: batch_size, or fewer if these would need much memory)"
    )
    best_metric: Annotated[str, Field(min_length=1)] | None = _setting(
        None,
        "metric of the held-out split by which the best checkpoint is chosen, such as auc, or max:NAME or min:NAME "
        "(default: what a callback of the model's file monitors, or the AUC of a binary loss, the accuracy, or the "
        "loss)",
    )
    export: Literal["best", "last"] = _setting("best", "checkpoint to export as the SavedModel at the end")
    publish_seconds: Seconds | None = _setting(
        None,
        "seconds between two deltas of the model, which servers follow while the run trains (default: none)",
    )
    on_divergence: Literal["warn", "stop", "restore"] = _setting(
        "warn",
        "when the loss is not finite, or far above its earlier values for 1,000 steps: warn, stop the run (exit code "
        "4), or restore the best checkpoint and halve the learning rate",
    )
    wait_seconds: Seconds = _setting(600.0, "timeout of waiting for other tasks, at the start and after one is lost")
    stall_seconds: Seconds = _setting(
        600.0, "longest time without a global step before this task exits (exit code 138)"
    )
    grace_seconds: Seconds = _setting(25.0, "timeout of the last checkpoint after SIGTERM or Ctrl-C")
    profile_steps: Steps | None = _setting(
        None, "range of global steps that the chief profiles for TensorBoard, such as 100-150 (default: none)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(MonitoringSettings, TaskSettings, ReplicationSettings, OptimizerSettings, RunSettings, ClusterSettings):
    """All settings of one task."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    """The names of the settings that a source has. Others have their defaults, or what the model's file or the data
    determines."""

    @property
    def has_keras_model(self) -> bool:
        """Whether the model is a Keras one: that of a Python file, or the packaged one for columns."""
        return self.model not in OPS_MODELS


RUN_GROUPS: Mapping[str, type] = {
    "model, data and length of the run": RunSettings,
    "optimizer": OptimizerSettings,
    "replication and devices": ReplicationSettings,
    "checkpoints, reports, evaluation and timeouts": TaskSettings,
}
"""Settings that all tasks of a run share, by heading in `--help`."""
TASK_GROUPS: Mapping[str, type] = {
    **RUN_GROUPS,
    "cluster and task (without these and TF_CONFIG, a single process trains)": ClusterSettings,
    "monitoring": MonitoringSettings,
}
"""`RUN_GROUPS` and the settings of a single task."""
_ADAPTER = TypeAdapter(Settings)


def names(groups: Mapping[str, type]) -> list[str]:
    """The names of all settings of these groups."""
    return [field.name for group in groups.values() for field in dataclasses.fields(group)]


def to_yaml(settings: Settings) -> str:
    """The settings as YAML that `--config` reads, with the list of those that were given."""
    values = _ADAPTER.dump_python(settings, mode="json")
    return str(yaml.safe_dump(values | {GIVEN: sorted(settings.given)}, sort_keys=False))


def with_given(settings: Settings, **values: Any) -> Settings:
    """The settings with these values, as if they were given."""
    return dataclasses.replace(settings, **values, given=settings.given.union(values))


def changes(file: Path, settings: Settings) -> list[str]:
    """What differs from the settings in an earlier YAML file, such as "learning_rate=0.003 (0.002 before)".

    The training directory does not count: it may have moved. A file that is absent or damaged has no settings.
    """
    try:
        before = read_yaml(file)
    except ConfigurationError:
        return []
    now = _ADAPTER.dump_python(settings, mode="json")
    names = [name for name in now if name in before and before[name] != now[name] and name not in ("train_dir", GIVEN)]
    return [f"{name}={now[name]} ({before[name]} before)" for name in names]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that treats `--train-steps` as `--train_steps` and raises ConfigurationError."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog, description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
        )

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments. Those after -- are the setting `model_arguments`, where there are settings.

        Raises:
            ConfigurationError: an argument is unknown, or its value is missing.
        """
        count = words.index("--") if "--" in words and MODEL_ARGUMENTS in self._option_string_actions else len(words)
        found = self.parse_args([_with_underscores(word) for word in words[:count]])
        if count < len(words):
            found.model_arguments = shlex.join(words[count + 1 :])
        return found

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as a ConfigurationError."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            known = sorted(_options_of(self))
            meant = re.sub(r"(?<!\S)(--[^\s=]+)\S*", lambda found: found[0] + did_you_mean(found[1], known), unknown)
            message = f"unrecognized arguments: {meant}"
        raise ConfigurationError(f"{message.removeprefix('argument ')} (see {self.prog} --help).")


def _options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a parser and of its subcommands."""
    found: set[str] = set()
    for action in parser._actions:
        found.update(each for each in action.option_strings if each.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            found.update(option for each in action.choices.values() for option in _options_of(each))
    return found


def check_model(name: str) -> None:
    """Check that the file of a model exists, before the imports that loading it takes.

    Raises:
        ConfigurationError: it does not.
    """
    path = Path(name)
    others: list[str] = []
    if path.suffix == ".py" and not _is_file(path):
        with contextlib.suppress(OSError):
            others = [each.name for each in path.parent.glob("*.py")]
        raise ConfigurationError(
            f"model={name}: there is no such file{did_you_mean(path.name, others)}; name the path of a Python file or "
            f"folder, the name of a module, or {' or '.join(BUILT_IN_MODELS)}."
        )


def _with_underscores(word: str) -> str:
    """Replace dashes in the option of a command-line word."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name.startswith("--") else word


def add_settings(parser: argparse.ArgumentParser, groups: Mapping[str, type]) -> None:
    """Add an option for each setting of these groups, `--config` and `--print_config`."""
    for title, group in groups.items():
        section = parser.add_argument_group(title)
        for field in dataclasses.fields(group):
            default = f" (default: {field.default})" if field.default is not None else ""
            # Accept both a bare `--sync_replicas` and the classic `--sync_replicas=True`.
            switch: dict[str, Any] = {"nargs": "?", "const": "true"} if field.type in (bool, bool | None) else {}
            section.add_argument(
                f"--{field.name}",
                *field.metadata["aliases"],
                dest=field.name,
                default=argparse.SUPPRESS,
                metavar=_metavar(field.type),
                help=(field.metadata["help"] + default).replace("%", "%%"),
                **switch,
            )
    section = parser.add_argument_group("sources of settings")
    section.add_argument("--config", metavar="FILE", type=Path, help="YAML file that maps setting names to values")
    section.add_argument("--print_config", action="store_true", help="print the effective settings as YAML and exit")


def add_tasks(section: argparse._ArgumentGroup) -> None:
    """Add the options for the tasks of a run. Their number is for `check_count`."""
    section.add_argument(
        "--ps", type=int, metavar="N", help="parameter servers (default: 1; none with strategy allreduce)"
    )
    section.add_argument("--workers", type=int, default=2, metavar="N", help="workers (default: 2)")
    section.add_argument("--chief", action="store_true", help="add a chief; without it worker 0 is the chief")
    section.add_argument("--evaluator", action="store_true", help="add a task that evaluates each checkpoint")


def check_count(option: str, number: int, least: int) -> None:
    """Check the number that an option has.

    Raises:
        ConfigurationError: it is too small.
    """
    if number < least:
        raise ConfigurationError(f"--{option}: {number} was given, but at least {least} is needed; raise it.")


def _metavar(annotation: Any) -> str:
    for each in (annotation, *get_args(annotation)):
        if get_origin(each) is Literal:
            return "|".join(get_args(each))
    text = str(annotation)
    for pattern, metavar in (
        ("StepRange", "FIRST-LAST"),
        ("float", "X"),
        ("int", "N"),
        ("bool", "BOOL"),
        ("Path", "PATH"),
    ):
        if pattern in text:
            return metavar
    return "TEXT"


def load(
    arguments: argparse.Namespace, environment: Mapping[str, str], continues: bool = False, is_whole: bool = False
) -> Settings:
    """Merge the sources of settings and validate each value.

    Args:
        arguments: The result of a parser with `add_settings`.
        environment: The environment variables of this process.
        continues: Whether the run in `train_dir` lends its settings, as for a process that is the whole run.
        is_whole: Whether the settings of the file count that were not given to the run which has written it.

    Raises:
        ConfigurationError: a setting is unknown or has an invalid value; the sentence names the setting, its source,
            its value and what was expected.
    """
    known = names(TASK_GROUPS)
    variables = {name: environment.get(ENVIRONMENT_PREFIX + name.upper(), "") for name in known}
    from_environment = {name: value for name, value in variables.items() if value}
    from_command_line = {name: getattr(arguments, name) for name in known if hasattr(arguments, name)}
    train_dir = {**from_environment, **from_command_line}.get("train_dir")
    file = arguments.config or (_settings_of(train_dir) if continues else None)
    from_file = read_yaml(file) if file else {}
    chosen = from_file.pop(GIVEN) if isinstance(from_file.get(GIVEN), list) else list(from_file)
    if not is_whole:  # null is the default
        from_file = {name: value for name, value in from_file.items() if name in chosen and value is not None}
    if file and not arguments.config:  # the settings of one task of an earlier run
        from_file = {name: value for name, value in from_file.items() if name in names(RUN_GROUPS)}
    values: dict[str, Any] = {}
    for source in (from_file, from_environment, from_command_line):
        if "train_steps" in source:  # it takes precedence over epochs of other sources
            values["epochs"] = 0
        values |= source

    def origin_of(name: str) -> str:
        if name in from_command_line:
            return f"--{name}"
        return ENVIRONMENT_PREFIX + name.upper() if name in from_environment else f"{file}: {name}"

    problems = [
        f"{' '.join(origin_of(name).split())}: unknown setting{did_you_mean(name, known)}"
        for name in values
        if name not in known
    ]
    hint = "; --help lists all settings" if problems else ""
    values = {name: value for name, value in values.items() if name in known}
    for name, value in values.items():
        if isinstance(value, str) and not _is_plain(value):
            expected = "text without null characters and surrogates was expected"
            raise ConfigurationError(f"{origin_of(name)}={reprlib.repr(value)}, but {expected}.")
    try:
        given = frozenset(values.keys() - (from_file.keys() - {*chosen}))
        settings = _ADAPTER.validate_python(values | {GIVEN: given})
    except ValidationError as error:
        found = {str(each["loc"][0]): each for each in reversed(error.errors())}  # the first one of each setting
        problems += [
            f"{origin_of(name)}={reprlib.repr(each['input'])}, but {each['msg'][0].lower()}{each['msg'][1:]}"
            for name, each in reversed(found.items())
        ]
    if problems:
        raise ConfigurationError(f"{'; '.join(problems)}{hint}.")
    return _validated(settings)


def _settings_of(train_dir: Any) -> Path | None:
    """The settings of the run that a local training directory holds; None if there are none."""
    if not isinstance(train_dir, str) or "://" in train_dir or not _is_plain(train_dir):
        return None
    file = Path(train_dir) / SETTINGS_FILE
    return file if _is_file(file) else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long
        return False


def _is_plain(text: str) -> bool:
    """Whether the operating system takes the text as a path."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def load_values(values: Mapping[str, Any]) -> Settings:
    """The defaults with these values.

    Raises:
        ConfigurationError: a value is invalid.
    """
    return load(argparse.Namespace(config=None, **values), {})


def load_file(path: Path) -> Settings:
    """Read all settings that `to_yaml` has written, also those that were not given.

    Raises:
        ConfigurationError: a setting is unknown or has an invalid value.
    """
    return load(argparse.Namespace(config=path), {}, is_whole=True)


def _validated(settings: Settings) -> Settings:
    """Check the rules between settings."""
    for name in ("train_dir", "data_dir"):
        if CREDENTIALS.match(getattr(settings, name) or ""):  # do not show it
            raise ConfigurationError(
                f"{name}: the URI has a user, a password or a port; set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
                "AWS_ENDPOINT_URL, or the variables of your store, instead."
            )
    train_dir = settings.train_dir or ""
    if "://" not in train_dir and (found := next((sign for sign in train_dir if sign in "*?[\\"), None)):
        raise ConfigurationError(
            f"train_dir: {train_dir} has {found}, so TensorFlow would take the path for a pattern; choose another."
        )
    mode.check(settings)
    if settings.train_steps % settings.local_steps:
        raise ConfigurationError(
            f"local_steps={settings.local_steps} does not divide train_steps={settings.train_steps}; "
            "choose a divisor of train_steps."
        )
    profiled = settings.profile_steps
    if profiled and profiled.first > settings.train_steps:
        raise ConfigurationError(
            f"profile_steps={profiled} begins after the last step, train_steps={settings.train_steps}; "
            "choose earlier steps or raise train_steps."
        )
    return settings


def read_yaml(path: Path, option: str = "--config", what: str = "setting names to values") -> dict[str, Any]:
    """The mapping in a YAML file; empty if the file is.

    Args:
        path: The file.
        option: The option that names it, for errors.
        what: What the mapping maps, for errors.

    Raises:
        ConfigurationError: it cannot be read, or is not one mapping.
    """
    try:
        documents = load_all(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option}: {path} cannot be read: {error}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{option}: {path} is not valid YAML: {' '.join(str(error).split())}.") from None
    content = documents[0] if documents else None
    if content is None and len(documents) < 2:
        return {}
    if not isinstance(content, dict) or len(documents) > 1:
        raise ConfigurationError(f"{option}: {path} must be one mapping from {what}.")
    return {str(name): value for name, value in content.items()}
