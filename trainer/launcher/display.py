"""The launcher's display of a run: a live table in a terminal, plain lines elsewhere, nothing with `--json`.

It receives the tasks' log lines and states, and writes only to the output.
"""

import contextlib
import re
import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from trainer.cluster.spec import Task
from trainer.launcher.output import say
from trainer.telemetry import report
from trainer.telemetry.progress import Progress, parse
from trainer.text import tracebacks

LINE_INTERVAL_SECONDS = 1.0
NOISE = re.compile(
    r"E\d{4} .*\b(base_collective_executor|ring_alg|rpc_collective_executor_mgr|worker)\.cc:"
    r"|Additional GRPC error information |:UNKNOWN:Error received from peer "
    r"|The error could be from a previous operation\. Restart your program "
)
"""How the lines begin that TensorFlow writes when a collective op has lost a replica. The log has them."""
SILENT_SECONDS = 4.0
"""How long the lines may stop while the tasks start. To import TensorFlow takes longer on a busy machine."""


def _is_for_log_alone(line: str) -> bool:
    return tracebacks.is_line(line) or bool(NOISE.match(line))


class Display:
    """The interface of a display, a context manager around the run. This base class shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def line(self, task: Task, line: str) -> None:
        """Handle a log line of a task."""

    def state(self, task: Task, state: str) -> None:
        """Handle a change of a task's state."""

    def refresh(self) -> None:
        """Redraw. The launcher calls this at every poll."""


def make_display(json: bool, directory: object) -> Display:
    """Return the display for the output: none for `json`, a table for a terminal, otherwise lines."""
    console = Console()
    if json:
        return Display()
    return Screen(console, directory) if console.is_terminal else Lines(directory)


class Lines(Display):
    """Prints every state, every message, and at most one progress line a second."""

    def __init__(self, directory: object) -> None:
        self._directory = directory
        self._started = self._said = time.monotonic()
        self._shown = 0.0
        self._progress: dict[Task, Progress] = {}

    def __enter__(self) -> Self:
        self._say(f"training directory: {self._directory}")
        return self

    def line(self, task: Task, line: str) -> None:
        if _is_for_log_alone(line):
            return
        progress = parse(line)
        if progress is None:
            self._say(report.split(line)[0])
            return
        self._progress[task] = progress
        due = time.monotonic() - self._shown >= LINE_INTERVAL_SECONDS or progress.step >= progress.train_steps
        if due and progress is _foremost(self._progress):
            self._shown = time.monotonic()
            say(f"{progress}{_time_left(progress)}")

    def state(self, task: Task, state: str) -> None:
        self._say(f"{task}: {state}")

    def refresh(self) -> None:
        if not self._progress and time.monotonic() - self._said >= SILENT_SECONDS:
            self._say(_starting(self._started))

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        say(text)


class Screen(Display):
    """Draws a live table of the tasks below a progress bar of the global step."""

    def __init__(self, console: Console, directory: object) -> None:
        self._directory = directory
        # Do not use a refresh thread: the launcher forks, and a fork in a process with threads may hang.
        # Redirected error output stays where it is; on a terminal it appears above the table.
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=on_terminal)
        self._started = time.monotonic()
        self._progress: dict[Task, Progress] = {}
        self._states: dict[Task, str] = {}
        self._last_lines: dict[Task, str] = {}

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # the terminal may be closed at any time
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.refresh()
        with contextlib.suppress(OSError):
            self._live.__exit__(None, None, None)

    def line(self, task: Task, line: str) -> None:
        if _is_for_log_alone(line):
            return
        progress = parse(line)
        self._states[task] = "training" if progress else "running"
        sentence, _ = report.split(line)
        self._last_lines[task] = sentence.partition(": ")[2] or sentence
        if progress:
            self._progress[task] = progress

    def state(self, task: Task, state: str) -> None:
        self._states[task] = state

    def refresh(self) -> None:
        tasks = Table(box=None, pad_edge=False, expand=True)
        for title in ("task", "state", "last said"):  # the last one gets the room that the others leave
            tasks.add_column(title, no_wrap=True, overflow="ellipsis", ratio=1 if title == "last said" else None)
        for task, state in self._states.items():
            colour = {"done": "green", "training": "cyan"}.get(state, "red" if "failed" in state else "")
            tasks.add_row(str(task), Text(state, style=colour), Text(self._last_lines.get(task, ""), style="dim"))
        shown = Group(Text(f"training directory: {self._directory}"), self._headline(), tasks)
        with contextlib.suppress(OSError):
            self._live.update(shown, refresh=True)

    def _headline(self) -> Table | Text:
        if not self._progress:
            return Text(_starting(self._started), style="dim")
        latest = _foremost(self._progress)
        line = Table.grid(padding=(0, 1))
        line.add_row(
            ProgressBar(latest.train_steps, min(latest.step, latest.train_steps), width=30),
            f"{latest}{_time_left(latest)}",
        )
        return line


def _foremost(progress: dict[Task, Progress]) -> Progress:
    """Return the current progress of the furthest task. All tasks fall back when a checkpoint is restored."""
    return max(progress.values(), key=lambda each: each.step)


def _starting(since: float) -> str:
    return f"starting … {time.monotonic() - since:.0f} s"


def _time_left(progress: Progress) -> str:
    left = progress.seconds_left
    return f", {left:.0f} s left" if left else ""
