"""The `trainer` command: it parses arguments, runs a subcommand, and reports each user error as one sentence."""

import contextlib
import functools
import importlib.util
import io
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import trainer
from trainer import config
from trainer.cluster import spec
from trainer.errors import (
    AGAIN,
    EXIT_CONFIGURATION,
    EXIT_DIVERGED,
    EXIT_ERROR,
    EXIT_FAILED_RUN,
    EXIT_LOST_PEERS,
    EXIT_SUPERSEDED,
    CollectiveLostError,
    ConfigurationError,
    DivergedError,
    LostPeersError,
    ModelError,
    StoreError,
    SupersededError,
)
from trainer.scale import plan
from trainer.supervisor import run as supervision_run
from trainer.telemetry import goodput, report
from trainer.telemetry.metrics import Metrics, parse_restarts, serve
from trainer.text import abridge, did_you_mean, installation, one_line, tracebacks
from trainer.tfjob import convert, inspect_image
from trainer.tfjob.parse import parse_manifest
from trainer.tfjob.program import parse_entrypoints
from trainer.training import threads
from trainer.training.context import TaskContext
from trainer.training.watch.watchdog import Watchdog

logger = logging.getLogger(__name__)

USAGE = """usage: trainer COMMAND [OPTION …]

Between-graph distributed TensorFlow training.

commands:
  launch         run a whole cluster of real processes on this machine
  plan           predict how many parameter servers a run needs, and what limits it
  train          run one task of the cluster in TF_CONFIG (or the classic flags), or a single process
  data           make versions of data from raw files, name, compare and watch them
  report         write one HTML page about a run
  models         compare two trained models, predict with one, write what differs in a newer one, or publish one
  serve          serve a model by HTTP and gRPC: a packaged one, that of a run, or a version in MLflow
  tensorboard    run TensorBoard, also on directories on object stores
  submit         train in a Kubernetes cluster, with the options of launch, and follow the run to its end
  runs           list the runs in a cluster; follow NAME, logs NAME, fetch NAME FOLDER, stop NAME, resume NAME and
                 delete NAME do what they say
  supervise      supervise a run inside Kubernetes: the chart's Job runs this
  convert-tfjob  print the chart's values that replace a Kubeflow TFJob

trainer COMMAND --help shows the options of a command; trainer --version shows the version. With --debug, an error that
ends a command is shown with its traceback.
"""


CLIENT = ("submit", "runs", "logs", "follow", "fetch", "stop", "resume", "delete")
"""The commands of `trainer.client`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of these arguments (the process's own by default) and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words
    if "--debug" in own:
        words.remove("--debug")
        os.environ[tracebacks.DEBUG] = "yes"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # with LC_ALL=C it takes ASCII alone
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "launch": _launch,
        "plan": plan.main,
        "train": _train,
        "supervise": _supervise,
        "data": _data,
        "report": _report,
        "models": _models,
        "serve": _serve,
        "tensorboard": _tensorboard,
        "convert-tfjob": _convert_tfjob,
        **{name: functools.partial(_client, name) for name in CLIENT},
    }

    def run() -> int:
        if words and words[0] in commands:
            return commands[words[0]](words[1:])
        if words == ["--version"]:
            print(trainer.__version__)
            return 0
        if words and words[0] not in ("--help", "-h", "help"):
            meant = did_you_mean(words[0], commands)
            raise ConfigurationError(
                f"there is no command {words[0]!r}{meant}; the commands are {', '.join(commands)}."
            )
        print(USAGE, end="")
        return 0

    try:
        try:
            return _code_of(run)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:  # the reader is done, as `head` is; the interpreter's own flush at its end would fail too
        return _exit_at_once(128 + signal.SIGPIPE)


def _require(command: str, packages: Sequence[str], install: str) -> None:
    """Check that the packages of a command are installed.

    Args:
        command: The command.
        packages: Their names for Python's import.
        install: What installs them.

    Raises:
        ConfigurationError: a package is not installed.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(
                f"trainer {command}: the Python package {package} is not installed: run {install}."
            )


def _log_to_stdout(prefix: str) -> None:
    """Write the log of this package to standard output, each line with the time and a prefix."""
    _log_to(_LogHandler(sys.stdout), prefix)


class _LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Goes on without a log when the reader of the output is gone, as `head` is."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in logging
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            self.stream = open(os.devnull, "w")  # noqa: SIM115 - until the end of the process
        else:
            super().handleError(record)


