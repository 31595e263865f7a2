"""`trainer launch`: a whole cluster of real processes on this machine.

`main` parses the arguments to a `Plan`. `launch` runs it: it starts the tasks, follows their logs, restarts failed
ones, and always ends all of them. `trainer.launcher.display` shows the run.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer import config
from trainer.cluster import ports
from trainer.cluster.spec import Cluster, Strategy, Task
from trainer.config import Settings
from trainer.data import datasets
from trainer.errors import ConfigurationError
from trainer.launcher.display import Display, make_display
from trainer.telemetry import report, result, step_time
from trainer.telemetry.step_time import StepTime
from trainer.training.training_directory import TrainingDirectory, new_path

POLL_SECONDS = 0.1
KILL_SECONDS = 5.0
"""How long after their grace period terminated tasks are killed."""
LEAVING_SECONDS = 60.0
"""How long the other tasks may take to end after the chief."""
LAST_LINES = 20
SENTENCE = "trainer: "
"""The prefix of a task's last line if it names the reason of a failure."""
CONFIG = "config.yaml"
"""The file beside the logs with the settings of all tasks."""


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


class Process:
    """A task and its current process."""

    def __init__(
        self,
        task: Task,
        is_chief: bool,
        command: list[str],
        environment: dict[str, str],
        directory: TrainingDirectory,
    ) -> None:
        self.task, self.is_chief = task, is_chief
        self._command, self._environment = command, environment
        self.log = directory.logs / f"{task.slug}.log"
        self.handle: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self.ended = False
        self.step_time_breakdown: StepTime | None = None
        """The step time that a replica has logged, if any."""
        self._read = self.log.stat().st_size if self.log.exists() else 0

    def start(self) -> None:
        """Start or restart the process. It appends to the same log file."""
        with self.log.open("ab") as log:
            self.handle = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the launcher handles Ctrl-C and terminates the tasks
                preexec_fn=_die_with_parent,
            )

    def poll(self) -> int | None:
        """Return the exit code of a process that has exited and is not marked as ended; None otherwise."""
        return None if self.handle is None or self.ended else self.handle.poll()

    def terminate(self) -> None:
        """Send SIGTERM if the process runs."""
        if self.handle is not None and not self.ended:
            self.handle.terminate()

    def new_lines(self) -> list[str]:
        """Return the complete lines in the log since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()


class Terminated(BaseException):
    """The launcher received SIGTERM or SIGINT; `number` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(words: Sequence[str]) -> int:
    """Run `trainer launch` with these arguments; return its exit code.

    Raises:
        ConfigurationError: the arguments or the settings are wrong.
    """
    parser = config.Parser(
        prog="trainer launch",
        description="Run a whole cluster on this machine: each task is a process with its own TensorFlow server.",
    )
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument(
        "--ps", type=int, metavar="N", help="parameter servers (default: 1; none with strategy allreduce)"
    )
    cluster.add_argument("--workers", type=int, default=2, metavar="N", help="workers (default: 2)")
    cluster.add_argument("--chief", action="store_true", help="add a chief; without it worker 0 is the chief")
    cluster.add_argument("--evaluator", action="store_true", help="add a task that evaluates each checkpoint")
    cluster.add_argument(
        "--max_restarts", type=int, default=3, metavar="N", help="maximum restarts of each task (default: 3)"
    )
    cluster.add_argument("--tensorboard", action="store_true", help="serve TensorBoard until Ctrl-C")
    cluster.add_argument("--json", action="store_true", help="print only the result, as one line of JSON")
    config.add_settings(parser, config.RUN_GROUPS)
    arguments = parser.read(words)
    settings = config.load(arguments, os.environ)
    if arguments.ps is None:
        arguments.ps = 1 if settings.strategy == "ps" else 0
    _check(arguments, settings.strategy)
    if arguments.print_config:
        print(config.to_yaml(settings), end="")
        return 0
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
    with ports.reserve(plan.ps + plan.workers + plan.chief) as reserved:
        return launch(plan, reserved)


def _check(arguments: argparse.Namespace, strategy: Strategy) -> None:
    if strategy == "mirrored":
        raise ConfigurationError("strategy: mirrored trains in a single process: run it with trainer train.")
    if strategy == "allreduce" and arguments.ps > 0:
        raise ConfigurationError(
            f"--ps: {arguments.ps} was given, but with strategy allreduce the workers hold the parameters; "
            "remove it, or choose strategy ps."
        )
    for name, least in (
        ("ps", 1 if strategy == "ps" else 0),
        ("workers", 0 if arguments.chief else 1),
        ("max_restarts", 0),
    ):
        if getattr(arguments, name) < least:
            raise ConfigurationError(
                f"--{name}: {getattr(arguments, name)} was given, but at least {least} is needed; raise it."
            )


def _raise_terminated(number: int, _frame: object) -> None:
    raise Terminated(number)


