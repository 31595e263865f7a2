"""The watchdog, in separate processes that it ends."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

START = """
import logging, sys, time
from trainer.training.watch.watchdog import Watchdog
watchdog = Watchdog(stall_seconds={stall}, grace_seconds={grace}, save_seconds={save})
watchdog.start()
logging.basicConfig(stream=sys.stdout, level="INFO", format="%(message)s")
def save():
    print("saved", flush=True)
"""
BUSY = "\nprint('ready', flush=True)\ntime.sleep(100)\n"
POLITE = """
print("ready", flush=True)
while not watchdog.stopping:
    time.sleep(0.01)
watchdog.finished()
print("left", flush=True)
sys.exit(watchdog.exit_code)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program with a watchdog and waits until it is ready."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, stall: float = 600, grace: float = 0.2, save: float = 60) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", START.format(stall=stall, grace=grace, save=save) + program]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_task_may_end_itself_after_a_signal(
    start: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = start(POLITE, grace=60)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert output == f"{number.name}: ending\nleft\n"
    assert errors == ""


def test_a_blocked_task_is_saved_and_ended(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("watchdog.save_before_exit = save" + BUSY)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert output == "SIGTERM: ending\nsaved\n"


def test_a_save_that_hangs_does_not_keep_the_task_alive(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("watchdog.save_before_exit = lambda: time.sleep(100)" + BUSY, save=0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_a_signal_after_release_signals_stays_pending(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(
        """
import signal
watchdog.release_signals()
print("ready", flush=True)
while signal.SIGTERM not in signal.sigpending():
    time.sleep(0.01)
another = Watchdog(stall_seconds=600, grace_seconds=60, save_seconds=0)
another.start()
while not another.stopping:
    time.sleep(0.01)
sys.exit(another.exit_code)
"""
    )
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert output == "SIGTERM: ending\n"


def test_a_stopping_task_does_not_stall(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(
        "watchdog.progress()\n"
        "time.sleep(0.5)\n"
        "before = watchdog.stalled_for()\n"
        "print('ready', flush=True)\n"
        "while not watchdog.stopping:\n"
        "    time.sleep(0.01)\n"
        "print(before >= 0.5, watchdog.stalled_for(), flush=True)\n"
        "watchdog.finished()\n"
    )
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert "True 0.0" in output.splitlines()


def test_a_stalled_task_exits_with_a_retryable_code(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start("watchdog.progress()" + BUSY, stall=0.2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 138
    assert "no global step within 0.2 s" in errors
    assert errors.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "phase", ["", "watchdog.progress()\nwatchdog.pause()"], ids=["before the first step", "paused"]
)
def test_a_phase_with_its_own_timeout_is_not_a_stall(start: Callable[..., subprocess.Popen[str]], phase: str) -> None:
    process = start(phase + BUSY, stall=0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
