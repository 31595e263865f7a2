"""The scripts task.sh and ready.sh, as real processes of each shell that an image may have as `sh`."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chart.chart import CHART, render
from trainer.cluster.connections import CHANNEL_OPTIONS, VARIABLE
from trainer.telemetry.report import split

TASK, READY = CHART / "files/task.sh", CHART / "files/ready.sh"
KILLS_ITSELF = "kill -9 $$"
SAVES_ON_SIGTERM = 'trap "sleep 0.3; echo saved; exit 7" TERM; echo runs; while :; do sleep 0.1; done'
"""A program that needs 0.3 s after SIGTERM to save, and then exits with code 7."""

Start = Callable[..., "subprocess.Popen[str]"]
Ready = Callable[..., tuple[int, str]]


@pytest.fixture(params=["dash", "bash", "busybox"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    """A shell that some images have as `sh`."""
    if not (path := shutil.which(request.param)):
        pytest.skip(f"{request.param} is not on PATH")
    return [path, "sh"] if request.param == "busybox" else [path]


@pytest.fixture
def start(shell: list[str], tmp_path: Path) -> Iterator[Start]:
    """Starts task.sh with a shell program, as the kubelet does; each call is a container of the same pod."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, policy: str = "ExitCode", **more: str) -> "subprocess.Popen[str]":
        environment = os.environ | {"TASK_DIR": str(tmp_path), "TASK_EXITS": exits_of(policy), "TASK_POD": "mnist-ps-0"}
        environment |= more
        words = [*shell, str(TASK), "sh", "-c", program]
        process = subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell cannot trap a signal that was ignored at its start. Background jobs of a script ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def exits_of(policy: str) -> str:
    """What the chart renders for the exit codes with this restart policy."""
    found = render({"supervisor.enabled": False, "ps.restartPolicy": policy}).environment("ps")["TASK_EXITS"]
    assert isinstance(found, str)
    return found


def marker(folder: Path) -> str | None:
    file = folder / "done"
    return file.read_text().strip() if file.exists() else None


@pytest.mark.parametrize(
    ("policy", "parked_codes"),
    [("Never", {0, 1, 127, 128, 137}), ("OnFailure", {0}), ("ExitCode", {0, 1, 127}), ("Always", set())],
)
@pytest.mark.parametrize(
    ("program", "code"), [("exit 0", 0), ("exit 1", 1), ("exit 127", 127), ("exit 128", 128), (KILLS_ITSELF, 137)]
)
def test_the_exit_code_is_kept_and_the_restart_policy_decides_whether_the_task_is_parked(
    start: Start, tmp_path: Path, policy: str, parked_codes: set[int], program: str, code: int
) -> None:
    assert start(program, policy).wait(10) == code
    assert marker(tmp_path) == (str(code) if code in parked_codes else None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ",".join(f"{name}={value}" for name, value in CHANNEL_OPTIONS.items())),
        ({VARIABLE: "grpc.x=1"}, "grpc.x=1"),
        ({VARIABLE: ""}, ""),
    ],
)
def test_any_program_has_the_channel_options_of_the_trainer_unless_it_has_its_own(
    start: Start, given: dict[str, str], expected: str
) -> None:
    assert start(f'echo "${VARIABLE}"', **given).communicate(timeout=10)[0] == f"{expected}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_parked_task_sleeps_and_exits_promptly_on_a_signal(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    assert start("exit 3", "Never").wait(10) == 3
    parked = start("echo runs again", "Never")
    assert parked.stdout
    line = parked.stdout.readline()
    sentence, report = split(line)
    assert sentence == "task: ended with code 3 and is parked; its log: kubectl logs --previous mnist-ps-0"
    assert report == {"parked": {"exit_code": 3}}
    with pytest.raises(subprocess.TimeoutExpired):
        parked.wait(0.3)
    signalled = time.monotonic()
    parked.send_signal(number)
    assert parked.wait(10) == 3
    assert time.monotonic() - signalled < 2
    assert marker(tmp_path) == "3"


