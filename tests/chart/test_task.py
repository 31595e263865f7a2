"""The scripts that wrap every task, as real processes of each shell that an image may bring."""

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

from tests.chart.chart import CHART

TASK, READY = CHART / "files/task.sh", CHART / "files/ready.sh"
DIES = "kill -9 $$"
SAVES = 'trap "sleep 0.3; echo saved; exit 7" TERM; echo runs; while :; do sleep 0.1; done'
"""A program that saves on SIGTERM, which takes it a moment, and ends with a code of its own."""

Start = Callable[..., "subprocess.Popen[str]"]
Ready = Callable[[int], tuple[int, str]]


@pytest.fixture(params=["dash", "bash", "busybox"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    """A shell that is called `sh` in some image."""
    if not (path := shutil.which(request.param)):
        pytest.skip(f"there is no {request.param}")
    return [path, "sh"] if request.param == "busybox" else [path]


@pytest.fixture
def start(shell: list[str], tmp_path: Path) -> Iterator[Start]:
    """Starts the wrapper as the kubelet does, with a program of `sh`; each call is a container of the same pod."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, policy: str = "ExitCode", **more: str) -> "subprocess.Popen[str]":
        environment = os.environ | {"TASK_DIR": str(tmp_path), "TASK_RESTART_POLICY": policy, "TASK_POD": "mnist-ps-0"}
        environment |= more
        words = [*shell, str(TASK), "sh", "-c", program]
        process = subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell cannot trap a signal that it was started to ignore, as all in the background of a script is.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def marker(folder: Path) -> str | None:
    file = folder / "done"
    return file.read_text().strip() if file.exists() else None


@pytest.mark.parametrize(
    ("policy", "rests_after"),
    [("Never", {0, 1, 127, 128, 137}), ("OnFailure", {0}), ("ExitCode", {0, 1, 127}), ("Always", set())],
)
@pytest.mark.parametrize(
    ("program", "code"), [("exit 0", 0), ("exit 1", 1), ("exit 127", 127), ("exit 128", 128), (DIES, 137)]
)
def test_the_code_is_passed_on_and_the_policy_says_whether_the_task_is_over(
    start: Start, tmp_path: Path, policy: str, rests_after: set[int], program: str, code: int
) -> None:
    assert start(program, policy).wait(10) == code
    assert marker(tmp_path) == (str(code) if code in rests_after else None)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_task_that_is_over_rests_and_ends_promptly_when_asked(
    start: Start, tmp_path: Path, ending: signal.Signals
) -> None:
    assert start("exit 3", "Never").wait(10) == 3
    resting = start("echo runs again", "Never")
    assert resting.stdout
    said = resting.stdout.readline()
    assert said == "task: ended with code 3 and rests; what it said: kubectl logs --previous mnist-ps-0\n"
    with pytest.raises(subprocess.TimeoutExpired):
        resting.wait(0.3)
    asked = time.monotonic()
    resting.send_signal(ending)
    assert resting.wait(10) == 3
    assert time.monotonic() - asked < 2
    assert marker(tmp_path) == "3"


@pytest.mark.parametrize(("policy", "left"), [("ExitCode", "7"), ("Always", None)])
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_program_is_asked_to_end_and_its_own_code_comes_back(
    start: Start, tmp_path: Path, policy: str, left: str | None, ending: signal.Signals
) -> None:
    process = start(SAVES, policy)
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    process.send_signal(ending)
    said, _ = process.communicate(timeout=10)
    assert said == "saved\n"
    assert process.returncode == 7
    assert marker(tmp_path) == left


def test_a_program_that_is_asked_twice_still_saves(start: Start) -> None:
    process = start(SAVES)
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    said, _ = process.communicate(timeout=10)
    assert "saved" in said
    assert process.returncode == 7


def test_a_program_that_does_not_know_the_signal_ends_by_it_and_may_start_again(start: Start, tmp_path: Path) -> None:
    process = start("echo runs; exec sleep 60")
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
    assert marker(tmp_path) is None


def test_a_program_knows_how_often_it_was_restarted(start: Start) -> None:
    said = [start("echo $TASK_RESTARTS; exit 200").communicate(timeout=10)[0] for _ in range(3)]
    assert said == ["0\n", "1\n", "2\n"]


def test_arguments_arrive_as_they_are(shell: list[str], tmp_path: Path) -> None:
    words = ["a b", "", "*", "$HOME", "'"]
    done = subprocess.run(
        [*shell, TASK, "printf", "%s|", *words],
        env=os.environ | {"TASK_DIR": str(tmp_path), "TASK_RESTART_POLICY": "Never"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "a b||*|$HOME|'|"


@pytest.fixture
def ready(shell: list[str], tmp_path: Path) -> Ready:
    """Asks the probe about a port, and gives its exit code and what it said."""

    def ask(port: int) -> tuple[int, str]:
        environment = os.environ | {"TASK_DIR": str(tmp_path)}
        done = subprocess.run([*shell, READY, str(port)], env=environment, capture_output=True, text=True)
        assert done.stderr == ""
        return done.returncode, done.stdout.strip()

    return ask


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
        assert ready(port) == (1, f"nothing listens on port {port}"), "it is bound, but does not listen yet"
        listener.listen()
        assert ready(port) == (0, "")
    assert ready(port) == (1, f"nothing listens on port {port}")


def test_a_connection_from_a_port_is_no_listener(ready: Ready) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port = client.getsockname()[1]
        assert ready(port) == (1, f"nothing listens on port {port}")


def test_a_task_that_rests_after_a_good_end_is_ready(ready: Ready, start: Start) -> None:
    start("exit 0").wait(10)
    assert ready(1) == (0, "")


def test_a_task_that_failed_is_not_ready(ready: Ready, start: Start) -> None:
    start("exit 3").wait(10)
    assert ready(1) == (3, "the task failed with code 3")


def test_what_a_task_says_is_kept_in_the_training_directory_too(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "training" / "logs" / "worker-0.log"
    for code in ("137", "0"):
        process = start(f"echo out; echo err >&2; exit {code}", TASK_LOG=str(log))
        assert process.communicate(timeout=10)[0].splitlines() == ["out", "err"]
        assert process.returncode == int(code)
    assert log.read_text().splitlines() == ["out", "err"] * 2, "a restart goes on with the same file"


def test_a_training_directory_that_cannot_be_written_keeps_no_task_from_running(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = start("echo out", TASK_LOG=str(tmp_path / "file" / "logs" / "worker-0.log"))
    assert process.communicate(timeout=10)[0] == "out\n"
    assert process.returncode == 0


@pytest.mark.parametrize(("hash_", "parked"), [("abc", True), ("another", False)])
def test_a_pod_that_replaces_one_whose_task_ended_rests(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hash_: str, parked: bool
) -> None:
    """The supervisor has noted the end, and of which run."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "mnist-ps-0").write_text("abc 0")
    process = start("echo trains", TASK_RUN=hash_, TASK_NOTES=str(notes))
    assert process.stdout
    assert process.stdout.readline().startswith("task: ended with code 0" if parked else "trains")