def _log_to(handler: "logging.StreamHandler[TextIO]", prefix: str) -> None:
    formatter = report.Formatter if os.environ.get(report.VARIABLE) else logging.Formatter
    handler.setFormatter(formatter(f"%(asctime)s {prefix}%(message)s", datefmt="%H:%M:%S"))
    package = logging.getLogger(trainer.__name__)
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    package.propagate = False


def _fail(error: Exception, code: int, has_log_file: bool = False) -> int:
    with contextlib.suppress(OSError):  # the output may be a file on a full volume
        may_be_of_user = isinstance(error, (ConfigurationError, ModelError)) and (error.__cause__ or error.__context__)
        if tracebacks.is_wanted() or (may_be_of_user and has_log_file):
            prefix = "" if tracebacks.is_wanted() else tracebacks.PREFIX
            print("".join(f"{prefix}{line}\n" for line in tracebacks.of(error)), end="", file=sys.stderr)
        print(f"trainer: {abridge(one_line(str(error)), 1000)}", file=sys.stderr, flush=True)
    return code


def _train(words: Sequence[str]) -> int:
    parser = config.Parser(
        prog="trainer train",
        description="Train as one task of a cluster, or in a single process if no cluster is given.\n"
        "Give the cluster in the environment variable TF_CONFIG, in a file (--cluster_file), or in the classic flags.\n"
        "The file takes precedence over TF_CONFIG, and the flags over both.",
    )
    config.add_settings(parser, config.TASK_GROUPS)
    arguments = parser.read(words)
    settings = config.load(arguments, os.environ)
    flags = spec.ClassicFlags(settings.ps_hosts, settings.worker_hosts, settings.job_name, settings.task_index)
    file = _read(settings.cluster_file) if settings.cluster_file else None
    cluster, conflicts = spec.resolve(os.environ.get("TF_CONFIG"), flags, file, settings.strategy)
    if cluster is None and not os.environ.get("TF_CONFIG"):
        settings = config.load(arguments, os.environ, continues=True)
    if arguments.print_config:
        print(config.to_yaml(threads.effective_settings(settings, cluster.task.role if cluster else None)), end="")
        return 0
    if not (cluster and cluster.task.role == "ps"):  # parameter servers hold what the others make
        config.check_model(settings.model)
    _require("train", ("tensorflow", "numpy", "sklearn"), installation.command("tensorflow"))
    # All tasks of a run may receive SIGTERM at once. A parameter server then gives the chief time to save.
    total = settings.grace_seconds
    grace = total + 2 if cluster and cluster.task.role == "ps" else min(3.0, total / 2)
    watchdog = Watchdog(settings.stall_seconds, grace_seconds=grace, save_seconds=max(0.0, total - grace))
    watchdog.start()
    _log_to_stdout(f"{cluster.task if cluster else 'trainer'}: ")
    for conflict in conflicts:
        logger.warning(conflict)
    role, index = (cluster.task.role, cluster.task.index) if cluster else ("single", 0)
    report.log(logger, f"trainer {trainer.__version__}", started={"version": trainer.__version__})
    metrics = Metrics(role, index)
    if settings.metrics_port is not None:
        metrics.restarts = parse_restarts(os.environ.get("TASK_RESTARTS", ""))
        serve(metrics, settings.metrics_port)
    try:
        code = _run_task(TaskContext(settings, cluster, watchdog, metrics))
    except CollectiveLostError as error:
        report.log(logger, f"{error}; restarting", lost={"reason": str(error)})
        if not watchdog.stopping:
            _restart_process(watchdog)
        code = watchdog.exit_code
    watchdog.finished()
    # Skip TensorFlow's clean-up: it may hang for minutes when other tasks are lost, and nothing is left to clean up.
    return _exit_at_once(code)


def _exit_at_once(code: int) -> NoReturn:
    """End this process without waiting for the threads of libraries."""
    _flush()
    os._exit(code)


