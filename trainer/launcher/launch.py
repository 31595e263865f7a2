"""`trainer launch`: a whole cluster of real processes on this machine.

`main` turns arguments into a `Plan`, `launch` runs it: it starts the tasks, follows their logs, starts dead ones again,
and ends them all, whatever happens. What a person sees of it is `trainer.launcher.display`'s business.
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
from trainer.telemetry import result, step_time
from trainer.telemetry.step_time import StepTime
from trainer.training.training_directory import TrainingDirectory, new_path

POLL_SECONDS = 0.1
KILL_SECONDS = 5.0
"""How long after their grace tasks that were told to end are killed."""
LEAVING_SECONDS = 60.0
"""How long the others may take to end after the chief has."""
LAST_LINES = 20
SENTENCE = "trainer: "
"""How a task's last line begins where it says itself why it failed."""
CONFIG = "config.yaml"
"""Beside the logs: the run's settings, with which each of its tasks is started."""


@dataclass(frozen=True)
class Plan:
    """What to launch."""

    settings: Settings
    ps: int
    workers: int
    chief: bool
    evaluator: bool
    max_restarts: int
    tensorboard: bool
    json: bool


class Process:
    """A task, and the process that it is now."""

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
        """Where the time of its steps went, once a replica has said so."""
        self._read = self.log.stat().st_size if self.log.exists() else 0

    def start(self) -> None:
        """Start it (again); its log goes on in the same file."""
        with self.log.open("ab") as log:
            self.handle = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is the launcher's to pass on
                preexec_fn=_die_with_parent,
            )

    def poll(self) -> int | None:
        """The exit code of a process that has exited and is not ended for good; None otherwise."""
        return None if self.handle is None or self.ended else self.handle.poll()

    def terminate(self) -> None:
        """Ask it to end, if it runs."""
        if self.handle is not None and not self.ended:
            self.handle.terminate()

    def new_lines(self) -> list[str]:
        """Whole lines that its log has got since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()


class Terminated(BaseException):
    """SIGTERM or Ctrl-C; carries the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(words: Sequence[str]) -> int:
    """Run `trainer launch` with these arguments; its exit code.

    Raises:
        ConfigurationError: the arguments or the settings are wrong.
    """
    parser = config.Parser(
        prog="trainer launch",
        description="Run a whole cluster on this machine: real TensorFlow servers in processes of their own.",
    )
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument(
        "--ps", type=int, metavar="N", help="parameter servers (default: 1; none with strategy allreduce)"
    )
    cluster.add_argument("--workers", type=int, default=2, metavar="N", help="workers (default: 2)")
    cluster.add_argument("--chief", action="store_true", help="a chief of its own; without it worker 0 is the chief")
    cluster.add_argument("--evaluator", action="store_true", help="a task that examines each checkpoint")
    cluster.add_argument(
        "--max_restarts", type=int, default=3, metavar="N", help="restarts of each task that dies (default: 3)"
    )
    cluster.add_argument("--tensorboard", action="store_true", help="serve TensorBoard meanwhile, until Ctrl-C")
    cluster.add_argument("--json", action="store_true", help="print the result alone, as one line of JSON")
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
    with ports.hold(plan.ps + plan.workers + plan.chief) as held:
        return launch(plan, held)


def _check(arguments: argparse.Namespace, strategy: Strategy) -> None:
    if strategy == "mirrored":
        raise ConfigurationError("strategy: mirrored is one process, and nothing to launch: trainer train runs it.")
    if strategy == "allreduce" and arguments.ps > 0:
        raise ConfigurationError(
            f"--ps: {arguments.ps} was given, but by strategy allreduce the workers hold the parameters themselves; "
            "leave it out, or choose strategy ps."
        )
    for name, least in (
        ("ps", 1 if strategy == "ps" else 0),
        ("workers", 0 if arguments.chief else 1),
        ("max_restarts", 0),
    ):
        if getattr(arguments, name) < least:
            raise ConfigurationError(f"--{name}: {getattr(arguments, name)} was given, but at least {least} is needed.")


def _raise_terminated(number: int, _frame: object) -> None:
    raise Terminated(number)


