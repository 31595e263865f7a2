"""`trainer launch`: a whole cluster of real processes on this machine.

`trainer.launcher.plan` plans the tasks, `trainer.launcher.forks` starts them, `trainer.launcher.processes` runs them,
`trainer.launcher.display` shows them, and `trainer.launcher.summary` prints the end.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from trainer import config, mode
from trainer.cluster import ports
from trainer.data import mnist
from trainer.errors import ConfigurationError, StoreError
from trainer.launcher.display import make_display
from trainer.launcher.forks import MODULES, Forks
from trainer.launcher.output import OutputClosedError, discard_unwritten, warn
from trainer.launcher.plan import MAX_RESTARTS, Plan, plan_programs, visible_gpus
from trainer.launcher.processes import Process, end_processes, is_permanent, run_processes, start_process
from trainer.launcher.summary import explain_failure, print_resume_command, show_result
from trainer.problem import data_version
from trainer.run_directory.training_directory import TrainingDirectory, new_path
from trainer.storage.object_store import ObjectStore, is_uri

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOCK = ".lock"
KILL_SECONDS = 5.0
"""How long after their grace period terminated tasks are killed."""


class Terminated(BaseException):
    """The launcher received a signal that ends it; `number` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def make_parser() -> config.Parser:
    """The parser of `trainer launch`."""
    parser = config.Parser(
        prog="trainer launch",
        description="Run a whole cluster on this machine: each task is a process with its own TensorFlow server.",
    )
    cluster = parser.add_argument_group("the cluster")
    config.add_tasks(cluster)
    cluster.add_argument(
        "--max_restarts",
        type=int,
        default=MAX_RESTARTS,
        metavar="N",
        help=f"maximum restarts of each task (default: {MAX_RESTARTS})",
    )
    cluster.add_argument("--tensorboard", action="store_true", help="serve TensorBoard until Ctrl-C")
    cluster.add_argument("--json", action="store_true", help="print only the result, as one line of JSON")
    config.add_settings(parser, config.RUN_GROUPS)
    return parser


def main(words: Sequence[str]) -> int:
    """Run `trainer launch` with these arguments; return its exit code.

    Raises:
        ConfigurationError: the arguments or the settings are wrong.
    """
    arguments = make_parser().read(words)
    settings = config.load(arguments, os.environ, continues=True)
    if arguments.ps is None:
        arguments.ps = mode.default_ps(settings.strategy)
    plan = Plan(
        settings=settings,
        ps=arguments.ps,
        workers=arguments.workers,
        chief=arguments.chief,
        evaluator=arguments.evaluator,
        max_restarts=arguments.max_restarts,
        tensorboard=arguments.tensorboard,
        json=arguments.json,
    )
    plan.check()
    if arguments.print_config:
        print(config.to_yaml(settings), end="")
        return 0
    config.check_model(settings.model)
    with ports.reserve(plan.ps + plan.workers + plan.chief) as reserved, tempfile.TemporaryDirectory() as scratch:
        return launch(plan, reserved, Path(scratch))


def _raise_terminated(number: int, _frame: object) -> None:
    for other in SIGNALS:  # a closed terminal may send SIGHUP twice
        signal.signal(other, signal.SIG_IGN)
    raise Terminated(number)


