"""The launcher's displays."""

import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from trainer.cluster.spec import Task
from trainer.launcher import display
from trainer.launcher.display import Display, Lines, Screen, make_display
from trainer.telemetry import report
from trainer.telemetry.progress import Progress

WORKER, OTHER, PS = Task("worker", 0), Task("worker", 1), Task("ps", 0)


def progress_line(step: int, task: Task = WORKER) -> str:
    progress = Progress(step, 200, 0.5, {"accuracy": 0.9}, 50.0)
    return f"12:00:00 {task}: {progress}{report.MARK}{json.dumps({'progress': asdict(progress)})}"


def test_the_display_fits_the_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert type(make_display(json=False, directory=tmp_path)) is Lines  # pytest's output is not a terminal
    assert type(make_display(json=True, directory=tmp_path)) is Display
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats any output as a terminal
    assert type(make_display(json=False, directory=tmp_path)) is Screen
    assert type(make_display(json=True, directory=tmp_path)) is Display


def test_with_json_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as shown:
        shown.line(WORKER, "12:00:00 worker 0: at step 0 of 200")
        shown.state(WORKER, "done")
        shown.refresh()
    assert capsys.readouterr() == ("", "")


def test_lines_show_the_directory_states_messages_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(Path("runs/1")) as shown:
        shown.line(WORKER, "12:00:00 worker 0: at step 0 of 200")
        shown.line(WORKER, progress_line(100))
        shown.state(WORKER, "done")
    assert capsys.readouterr().out.splitlines() == [
        "training directory: runs/1",
        "12:00:00 worker 0: at step 0 of 200",
        "step 100/200: loss 0.5000, accuracy 0.900, 50.0 steps/s, 2 s left",
        "worker 0: done",
    ]


OF_TENSORFLOW = """\
E0000 00:00:1796047270.659406   28842 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: recvmsg: …
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensor…
:UNKNOWN:Error received from peer  {grpc_status:9, grpc_message:"…"}
The error could be from a previous operation. Restart your program to reset.
E0000 00:00:1796045256.676455    2873 worker.cc:436] Bad status from CompleteGroupDistributed: FAILED_PRECONDITION: …
"""


def test_what_tensorflow_writes_of_a_lost_replica_is_in_the_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(Path("runs/1")) as shown:
        for line in OF_TENSORFLOW.splitlines():
            shown.line(WORKER, line)
        shown.line(WORKER, "E0000 00:00:1796047270.659406   28842 cuda_dnn.cc:1] no memory")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "E0000 00:00:1796047270.659406   28842 cuda_dnn.cc:1] no memory"
    ]


def test_lines_say_that_tasks_start_until_the_first_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "SILENT_SECONDS", 0.0)
    with Lines(Path("runs/1")) as shown:
        shown.refresh()
        assert capsys.readouterr().out.splitlines()[-1].startswith("starting")
        shown.line(WORKER, progress_line(100))
        shown.refresh()
    assert "starting" not in capsys.readouterr().out


def test_lines_say_that_tasks_start_only_after_a_silence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "SILENT_SECONDS", 600.0)
    with Lines(Path("runs/1")) as shown:
        shown.refresh()
    assert capsys.readouterr().out == "training directory: runs/1\n"


def steps_shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split("/")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("step")]


def test_progress_lines_are_rate_limited_and_the_last_one_is_always_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "LINE_INTERVAL_SECONDS", 600.0)
    with Lines(Path("runs/1")) as shown:
        shown._shown = float("-inf")  # a machine that has just started has a clock near 0
        for step in range(10, 210, 10):
            shown.line(WORKER, progress_line(step))
    assert steps_shown(capsys) == ["step 10", "step 200"]


def test_a_slower_replica_does_not_move_the_progress_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "LINE_INTERVAL_SECONDS", 0.0)
    with Lines(Path("runs/1")) as shown:
        for step, task in ((100, WORKER), (90, OTHER), (110, OTHER)):
            shown.line(task, progress_line(step, task))
    assert steps_shown(capsys) == ["step 100", "step 110"]


@pytest.fixture
def console() -> Console:
    """A terminal that records its output."""
    return Console(force_terminal=True, record=True, width=160, height=40, file=io.StringIO())


def test_a_screen_shows_every_task_with_its_state_and_last_line(console: Console) -> None:
    with Screen(console, Path("runs/1")) as shown:
        shown.refresh()
        assert "starting" in console.export_text(clear=False)
        shown.line(PS, "12:00:00 ps 0: serving on localhost:2222")
        shown.line(WORKER, progress_line(100))
        shown.state(OTHER, "starting again (SIGKILL)")
    *_, last = console.export_text().split("training directory: runs/1")
    assert "step 100/200: loss 0.5000, accuracy 0.900, 50.0 steps/s, 2 s left" in last
    lines = [" ".join(line.split()) for line in last.splitlines()]
    assert "ps 0 running serving on localhost:2222" in lines
    assert "worker 0 training step 100/200: loss 0.5000, accuracy 0.900, 50.0 steps/s" in lines
    assert "worker 1 starting again (SIGKILL)" in lines


def test_a_screen_keeps_the_furthest_progress_and_the_last_state(console: Console) -> None:
    with Screen(console, Path("runs/1")) as shown:
        shown.line(WORKER, progress_line(210))  # asynchronous replicas overshoot
        shown.line(OTHER, progress_line(190, OTHER))
        shown.state(WORKER, "done")
        shown.state(OTHER, "failed (exit code 1)")
    *_, last = console.export_text().split("training directory: runs/1")
    headline = next(line for line in last.splitlines() if "━" in line)
    assert "step 200/200" in headline
    assert "left" not in headline
    assert "worker 0 done" in " ".join(last.split())
    assert "worker 1 failed (exit code 1)" in " ".join(last.split())


def test_a_narrow_screen_shortens_what_was_said_and_nothing_else() -> None:
    console = Console(force_terminal=True, record=True, width=60, height=40, file=io.StringIO())
    with Screen(console, Path("runs/1")) as shown:
        shown.line(WORKER, f"12:00:00 worker 0: {'lost a parameter server ' * 10}")
        shown.state(OTHER, "starting again (SIGKILL)")
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert any(line.startswith("worker 0 running lost a") and line.endswith("…") for line in lines), lines
    assert "worker 1 starting again (SIGKILL)" in lines


def test_log_lines_are_not_parsed_as_markup(console: Console) -> None:
    with Screen(console, Path("runs/[bold]")) as shown:
        shown.line(WORKER, "12:00:00 worker 0: shape [/red] of [784, 100]")
    assert "shape [/red] of [784, 100]" in console.export_text()