@pytest.mark.parametrize(("policy", "expected_marker"), [("ExitCode", "7"), ("Always", None)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_forwarded_as_sigterm_and_the_exit_code_is_kept(
    start: Start, tmp_path: Path, policy: str, expected_marker: str | None, number: signal.Signals
) -> None:
    process = start(SAVES_ON_SIGTERM, policy)
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=10)
    assert output == "saved\n"
    assert process.returncode == 7
    assert marker(tmp_path) == expected_marker


def test_repeated_signals_do_not_prevent_saving(start: Start) -> None:
    process = start(SAVES_ON_SIGTERM)
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    output, _ = process.communicate(timeout=10)
    assert "saved" in output
    assert process.returncode == 7


def test_a_program_without_a_signal_handler_ends_with_143_and_is_not_parked(start: Start, tmp_path: Path) -> None:
    process = start("echo runs; exec sleep 60")
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
    assert marker(tmp_path) is None


def test_task_restarts_counts_the_restarts(start: Start) -> None:
    outputs = [start("echo $TASK_REPORTS $TASK_RESTARTS; exit 200").communicate(timeout=10)[0] for _ in range(3)]
    assert outputs == ["yes 0\n", "yes 1\n", "yes 2\n"]


def test_arguments_are_passed_unchanged(shell: list[str], tmp_path: Path) -> None:
    words = ["a b", "", "*", "$HOME", "'"]
    done = subprocess.run(
        [*shell, TASK, "printf", "%s|", *words],
        env=os.environ | {"TASK_DIR": str(tmp_path), "TASK_EXITS": exits_of("Never")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "a b||*|$HOME|'|"


@pytest.fixture
def ready(shell: list[str], tmp_path: Path) -> Ready:
    """Runs ready.sh for a port; returns its exit code and its output."""

    def probe(*ports: int) -> tuple[int, str]:
        environment = os.environ | {"TASK_DIR": str(tmp_path)}
        done = subprocess.run([*shell, READY, *map(str, ports)], env=environment, capture_output=True, text=True)
        assert done.stderr == ""
        return done.returncode, done.stdout.strip()

    return probe


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")],  # noqa: S104
)
def test_a_task_is_ready_when_its_port_is_open(ready: Ready, family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError as error:
            pytest.skip(f"this machine has no {family.name}: {error}")
        port = listener.getsockname()[1]
        assert ready(port) == (1, f"nothing listens on port {port}"), "the socket is bound, but does not listen yet"
        listener.listen()
        assert ready(port) == (0, "")
    assert ready(port) == (1, f"nothing listens on port {port}")


def test_an_outgoing_connection_from_the_port_does_not_count_as_listening(ready: Ready) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port = client.getsockname()[1]
        assert ready(port) == (1, f"nothing listens on port {port}")


def test_a_parked_task_that_ended_with_code_0_is_ready(ready: Ready, start: Start) -> None:
    start("exit 0").wait(10)
    assert ready(1) == (0, "")


def test_a_task_that_failed_is_not_ready(ready: Ready, start: Start) -> None:
    start("exit 3").wait(10)
    assert ready(1) == ready() == (3, "the task failed with code 3")


def test_a_task_without_a_port_is_ready_while_it_runs(ready: Ready) -> None:
    assert ready() == (0, "")


def test_the_output_is_also_written_to_the_training_directory(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "training" / "logs" / "worker-0.log"
    for code in ("137", "0"):
        process = start(f"echo out; echo err >&2; exit {code}", TASK_LOG=str(log))
        assert process.communicate(timeout=10)[0].splitlines() == ["out", "err"]
        assert process.returncode == int(code)
    assert log.read_text().splitlines() == ["out", "err"] * 2, "a restart appends to the same file"


def test_a_task_runs_if_its_training_directory_is_not_writable(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = start("echo out", TASK_LOG=str(tmp_path / "file" / "logs" / "worker-0.log"))
    assert process.communicate(timeout=10)[0] == "out\n"
    assert process.returncode == 0


@pytest.mark.parametrize(("run_id", "parked"), [("abc", True), ("another", False)])
def test_a_replacement_pod_is_parked_if_its_task_has_ended_in_this_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str, parked: bool
) -> None:
    """The supervisor's notes have the run id and the exit code."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "mnist-ps-0").write_text("abc 0")
    process = start("echo trains", TASK_RUN=run_id, TASK_ENDED=str(notes))
    assert process.stdout
    assert process.stdout.readline().startswith("task: ended with code 0" if parked else "trains")


@pytest.mark.parametrize("run_id", ["", "abc", "another"])
def test_the_client_of_a_changed_run_waits_until_its_pod_is_replaced(start: Start, tmp_path: Path, run_id: str) -> None:
    ended = tmp_path / "ended"
    ended.mkdir()
    if run_id:
        (ended / "run").write_text(run_id)
    process = start("echo asks", TASK_RUN="abc", TASK_WAITS="yes", TASK_ENDED=str(ended))
    assert process.stdout
    line = process.stdout.readline()
    if run_id == "another":
        assert "waiting for the end of the previous run" in line
        process.terminate()
    else:
        assert line == "asks\n"
    assert process.wait(timeout=10) == (143 if run_id == "another" else 0)


@pytest.mark.parametrize("before", [None, "", "another"], ids=["no file", "empty", "another run"])
def test_a_task_waits_until_the_supervisor_starts_the_run(start: Start, tmp_path: Path, before: str | None) -> None:
    ended = tmp_path / "ended"
    ended.mkdir()
    if before is not None:
        (ended / "run").write_text(before)
    process = start("echo trains", TASK_RUN="abc", TASK_WAITS="start", TASK_ENDED=str(ended))
    assert process.stdout
    assert process.stdout.readline() == "task: waiting until the supervisor starts the run\n"
    (ended / "run").write_text("abc")
    assert process.stdout.readline() == "trains\n"
    assert process.wait(timeout=10) == 0


def test_a_task_with_an_earlier_version_of_the_data_than_that_of_the_run_starts_again(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("abc.v8")
    process = start("echo trains", TASK_RUN="abc.v7", TASK_WAITS="start", TASK_ENDED=str(tmp_path))
    assert process.wait(timeout=10) == 143
    assert marker(tmp_path) is None


def test_a_task_that_waits_for_its_start_ends_on_sigterm(start: Start, tmp_path: Path) -> None:
    process = start("echo trains", TASK_RUN="abc", TASK_WAITS="start", TASK_ENDED=str(tmp_path))
    assert process.stdout
    assert "waiting" in process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=10) == 143
    assert marker(tmp_path) is None


@pytest.mark.parametrize(
    ("code", "ends"), [(0, True), (1, False), (2, False), (3, True), (9, False), (19, True), (200, True)], ids=str
)
@pytest.mark.parametrize("action", ["Fail", "RestartAll"])
def test_rules_for_exit_codes_override_the_restart_policy(
    start: Start, tmp_path: Path, code: int, ends: bool, action: str
) -> None:
    process = start(f"exit {code}", TASK_EXITS=f"1,9:Restart 2:Ignore !0,1,2:{action} 0-127:End 128-255:Restart")
    assert process.wait(timeout=10) == code
    assert (tmp_path / "done").exists() == ends
