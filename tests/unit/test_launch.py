"""The launcher's parts; whole launches are in tests/processes."""

import argparse
import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest
import yaml

from trainer import config
from trainer.cluster.spec import ClassicFlags, Task, resolve
from trainer.config import Settings
from trainer.errors import AGAIN, EXIT_LOST_PEERS, ConfigurationError, LostPeersError
from trainer.launcher import log_volume
from trainer.launcher.display import Display
from trainer.launcher.log_volume import GOOD_PROBES, LogVolume
from trainer.launcher.plan import Plan, TaskProgram, plan_programs, visible_gpus
from trainer.launcher.processes import FIRST_PAUSE_SECONDS, Process, end_processes, run_processes
from trainer.launcher.summary import explain_failure
from trainer.mode import Strategy
from trainer.run_directory.training_directory import TrainingDirectory


@pytest.fixture
def directory(tmp_path: Path) -> TrainingDirectory:
    found = TrainingDirectory(tmp_path)
    found.logs.mkdir()
    return found


@pytest.fixture
def process(directory: TrainingDirectory) -> Iterator[Callable[..., Process]]:
    """Returns the process, not started yet, of a task that runs a Python program."""
    with contextlib.ExitStack() as made:

        def make(program: str, task: Task = Task("worker", 1), is_chief: bool = False) -> Process:  # noqa: B008 - frozen
            def start(_: TaskProgram, output: IO[bytes], began: float) -> subprocess.Popen[bytes]:
                return subprocess.Popen([sys.executable, "-c", program], stdout=output, stderr=output)

            planned = TaskProgram(task, is_chief, [], {AGAIN: str(directory.path / "again")})
            return made.enter_context(contextlib.closing(Process(planned, directory.logs, start)))

        yield make


class Recorder(Display):
    """Records the calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.states: list[str] = []

    def line(self, task: Task, line: str) -> None:
        self.lines.append(line)

    def state(self, task: Task, state: str) -> None:
        self.states.append(f"{task}: {state}")


PORTS = range(2222, 2232)


def plan(**changes: object) -> Plan:
    values: dict[str, object] = {
        "settings": Settings(),
        "ps": 1,
        "workers": 2,
        "chief": False,
        "evaluator": False,
        "max_restarts": 3,
        "tensorboard": False,
        "json": False,
    }
    return Plan(**{**values, **changes})  # type: ignore[arg-type]


def programs_of(made: Plan, directory: TrainingDirectory, gpus: Sequence[str] = ()) -> list[TaskProgram]:
    return plan_programs(made, directory, list(gpus), PORTS, Path(tempfile.mkdtemp(dir=directory.path)))


def test_each_task_of_a_plan_gets_its_own_tf_config(directory: TrainingDirectory) -> None:
    programs = programs_of(plan(ps=2, chief=True, evaluator=True), directory)
    clusters = []
    for each in programs:
        found, _ = resolve(each.environment["TF_CONFIG"], ClassicFlags())
        assert found
        assert found.task == each.task
        assert each.is_chief == found.is_chief
        clusters.append(json.dumps(found.spec))
    assert [str(each.task) for each in programs] == [
        *("ps 0", "ps 1", "chief 0", "worker 0", "worker 1", "evaluator 0")
    ]
    assert len(set(clusters)) == 1


def test_task_specific_settings_are_not_shared(directory: TrainingDirectory) -> None:
    own = Settings(metrics_port=9100, cluster_file=Path("cluster.json"))
    programs_of(plan(settings=own), directory)
    handed = yaml.safe_load((directory.logs / "config.yaml").read_text())
    assert (handed["metrics_port"], handed["cluster_file"]) == (None, None)


def test_gpus_are_assigned_to_replicas_and_never_to_parameter_servers(directory: TrainingDirectory) -> None:
    programs = programs_of(plan(workers=3, evaluator=True), directory, ["4", "7"])
    shown = {str(each.task): each.environment["CUDA_VISIBLE_DEVICES"] for each in programs}
    assert shown == {"ps 0": "", "worker 0": "4", "worker 1": "7", "worker 2": "4", "evaluator 0": ""}


def test_replicas_share_more_gpus_than_there_are_replicas(directory: TrainingDirectory) -> None:
    programs = programs_of(plan(workers=2), directory, [*"01234"])
    shown = {str(each.task): each.environment["CUDA_VISIBLE_DEVICES"] for each in programs}
    assert shown == {"ps 0": "", "worker 0": "0,1", "worker 1": "2,3"}


def test_all_tasks_know_the_gpus_of_a_replica_on_which_the_steps_of_an_epoch_depend(
    directory: TrainingDirectory,
) -> None:
    for gpus, expected in ((["0", "1", "2", "3"], 2), (["0", "1"], None), ([], None)):
        programs_of(plan(settings=Settings(num_gpus=len(gpus), given=frozenset(["num_gpus"]))), directory, gpus)
        handed = config.load(argparse.Namespace(config=directory.logs / "config.yaml"), {})
        assert handed.num_gpus == expected


@pytest.mark.parametrize(("wanted", "expected"), [(None, ["4", "7"]), (0, []), (1, ["4"]), (2, ["4", "7"])])
def test_num_gpus_limits_the_gpus(wanted: int | None, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert visible_gpus(wanted) == expected


def test_more_gpus_than_are_visible_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigurationError, match="num_gpus=1, but 0 are visible"):
        visible_gpus(1)


@pytest.mark.parametrize(
    ("strategy", "ps", "workers", "chief", "max_restarts", "named"),
    [
        ("ps", 0, 2, False, 0, "--ps"),
        ("ps", 0, 1, True, 0, "--ps"),
        ("ps", 1, 0, False, 0, "--workers"),
        ("ps", 1, -1, True, 0, "--workers"),
        ("ps", 1, 1, False, -1, "--max"),
        ("allreduce", 1, 2, False, 0, "--ps: 1 ps, but with strategy allreduce"),
        ("allreduce", -1, 2, False, 0, "--ps: -1"),
        ("allreduce", 0, 0, False, 0, "--workers"),
    ],
)
def test_a_cluster_needs_the_roles_of_its_strategy(
    strategy: Strategy, ps: int, workers: int, chief: bool, max_restarts: int, named: str
) -> None:
    settings = Settings(strategy=strategy)
    with pytest.raises(ConfigurationError, match=named):
        plan(settings=settings, ps=ps, workers=workers, chief=chief, max_restarts=max_restarts).check()


def test_a_chief_can_train_without_workers() -> None:
    plan(workers=0, chief=True).check()


def test_only_complete_log_lines_are_read_and_each_once(process: Callable[..., Process]) -> None:
    made = process("")
    for written, read in ((b"one\ntw", ["one"]), (b"o\nthr", ["two"]), ("é".encode()[:1], []), (b"\n", ["thr�"])):
        with made.log.open("ab") as log:
            log.write(written)
        assert made.new_lines() == read


def test_the_log_of_an_earlier_run_is_skipped(process: Callable[..., Process], directory: TrainingDirectory) -> None:
    (directory.logs / "worker-1.log").write_text("earlier\n")
    made = process("print('now')")
    made.start()
    assert made.handle
    made.handle.wait(60)
    assert made.new_lines() == ["now"]


def test_a_run_ends_when_all_tasks_succeed(process: Callable[..., Process]) -> None:
    display = Recorder()
    tasks = [process("print('hello')", Task("worker", 0), True), process("", Task("ps", 0))]
    assert run_processes(tasks, 0, display) is None
    assert "hello" in display.lines
    assert sorted(display.states) == ["ps 0: done", "worker 0: done"]


def test_the_last_lines_of_a_task_are_shown_too(process: Callable[..., Process]) -> None:
    display = Recorder()
    run_processes([process("print('first'); print('last')", Task("worker", 0), True)], 0, display)
    assert display.lines == ["first", "last"]


def test_a_task_killed_by_a_signal_is_restarted(process: Callable[..., Process], tmp_path: Path) -> None:
    program = f"""
