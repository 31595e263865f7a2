"""The `trainer` command: arguments in, exit code out; every error of the user's becomes one sentence here."""

import contextlib
import importlib.util
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import trainer
from trainer import config
from trainer.cluster import spec
from trainer.errors import (
    EXIT_CONFIGURATION,
    EXIT_DIVERGED,
    EXIT_ERROR,
    EXIT_FAILED_RUN,
    EXIT_LOST_PEERS,
    CollectiveLostError,
    ConfigurationError,
    DivergedError,
    LostPeersError,
    ModelError,
)
from trainer.supervisor import run as supervision_run
from trainer.telemetry.metrics import Metrics, parse_restarts, serve
from trainer.tfjob import convert
from trainer.training import threads
from trainer.training.watchdog import Watchdog

USAGE = """usage: trainer COMMAND [OPTION …]

Between-graph distributed TensorFlow training.

commands:
  launch         a whole cluster of real processes on this machine
  train          one task: of the cluster in TF_CONFIG (or the classic flags), or a single process
  supervise      the life of a run inside Kubernetes: the chart's Job runs it
  convert-tfjob  print the chart's values that do what a Kubeflow TFJob does

trainer COMMAND --help says more; trainer --version says which trainer this is.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of these arguments (the process's own by default) and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "launch": _launch,
        "train": _train,
        "supervise": _supervise,
        "convert-tfjob": _convert_tfjob,
    }
    try:
        if words and words[0] in commands:
            return commands[words[0]](words[1:])
        if words == ["--version"]:
            print(trainer.__version__)
            return 0
        if words and words[0] not in ("--help", "-h", "help"):
            raise ConfigurationError(f"there is no command {words[0]!r}; the commands are {', '.join(commands)}.")
        print(USAGE, end="")
        return 0
    except ConfigurationError as error:
        return _fail(error, EXIT_CONFIGURATION)
    except LostPeersError as error:
        return _fail(error, EXIT_LOST_PEERS)


def _require(command: str, packages: Sequence[str], extra: str) -> None:
    """Check that the packages that a command needs are installed.

    Raises:
        ConfigurationError: one is not.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(
                f"trainer {command}: the Python package {package} is not installed: install the trainer with its extra "
                f"{extra}, such as pip install 'distributed-tensorflow-trainer[{extra.split()[0]}]'."
            )


def _fail(error: Exception, code: int) -> int:
    print(f"trainer: {error}", file=sys.stderr, flush=True)
    return code