def _flush() -> None:
    """Flush the output. It may be a file on a full volume."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def _restart_process(watchdog: Watchdog) -> None:
    """Start this process anew, which is no restart that counts. Return if it is to end.

    Execute the same command with the same process id, so that the parent process sees no exit; or leave it to a parent
    that has a quicker way.
    """
    if file := os.environ.get(AGAIN):
        with contextlib.suppress(OSError):  # then it is a restart that counts
            Path(file).touch()
        _exit_at_once(EXIT_LOST_PEERS)
    watchdog.release_signals()
    if watchdog.stopping:
        return
    _flush()
    os.environ[goodput.BEGAN] = str(time.time())
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is already closed
            os.set_inheritable(int(name), int(name) <= sys.stderr.fileno())  # release ports and GPUs
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this process's own command line


def _supervise(words: Sequence[str]) -> int:
    parser = config.Parser(
        prog="trainer supervise",
        description="Start a run's tasks in Kubernetes, watch them, clean up after them, and exit with the result.\n"
        "The chart starts this as a Job and renders the file with all of its settings.",
    )
    parser.add_argument("--run", required=True, metavar="FILE", type=Path, help="the run file that the chart renders")
    parser.add_argument(
        "--stop_tensorboard",
        action="store_true",
        help="only wait for the end of the run and its time to live, and stop TensorBoard",
    )
    _require("supervise", ("lightkube",), installation.command("supervisor"))
    # Process 1 of a container ignores signals without a handler. Set the handlers before the slow imports.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    arguments = parser.read(words)
    run = supervision_run.read(arguments.run, os.environ.get("JOB_UID", ""), os.environ.get("POD_UID", ""))
    from lightkube import ApiError

    from trainer.supervisor.connection import StoppedError, connect
    from trainer.supervisor.supervise import supervise
    from trainer.supervisor.tensorboard_timer import stop_tensorboard

    _log_to_stdout("")
    try:
        if arguments.stop_tensorboard:
            stop_tensorboard(run, connect())
            return 0
        outcome = supervise(run, connect())
        return 0 if outcome is None or outcome.succeeded else EXIT_FAILED_RUN
    except StoppedError as stop:
        logger.warning(f"{stop}; the run continues")
        return 128 + signal.SIGTERM
    except ApiError as error:
        raise ConfigurationError(f"the Kubernetes API refuses what a run needs: {error.status.message}.") from None


def _data(words: Sequence[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    _require("data", ("lance", "PIL"), installation.command("data"))
    from trainer.datasets import commands
    from trainer.datasets.importing import Progress

    arguments = commands.parser().read(words)
    _log_to(logging.StreamHandler(sys.stderr), "")
    progress = Progress()
    try:
        code = _code_of(lambda: commands.run(arguments, progress))
    except SystemExit as end:
        if arguments.command == "import":
            written = (
                "look whether it was written: trainer data versions" if progress.is_committing else "none was written"
            )
            print(f"trainer: stopped before the version was complete; {written}.", file=sys.stderr)
        code = int(str(end.code))
    return _exit_at_once(code)  # Lance's threads may block the end of the interpreter for ever


def _code_of(run: Callable[[], int | None]) -> int:
    """Run a command; return its exit code."""
    try:
        return run() or 0
    except ConfigurationError as error:
        return _fail(error, EXIT_CONFIGURATION)
    except (LostPeersError, StoreError) as error:
        return _fail(error, EXIT_LOST_PEERS)


def _client(command: str, words: Sequence[str]) -> int:
    from trainer.client import commands  # the tasks of a run start without it

    return commands.main(command, words)


def _report(words: Sequence[str]) -> int:
    _require("report", ("tensorflow", "numpy", "tensorboard"), installation.command("tensorflow"))
    from trainer.results import report as run_report

    return run_report.main(words)


def _models(words: Sequence[str]) -> int:
    _require("models", ("tensorflow", "numpy"), installation.command("tensorflow"))
    if "predict" in words[:1]:
        _require("models predict", ("pyarrow", "PIL"), installation.command("data"))
    from trainer.results import models

    return models.main(words)


def _serve(words: Sequence[str]) -> int:
    from trainer.serving import serve

    arguments = serve.read(words)  # --help needs no KServe
    _require("serve", ("kserve", "tensorflow"), installation.for_serving())
    return serve.run(arguments)


def _tensorboard(words: Sequence[str]) -> int:
    _require("tensorboard", ("tensorboard",), installation.command("tensorflow"))
    from trainer.storage import tensorboard

    tensorboard.run(words)
    return 0


def _read(path: Path) -> spec.ClusterFile:
    try:
        return spec.ClusterFile(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8: {error.reason}"
        raise ConfigurationError(
            f"--cluster_file: {path} cannot be read ({reason}): name a JSON file in the form of TF_CONFIG's cluster."
        ) from None


def _train_or_evaluate(context: TaskContext) -> bool:
    """Run a replica or the evaluator; return whether the run is done, so far as a replica knows."""
    if context.cluster and context.cluster.task.role == "evaluator":
        from trainer.training.evaluator import evaluate

        evaluate(context)
        return False
    from trainer.training.train import train

    return train(context)


def _run_task(context: TaskContext) -> int:
    """Run the task of this role; return its exit code.

    Raises:
        CollectiveLostError: the process must restart.
    """
    cluster = context.cluster
    if cluster:
        threads.use_batch_scheduling()
    try:
        if cluster and cluster.task.role == "ps":
            from trainer.training import parameter_server

            parameter_server.serve(context, cluster)
        else:
            from trainer.training import server
            from trainer.training.session_errors import model_errors

            server.create_pools(context.threads)
            with model_errors():
                done = _train_or_evaluate(context)
            if done:
                return 0
    except ConfigurationError as error:
        return _fail_task(error, EXIT_CONFIGURATION)
    except (LostPeersError, StoreError) as error:
        return _fail_task(error, EXIT_LOST_PEERS)
    except DivergedError as error:
        return _fail_task(error, EXIT_DIVERGED)
    except SupersededError as error:
        return _fail_task(error, EXIT_SUPERSEDED)
    except ModelError as error:
        return _fail_task(error, EXIT_ERROR)
    except CollectiveLostError:
        raise
    except Exception as error:
        from trainer.tensorflow.errors import brief

        _report_end(EXIT_ERROR, f"{type(error).__name__}: {brief(error)}")
        traceback.print_exc()
        return EXIT_ERROR
    if context.watchdog.exit_code:
        _report_end(context.watchdog.exit_code, "a signal")
    return context.watchdog.exit_code


def _fail_task(error: Exception, code: int) -> int:
    _report_end(code, str(error))
    return _fail(error, code, has_log_file=bool(os.environ.get(report.VARIABLE)))


def _report_end(code: int, reason: str) -> None:
    """Report the end of a task whose run is not done, before the sentence on stderr, which stays the last line."""
    report.log(logger, f"ends with code {code}", ended={"code": code, "reason": reason})


def _launch(words: Sequence[str]) -> int:
    _require("launch", ("tensorflow", "numpy", "sklearn", "rich"), installation.command("tensorflow"))
    from trainer.launcher import launch

    code = _code_of(lambda: launch.main(words))
    return _exit_at_once(code)  # as for `trainer data`, for a launch on Lance data


def _convert_tfjob(words: Sequence[str]) -> int:
    parser = config.Parser(
        prog="trainer convert-tfjob",
        description="Print a values file with which the chart replaces a Kubeflow TFJob (kubeflow.org/v1).\n"
        "Fields that cannot be converted are listed on standard error, one per line.",
    )
    parser.add_argument("file", metavar="FILE", help="the TFJob, YAML or JSON; - is standard input")
    parser.add_argument(
        "--entrypoint",
        metavar='ROLE="WORD …"',
        action="append",
        default=[],
        help="the entrypoint of the image, for a role (chief, worker, ps, evaluator) without a command; empty if the "
        "image has none; repeatable",
    )
    parser.add_argument(
        "--inspect",
        action="store_true",
        help="read the entrypoint of each other role without a command from its image, with docker, crane or skopeo",
    )
    arguments = parser.read(words)
    programs = parse_entrypoints(arguments.entrypoint)
    origin = "standard input" if arguments.file == "-" else arguments.file
    try:
        content = sys.stdin.buffer.read() if arguments.file == "-" else Path(arguments.file).read_bytes()
        text = content.decode()
    except OSError as error:
        raise ConfigurationError(f"{origin} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{origin} cannot be read (it is not UTF-8: {error.reason}).") from None
    job, others = parse_manifest(text, origin)
    if arguments.inspect:
        images = {role: name for role, name in convert.images_without_command(job).items() if role not in programs}
        inspected = {name: inspect_image.inspect(name) for name in sorted(set(images.values()))}
        programs |= {role: inspected[name] for role, name in images.items()}
    conversion = convert.convert(job, programs, others)
    for note in conversion.notes:
        print(one_line(note), file=sys.stderr)
    print(convert.to_yaml(conversion), end="")
    return 0