def launch(plan: Plan, reserved: Sequence[int]) -> int:
    """Run the plan to its end, with one of the reserved ports for each server.

    Returns:
        The exit code: 0, that of the task that failed, or 128 and the signal's number.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_terminated)
    processes: list[Process] = []
    directory: TrainingDirectory | None = None
    terminated_by_signal = False
    others: list[subprocess.Popen[bytes]] = []
    try:
        gpus = _visible_gpus(plan.settings.num_gpus)
        datasets.fetch_absent(plan.settings.dataset, plan.settings.data_dir, plan.settings.download)
        directory = TrainingDirectory(plan.settings.train_dir or new_path())
        directory.create()
        processes += _plan_processes(plan, directory, gpus, reserved)
        if plan.tensorboard:
            board, address = _start_tensorboard(directory)
            others.append(board)
            print(f"TensorBoard: {address}", file=sys.stderr)
        with make_display(plan.json, directory.path) as display:
            failure = _run(processes, plan.max_restarts, display)
        if failure:
            failed, code = failure
            _explain_failure(failed, code)
            return code if code > 0 else 128 - code  # a negative code is a signal, as a shell shows it
        _show_result(
            directory, plan, [process.step_time_breakdown for process in processes if process.step_time_breakdown]
        )
        if plan.tensorboard:
            print(f"TensorBoard stays at {address} until Ctrl-C.", file=sys.stderr)
            board.wait()
        return 0
    except Terminated as terminated:
        terminated_by_signal = True
        print(f"\n{signal.Signals(terminated.number).name}: ending all tasks", file=sys.stderr)
        return 128 + terminated.number
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        handles = [process.handle for process in processes if process.handle]
        _end(handles + others, plan.settings.grace_seconds + KILL_SECONDS)
        if directory and terminated_by_signal and not all(process.ended for process in processes):
            _print_resume_command(plan, directory)


def _plan_processes(
    plan: Plan, directory: TrainingDirectory, gpus: list[str], reserved: Sequence[int]
) -> list[Process]:
    """Return the tasks' processes, not started yet, each with its TF_CONFIG, its port and its GPU.

    Raises:
        ConfigurationError: the folder of the logs cannot be created.
    """
    # TF_CONFIG tells each task its role and index, CUDA_VISIBLE_DEVICES its GPU.
    shared = {name: getattr(plan.settings, name) for name in config.names(config.RUN_GROUPS)}
    shared |= {"train_dir": directory.path, "num_gpus": None}
    settings_file = directory.logs / CONFIG
    try:
        directory.logs.mkdir(exist_ok=True)
        settings_file.write_text(config.to_yaml(Settings(**shared)), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"train_dir: {directory.logs} cannot be written ({error.strerror}).") from None
    numbers = iter(reserved)
    ps, worker, chief = (
        tuple(f"localhost:{next(numbers)}" for _ in range(count)) for count in (plan.ps, plan.workers, int(plan.chief))
    )
    tasks = [Task("ps", index) for index in range(plan.ps)]
    tasks += [Task("chief", 0)] if plan.chief else []
    tasks += [Task("worker", index) for index in range(plan.workers)]
    tasks += [Task("evaluator", 0)] if plan.evaluator else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith(config.ENVIRONMENT_PREFIX)}
    processes = []
    for task in tasks:
        cluster = Cluster(task, chief, worker, ps)
        gpu = gpus[cluster.replica_index % len(gpus)] if gpus and task in cluster.replicas else ""
        own = {"TF_CONFIG": cluster.to_tf_config(), "CUDA_VISIBLE_DEVICES": gpu, "PYTHONUNBUFFERED": "1"}
        own |= ports.SHARING_ENVIRONMENT
        command = [sys.executable, "-m", "trainer", "train", "--config", str(settings_file)]
        processes.append(Process(task, task == cluster.chief_task, command, environment | own, directory))
    return processes


def _visible_gpus(wanted: int | None) -> list[str]:
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


def _run(processes: list[Process], max_restarts: int, display: Display) -> tuple[Process, int] | None:
    """Run the tasks until all have ended; return the task that failed permanently, if any, and its exit code."""
    for process in processes:
        process.start()
    chief_ended: float | None = None
    while any(not process.ended for process in processes):
        for process in processes:
            code = process.poll()  # poll before reading the log, so that its last line is included
            for line in process.new_lines():
                display.line(process.task, line)
                process.step_time_breakdown = step_time.parse(line) or process.step_time_breakdown
            if code is None:
                continue
            if code == 0:
                process.ended = True
                display.state(process.task, "done")
                if process.is_chief:
                    chief_ended = time.monotonic()
            elif chief_ended is not None and process.task.role != "evaluator":
                process.ended = True  # the run is done; this task restarted too late to take part in its end
                display.state(process.task, "done")
            elif _is_permanent(code) or process.restarts >= max_restarts:
                display.state(process.task, f"failed ({_name_of(code)})")
                return process, code
            else:
                process.restarts += 1
                display.state(process.task, f"starting again ({_name_of(code)})")
                process.start()
        servers = [process for process in processes if process.task.role == "ps"]
        if chief_ended is not None and servers and all(server.ended for server in servers):
            for process in processes:
                if process.task.role == "worker":
                    process.terminate()  # a worker that has just restarted would wait for parameter servers
        if chief_ended is not None and time.monotonic() - chief_ended > LEAVING_SECONDS:
            for process in processes:
                if not process.ended:
                    display.state(process.task, "did not exit in time; terminated")
            return None
        display.refresh()
        time.sleep(POLL_SECONDS)
    return None


def _is_permanent(code: int) -> bool:
    """Return whether a retry would not help. See `trainer.errors` for the exit codes; negative codes are signals."""
    return 0 < code < 128


def _name_of(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _explain_failure(failed: Process, code: int) -> None:
    """Print why a task failed: its error sentence, or the last lines of its log."""
    text = failed.log.read_text(encoding="utf-8", errors="replace")
    lines = [report.split(line)[0] for line in text.splitlines()[-LAST_LINES:]]
    sentence = lines[-1].removeprefix(SENTENCE) if lines and lines[-1].startswith(SENTENCE) else ""
    if sentence and code > 0:  # a killed task has not logged a reason
        print(f"\n{failed.task} failed for good: {sentence} Its log is {failed.log}.", file=sys.stderr)
        return
    print(f"\n{failed.task} failed for good; the last lines of {failed.log}:", file=sys.stderr)
    for line in lines:
        print(f"    {line}", file=sys.stderr)


def _show_result(directory: TrainingDirectory, plan: Plan, step_times: Sequence[StepTime]) -> None:
    found = directory.read_result()
    step_time_mean = step_time.mean(step_times) if step_times else None
    if plan.json:
        print(json.dumps(found | ({"step_time_breakdown": asdict(step_time_mean)} if step_time_mean else {})))
        return
    more = 5 * plan.settings.train_steps
    print(
        f"""
{result.describe(found)} after {found["global_step"]} global steps in {found["seconds"]:.1f} s \
({found["steps_per_second"]:.0f} steps/s), {found["mode"]}, {found["workers"]} replicas, {found["ps"]} ps

  result       {directory.path}/result.json
  checkpoint   {found["checkpoint"]}
  model        {found["export"]} (SavedModel)
  summaries    {directory.train_summaries}, {directory.test_summaries}
  logs         {directory.logs}
{_format_step_time(step_time_mean, len(step_times)) if plan.settings.step_time_breakdown else ""}
next:
  {_command_path("tensorboard")} --logdir {directory.path}          # show the curves
  {_resume_command(plan, directory)} --train_steps {more}   # train on from here
  {_command_path("trainer")} launch --workers 3 --sync_replicas          # another way to train"""
    )