import os, pathlib, signal
tried = pathlib.Path({str(tmp_path / "tried")!r})
if not tried.exists():
    tried.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    display = Recorder()
    assert run_processes([process(program)], 1, display) is None
    assert display.states == ["worker 1: starting again (SIGKILL), restart 1 of 1", "worker 1: done"]


def test_a_task_that_asks_to_be_started_again_has_no_restart(process: Callable[..., Process], tmp_path: Path) -> None:
    program = f"""
import pathlib, sys
folder = pathlib.Path({str(tmp_path)!r})
for name in ("first", "second"):
    if not (folder / name).exists():
        (folder / name).touch()
        if name == "first":
            (folder / "again").touch()
        sys.exit({EXIT_LOST_PEERS})
"""
    display = Recorder()
    made = process(program)
    assert run_processes([made], 1, display) is None
    assert (made.restarts, display.states) == (
        1,
        ["worker 1: starting again (exit code 138), restart 1 of 1", "worker 1: done"],
    )


def test_a_task_for_which_there_is_no_room_is_named(directory: TrainingDirectory) -> None:
    def start(_: TaskProgram, output: IO[bytes], began: float) -> subprocess.Popen[bytes]:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with (
        contextlib.closing(Process(TaskProgram(Task("worker", 1), False, [], {}), directory.logs, start)) as made,
        pytest.raises(
            LostPeersError, match=r"worker 1: no process can be started \(Resource temporarily unavailable\)"
        ),
    ):
        run_processes([made], 1, Recorder())


def test_a_task_is_restarted_at_most_max_restarts_times(process: Callable[..., Process]) -> None:
    display = Recorder()
    made = process("import sys; sys.exit(138)")
    assert run_processes([made], 2, display) == (made, 138)
    assert display.states == [
        "worker 1: starting again (exit code 138), restart 1 of 2",
        "worker 1: starting again (exit code 138), restart 2 of 2",
        "worker 1: failed (exit code 138)",
    ]