def _train(words: Sequence[str]) -> int:
    parser = config.Parser(
        prog="trainer train",
        description="Train as one task of a cluster, or in a single process where no cluster is named.\n"
        "The cluster is in the environment variable TF_CONFIG, in a file that wins over it, or in the classic flags,\n"
        "which win over both.",
    )
    config.add_settings(parser, config.TASK_GROUPS)
    arguments = parser.read(words)
    settings = config.load(arguments, os.environ)
    flags = spec.ClassicFlags(settings.ps_hosts, settings.worker_hosts, settings.job_name, settings.task_index)
    file = _read(settings.cluster_file) if settings.cluster_file else None
    found, conflicts = spec.resolve(os.environ.get("TF_CONFIG"), flags, file, settings.strategy)
    if arguments.print_config:
        print(config.to_yaml(threads.in_force(settings, found.task.role if found else None)), end="")
        return 0
    _require("train", ("tensorflow", "numpy", "sklearn"), "cpu or gpu")
    # All tasks of a run may be told to end at once; a parameter server is away while it gives the chief time to save.
    longest = settings.grace_seconds
    away = longest + 2 if found and found.task.role == "ps" else min(3.0, longest / 2)
    watchdog = Watchdog(settings.stall_seconds, grace_seconds=away, save_seconds=max(0.0, longest - away))
    watchdog.start()
    name = str(found.task) if found else "trainer"

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {name}: {line}", flush=True)

    for conflict in conflicts:
        say(conflict)
    role, index = (found.task.role, found.task.index) if found else ("single", 0)
    metrics = Metrics(role, index)
    if settings.metrics_port is not None:
        metrics.restarts = parse_restarts(os.environ.get("TASK_RESTARTS", ""))
        serve(metrics, settings.metrics_port)
    try:
        code = _live(settings, found, watchdog, say, metrics)
    except CollectiveLostError as error:
        say(f"{error}; beginning anew")
        watchdog.rest()
        if not watchdog.stopping:
            _begin_anew()
        code = watchdog.exit_code
    watchdog.finished()
    # TensorFlow's own clean-up may hang for minutes when other tasks are gone, and there is nothing left to clean.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _begin_anew() -> NoReturn:
    """Become another process of the same command and number: for whoever watches this one, it never ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the listing's own is closed already
            os.set_inheritable(int(name), int(name) <= sys.stderr.fileno())  # ports and GPUs are free then
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the command that this process was started by


def _supervise(words: Sequence[str]) -> int:
    parser = config.Parser(
        prog="trainer supervise",
        description="Start a run's tasks in Kubernetes, watch them, clean up after them, end with its result.\n"
        "The chart starts this as a Job; it reads all that it must know from the file that the chart renders.",
    )
    parser.add_argument("--run", required=True, metavar="FILE", type=Path, help="the run, as the chart renders it")
    _require("supervise", ("lightkube",), "supervisor")
    # The first process of a container is not ended by a signal unless it says so: also while it still imports.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    run = supervision_run.read(parser.read(words).run, os.environ.get("JOB_UID", ""))
    from lightkube import ApiError

    from trainer.supervisor import supervise
    from trainer.supervisor.kubernetes_api import KubernetesApi

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    try:
        return 0 if supervise.supervise(run, KubernetesApi(run), say).succeeded else EXIT_FAILED_RUN
    except supervise.StoppedError as stop:
        say(f"{stop}; the run goes on")
        return 128 + signal.SIGTERM
    except ApiError as error:
        raise ConfigurationError(f"the Kubernetes API refuses what a run needs: {error.status.message}.") from None


def _read(path: Path) -> spec.ClusterFile:
    try:
        return spec.ClusterFile(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is no UTF-8: {error.reason}"
        raise ConfigurationError(
            f"--cluster_file: {path} cannot be read ({reason}): name a JSON file in the form of TF_CONFIG's cluster."
        ) from None


def _live(
    settings: config.Settings,
    found: spec.Cluster | None,
    watchdog: Watchdog,
    say: Callable[[str], None],
    metrics: Metrics,
) -> int:
    """Live the task's life; its exit code.

    Raises:
        LostCircleError: it must be lived anew.
    """
    if found:
        threads.take_turns()
    try:
        if found and found.task.role == "ps":
            from trainer.training import server

            counts = threads.choose(settings, found.task.role)
            server.serve(found, counts, settings.grace_seconds, say, lambda: watchdog.stopping, metrics)
        elif found and found.task.role == "evaluator":
            from trainer.training.evaluator import evaluate
            from trainer.training.session_errors import model_errors

            with model_errors():
                evaluate(settings, watchdog, say, metrics)
        else:
            from trainer.training.session_errors import model_errors
            from trainer.training.train import train

            with model_errors():
                done = train(settings, found, watchdog, say, metrics)
            if done:
                return 0
    except ConfigurationError as error:
        return _fail(error, EXIT_CONFIGURATION)
    except LostPeersError as error:
        return _fail(error, EXIT_LOST_PEERS)
    except DivergedError as error:
        return _fail(error, EXIT_DIVERGED)
    except ModelError as error:
        return _fail(error, EXIT_ERROR)
    except CollectiveLostError:
        raise
    except Exception:
        traceback.print_exc()
        return EXIT_ERROR
    return watchdog.exit_code


def _launch(words: Sequence[str]) -> int:
    _require("launch", ("tensorflow", "numpy", "sklearn", "rich"), "cpu or gpu")
    from trainer.launcher import launch

    return launch.main(words)


def _convert_tfjob(words: Sequence[str]) -> int:
    parser = config.Parser(
        prog="trainer convert-tfjob",
        description="Print a values file with which the chart does what a Kubeflow TFJob (kubeflow.org/v1) does.\n"
        "What cannot be carried over is named on standard error, a line for each field.",
    )
    parser.add_argument("file", metavar="FILE", help="the TFJob, YAML or JSON; - is standard input")
    parser.add_argument(
        "--entrypoint",
        metavar='ROLE="WORD …"',
        action="append",
        default=[],
        help="the image's own entrypoint, for a role (chief, worker, ps, evaluator) without a command; repeatable",
    )
    arguments = parser.read(words)
    entrypoints = convert.parse_entrypoints(arguments.entrypoint)
    origin = "standard input" if arguments.file == "-" else arguments.file
    try:
        content = sys.stdin.buffer.read() if arguments.file == "-" else Path(arguments.file).read_bytes()
        text = content.decode()
    except OSError as error:
        raise ConfigurationError(f"{origin} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{origin} cannot be read (it is no UTF-8: {error.reason}).") from None
    conversion = convert.convert(convert.parse(text, origin), entrypoints)
    for note in conversion.notes:
        print(note, file=sys.stderr)
    print(convert.to_yaml(conversion), end="")
    return 0