def launch(plan: Plan, held: Sequence[int]) -> int:
    """Run the plan to its end, with a port for each of its servers.

    Returns:
        The exit code: 0, that of the task that failed, or 128 and the signal's number.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_terminated)
    processes: list[Process] = []
    directory: TrainingDirectory | None = None
    told_to_end = False
    others: list[subprocess.Popen[bytes]] = []
    try:
        gpus = _visible_gpus(plan.settings.num_gpus)
        datasets.fetch_absent(plan.settings.dataset, plan.settings.data_dir, plan.settings.download)
        directory = TrainingDirectory(plan.settings.train_dir or new_path())
        directory.create()
        processes += _plan_processes(plan, directory, gpus, held)
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
        told_to_end = True
        print(f"\n{signal.Signals(terminated.number).name}: ending all tasks", file=sys.stderr)
        return 128 + terminated.number
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        handles = [process.handle for process in processes if process.handle]
        _end(handles + others, plan.settings.grace_seconds + KILL_SECONDS)
        if directory and told_to_end and not all(process.ended for process in processes):
            _show_where_it_goes_on(plan, directory)


def _plan_processes(plan: Plan, directory: TrainingDirectory, gpus: list[str], held: Sequence[int]) -> list[Process]:
    """The tasks' processes, not started yet, each with its TF_CONFIG, one of the ports and its share of the GPUs.

    Raises:
        ConfigurationError: their folder of logs cannot be made.
    """
    # Each task learns who it is from TF_CONFIG, and which GPU is its own from CUDA_VISIBLE_DEVICES.
    shared = {name: getattr(plan.settings, name) for name in config.names(config.RUN_GROUPS)}
    shared |= {"train_dir": directory.path, "num_gpus": None}
    settings_file = directory.logs / CONFIG
    try:
        directory.logs.mkdir(exist_ok=True)
        settings_file.write_text(config.to_yaml(Settings(**shared)), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"train_dir: {directory.logs} cannot be written ({error.strerror}).") from None
    numbers = iter(held)
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
        own |= ports.SHARED
        command = [sys.executable, "-m", "trainer", "train", "--config", str(settings_file)]
        processes.append(Process(task, task == cluster.chief_task, command, environment | own, directory))
    return processes


def _visible_gpus(wanted: int | None) -> list[str]:
    """The GPUs to deal out, as CUDA_VISIBLE_DEVICES names them.

    Raises:
        ConfigurationError: more are wanted than there are.
    """
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        gpus = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    else:
        gpus = [str(index) for index, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]
    if wanted is not None and wanted > len(gpus):
        raise ConfigurationError(f"num_gpus: {wanted} were asked for, but there are {len(gpus)} here.")
    return gpus[:wanted]


def _run(processes: list[Process], max_restarts: int, display: Display) -> tuple[Process, int] | None:
    """Keep the tasks running until all have ended; the one that failed for good, if any, and its exit code."""
    for process in processes:
        process.start()
    chief_ended: float | None = None
    while any(not process.ended for process in processes):
        for process in processes:
            code = process.poll()  # before its lines are read, so that the last one is among them
            for line in process.new_lines():
                if result.parse(line):
                    continue  # its words come from result.json
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
                process.ended = True  # the run is done; this task came too late to take part in its end
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
                    process.terminate()  # one that has just come back finds nobody to train with
        if chief_ended is not None and time.monotonic() - chief_ended > LEAVING_SECONDS:
            for process in processes:
                if not process.ended:
                    display.state(process.task, "did not leave by itself; ended")
            return None
        display.refresh()
        time.sleep(POLL_SECONDS)
    return None


def _is_permanent(code: int) -> bool:
    """Whether trying again would not help, by the exit codes' contract; negative codes are signals."""
    return 0 < code < 128


def _name_of(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _explain_failure(failed: Process, code: int) -> None:
    """Say why a task failed: by its own last sentence, or else by the last lines of its log."""
    lines = failed.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    sentence = lines[-1].removeprefix(SENTENCE) if lines and lines[-1].startswith(SENTENCE) else ""
    if sentence and code > 0:  # a task that was killed has said nothing of it
        print(f"\n{failed.task} failed for good: {sentence} Its log is {failed.log}.", file=sys.stderr)
        return
    print(f"\n{failed.task} failed for good; the last lines of {failed.log}:", file=sys.stderr)
    for line in lines:
        print(f"    {line}", file=sys.stderr)


def _show_result(directory: TrainingDirectory, plan: Plan, splits: Sequence[StepTime]) -> None:
    found = directory.read_result()
    split = step_time.mean(splits) if splits else None
    if plan.json:
        print(json.dumps(found | ({"step_time_breakdown": asdict(split)} if split else {})))
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
{_show_split(split, len(splits)) if plan.settings.step_time_breakdown else ""}
next:
  {_beside_python("tensorboard")} --logdir {directory.path}          # look at the curves
  {_again(plan, directory)} --train_steps {more}   # train on from here
  {_beside_python("trainer")} launch --workers 3 --sync_replicas          # another way to train"""
    )


def _again(plan: Plan, directory: TrainingDirectory) -> str:
    """The command that goes on with this run."""
    roles = f"--ps {plan.ps} --workers {plan.workers}{' --chief' * plan.chief}{' --evaluator' * plan.evaluator}"
    return f"{_beside_python('trainer')} launch --config {directory.logs}/{CONFIG} {roles}"


def _show_where_it_goes_on(plan: Plan, directory: TrainingDirectory) -> None:
    """Say what a run that was told to end has saved, and how to go on with it."""
    step = directory.newest_step()
    saved = "no checkpoint was saved; start again" if step is None else f"saved step {step}; continue"
    print(f"{saved} with: {_again(plan, directory)}", file=sys.stderr)


def _show_split(split: StepTime | None, replicas: int) -> str:
    """The lines that say where the time of a step went."""
    if split is None:
        return "\nno call was traced, as the run was too short: step_time_breakdown needs more train_steps\n"
    parts = "".join(
        f"  {name:12} {milliseconds:7.3f} ms {milliseconds / split.milliseconds:6.1%}\n"
        for name, milliseconds in split.parts.items()
    )
    of = f"mean of {split.steps} traced steps of {replicas} replicas"
    return f"\na step of a replica, {split.milliseconds:.3f} ms, {of}:\n{parts}"


def _beside_python(command: str) -> str:
    """How a person would type this command of the same environment."""
    path = Path(sys.executable).parent / command
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _start_tensorboard(directory: TrainingDirectory) -> tuple[subprocess.Popen[bytes], str]:
    with ports.hold(1) as (port,):  # let go before TensorBoard asks for it, as that cannot share
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
    """Let the kernel end this child if the launcher is killed and cannot (Linux only; elsewhere nothing happens)."""
    with contextlib.suppress(AttributeError, OSError):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _end(handles: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """End these processes: all are asked, and after so many seconds killed."""
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