def _resume_command(plan: Plan, directory: TrainingDirectory) -> str:
    """Return the command that continues this run."""
    roles = f"--ps {plan.ps} --workers {plan.workers}{' --chief' * plan.chief}{' --evaluator' * plan.evaluator}"
    return f"{_command_path('trainer')} launch --config {directory.logs}/{CONFIG} {roles}"


def _print_resume_command(plan: Plan, directory: TrainingDirectory) -> None:
    """Print what a terminated run has saved, and the command that continues it."""
    step = directory.newest_step()
    saved = "no checkpoint was saved; start again" if step is None else f"saved step {step}; continue"
    print(f"{saved} with: {_resume_command(plan, directory)}", file=sys.stderr)


def _format_step_time(step_time_mean: StepTime | None, replicas: int) -> str:
    """Return the step time breakdown as lines."""
    if step_time_mean is None:
        return "\nthe run was too short for a trace: step_time_breakdown needs more train_steps\n"
    parts = "".join(
        f"  {name:12} {milliseconds:7.3f} ms {milliseconds / step_time_mean.milliseconds:6.1%}\n"
        for name, milliseconds in step_time_mean.parts.items()
    )
    of = f"mean of {step_time_mean.steps} traced steps of {replicas} replicas"
    return f"\na step of a replica, {step_time_mean.milliseconds:.3f} ms, {of}:\n{parts}"


def _command_path(command: str) -> str:
    """Return the path of a command of this Python environment, relative if it is below the working directory."""
    path = Path(sys.executable).parent / command
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _start_tensorboard(directory: TrainingDirectory) -> tuple[subprocess.Popen[bytes], str]:
    with ports.reserve(1) as (port,):  # release it before TensorBoard starts: TensorBoard cannot share a port
        pass
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(directory.path), "--port", str(port)]
    with (directory.logs / "tensorboard.log").open("ab") as log:
        handle = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    return handle, f"http://localhost:{port}/"


def _die_with_parent() -> None:
    """Have the kernel terminate this child when the launcher dies. Linux only; elsewhere this does nothing."""
    with contextlib.suppress(AttributeError, OSError):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _end(handles: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Terminate these processes, and kill those that still run after `seconds`."""
    for handle in handles:
        if handle.poll() is None:
            handle.terminate()
    deadline = time.monotonic() + seconds
    for handle in handles:
        try:
            handle.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            handle.kill()
            handle.wait()