def test_a_task_that_lives_shortly_starts_again_after_a_pause_that_doubles(
    process: Callable[..., Process], tmp_path: Path
) -> None:
    times = tmp_path / "times"
    made = process(f"import sys, time; print(time.time(), file=open({str(times)!r}, 'a')); sys.exit(138)")
    run_processes([made], 2, Recorder())
    first, second, third = map(float, times.read_text().split())
    assert second - first >= FIRST_PAUSE_SECONDS
    assert third - second >= 2 * FIRST_PAUSE_SECONDS


@pytest.mark.parametrize("code", [1, 2, 127])
def test_a_permanent_failure_is_not_retried(process: Callable[..., Process], code: int) -> None:
    display = Recorder()
    made = process(f"import sys; sys.exit({code})")
    assert run_processes([made], 3, display) == (made, code)
    assert display.states == [f"worker 1: failed (exit code {code})"]


@pytest.mark.parametrize(
    ("code", "log", "explanation"),
    [
        (1, "before\ntrainer: what failed.\n", "worker 1 failed for good: what failed. Its log is {log}."),
        (2, "trainer: what is wrong.\n", "worker 1 failed for good: what is wrong. Its log is {log}."),
        (1, "trainer: what failed.\nafter\n", "worker 1 failed for good; the last lines of {log}:"),
        (-9, "trainer: what failed.\n", "worker 1 failed for good. Its log is {log}."),
        (-11, "trainer: what failed.\n", "worker 1 failed for good; the last lines of {log}:"),
        (1, "", "worker 1 failed for good; the last lines of {log}:"),
    ],
)
def test_the_error_sentence_of_a_failed_task_is_quoted(
    process: Callable[..., Process], capsys: pytest.CaptureFixture[str], code: int, log: str, explanation: str
) -> None:
    made = process("")
    made.log.write_text(log)
    explain_failure(made, code, 3)
    first, *others = capsys.readouterr().err.strip().splitlines()
    assert first == explanation.format(log=made.log)
    assert others == ([f"    {line}" for line in log.splitlines()] if first.endswith(":") else [])


def test_a_failure_after_all_restarts_says_so(
    process: Callable[..., Process], capsys: pytest.CaptureFixture[str]
) -> None:
    made = process("import os; os.kill(os.getpid(), 9)")
    assert run_processes([made], 1, Recorder()) == (made, -9)
    explain_failure(made, -9, 1)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "worker 1 was restarted once and has ended again (SIGKILL): find out what ends it, such as a lack of memory, "
        "or raise --max_restarts (1).",
        "",
        f"worker 1 failed for good. Its log is {made.log}.",
    ]


def test_a_task_that_waits_for_its_restart_ends_with_the_chief(process: Callable[..., Process]) -> None:
    display = Recorder()
    chief = process("import time; time.sleep(1)", Task("worker", 0), True)
    assert run_processes([chief, process("import sys; sys.exit(138)")], 9, display) is None
    assert sorted(display.states[-2:]) == ["worker 0: done", "worker 1: done"]


def test_tasks_that_ignore_sigterm_are_killed() -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100)"
    gone = subprocess.Popen(["true"])
    gone.wait(60)
    polite = subprocess.Popen(["sleep", "100"])
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout
        stubborn.stdout.readline()
        end_processes([stubborn, polite, gone], 0.5)
    assert (stubborn.returncode, polite.returncode, gone.returncode) == (-9, -15, 0)


def test_a_task_dies_with_its_launcher(tmp_path: Path) -> None:
    launcher = """
import os, signal, subprocess, sys
from trainer.launcher.processes import start_process
child = start_process(["sleep", "100"], subprocess.DEVNULL)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", launcher], capture_output=True, text=True, check=False, timeout=60)
    status = Path(f"/proc/{int(done.stdout)}/status")
    deadline = time.monotonic() + 30
    while status.exists() and "(zombie)" not in status.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_logs_that_cannot_be_written_are_named_once_until_there_is_room_for_a_while(
    directory: TrainingDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_volume, "INTERVAL_SECONDS", 0.0)
    volume = LogVolume(directory.logs)

    def check(exists: bool, times: int) -> str:
        directory.logs.mkdir(exist_ok=True) if exists else directory.logs.rmdir()
        for _ in range(times):
            volume.check()
        return capsys.readouterr().err

    failed = f"{directory.logs} cannot be written (No such file or directory): training goes on, but"
    assert check(True, GOOD_PROBES) == ""
    assert check(False, 1).startswith(failed)
    for _ in range(3):  # as a checkpoint that does not fit takes the room and frees it
        assert check(True, GOOD_PROBES - 1) == ""
        assert check(False, 1) == ""
    assert check(True, GOOD_PROBES) == f"{directory.logs} can be written again\n"
    assert check(True, GOOD_PROBES) == ""
    assert check(False, 1).startswith(failed)