def launch(plan: Plan, reserved: Sequence[int], scratch: Path) -> int:
    """Run the plan to its end, with one of the reserved ports for each server, and with folders of tasks in `scratch`.

    Returns:
        The exit code: 0, that of the task that failed, or 128 and the signal's number.
    """
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores it
            signal.signal(number, _raise_terminated)
    processes: list[Process] = []
    directory: TrainingDirectory | None = None
    lock: IO[str] | None = None
    is_resumable = False
    others: list[subprocess.Popen[bytes]] = []
    forks: Forks | None = None
    try:
        gpus = visible_gpus(plan.settings.num_gpus)
        forks = Forks(*_to_import(plan.settings.model, has_gpus=bool(gpus)))
        plan = _with_data(plan)
        directory = _directory(plan.settings.train_dir)
        try:
            directory.create()
            directory.logs.mkdir(exist_ok=True)
            lock = _lock(directory)
            programs = plan_programs(plan, directory, gpus, reserved, scratch)
            processes += [Process(program, directory.logs, forks.start) for program in programs]
        except OSError as error:
            culprit = error.filename or directory.path
            raise ConfigurationError(f"train_dir: {culprit} cannot be written ({error.strerror}).") from None
        if plan.tensorboard:
            board, address = _start_tensorboard(directory)
            others.append(board)
            warn(f"TensorBoard: {address}")
        with make_display(plan.json, str(directory)) as display:
            failure = run_processes(processes, plan.max_restarts, display)
        if failure:
            failed, code = failure
            explain_failure(failed, code, plan.max_restarts)
            is_resumable = not is_permanent(code)
            return code if code > 0 else 128 - code  # a negative code is a signal, as a shell shows it
        if directory.uri:
            store = ObjectStore(directory.uri, "train_dir")
            store.download("result.json", directory.path / "result.json")
            store.download(config.SETTINGS_FILE, directory.settings)
        show_result(directory, plan, {str(process.task): process.restarts for process in processes})
        if plan.tensorboard:
            forks.close(0)
            warn(f"TensorBoard stays at {address} until Ctrl-C.")
            lock.close()
            board.wait()
        return 0
    except Terminated as terminated:
        is_resumable = True
        warn(f"\n{signal.Signals(terminated.number).name}: ending all tasks")
        return 128 + terminated.number
    except OutputClosedError:
        is_resumable = True
        warn("nobody reads the output any more: ending all tasks")
        return 128 + signal.SIGPIPE
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        handles = [process.handle for process in processes if process.handle]
        end_processes([*handles, *others], plan.settings.grace_seconds + KILL_SECONDS)
        if forks:
            forks.close(plan.settings.grace_seconds)
        for process in processes:
            process.close()
        if directory and is_resumable and not all(process.ended for process in processes):
            _say_how_to_resume(plan, directory)
        if lock:
            lock.close()
        discard_unwritten()


def _to_import(model: str, has_gpus: bool) -> tuple[Sequence[str], Mapping[str, str]]:
    """What the process imports that the tasks are forks of, and its environment.

    With GPUs each task imports by itself: whether CUDA's libraries bear a fork was not tried.
    """
    if has_gpus:
        return (), os.environ
    if model in config.BUILT_IN_MODELS or not _may_use_keras(Path(model)):
        return MODULES, os.environ
    return (*MODULES, "keras"), {**os.environ, "KERAS_BACKEND": "tensorflow"}


def _may_use_keras(model: Path) -> bool:
    """Whether a model's sources name Keras, or are those of a module, wherever it is."""
    sources = [*model.rglob("*.py")] if model.is_dir() else [model] if model.is_file() else []
    return not sources or any("keras" in each.read_text(errors="replace") for each in sources)


def _with_data(plan: Plan) -> Plan:
    """The plan with the version of its data. Files that are absent are downloaded, so that not each process does so."""
    if plan.settings.dataset == "mnist" and not is_uri(plan.settings.data_dir):
        mnist.fetch_absent(Path(plan.settings.data_dir), plan.settings.download)
    version = data_version.fix(plan.settings)
    return replace(plan, settings=config.with_given(plan.settings, data_version=version)) if version else plan


def _directory(given: str | None) -> TrainingDirectory:
    if is_uri(given):  # the chief keeps the run there; the logs are here
        return TrainingDirectory(new_path(), given)
    return TrainingDirectory(Path(given) if given else new_path())


def _say_how_to_resume(plan: Plan, directory: TrainingDirectory) -> None:
    if directory.uri:
        with contextlib.suppress(StoreError):
            ObjectStore(directory.uri, "train_dir").download("checkpoint", directory.path / "checkpoint")
    print_resume_command(plan, directory)


def _lock(directory: TrainingDirectory) -> IO[str]:
    """Open the lock of the directory, and hold it until it is closed, or this process ends.

    Raises:
        ConfigurationError: another launch has locked it.
        OSError: it cannot be opened.
    """
    file = (directory.logs / LOCK).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigurationError(
            f"train_dir: another trainer launch trains in {directory}: end it, or choose another train_dir."
        ) from None
    except OSError:  # some file systems have no locks
        pass
    return file


def _start_tensorboard(directory: TrainingDirectory) -> tuple[subprocess.Popen[bytes], str]:
    with ports.reserve(1) as (port,):  # release it before TensorBoard starts: TensorBoard cannot share a port
        pass
    command = [sys.executable, "-m", "trainer", "tensorboard", "--logdir", str(directory), "--port", str(port)]
    with (directory.logs / "tensorboard.log").open("ab") as log:
        handle = start_process(command, log)
    return handle, f"http://localhost:{port}/"
