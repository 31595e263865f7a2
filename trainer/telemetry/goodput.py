"""Goodput: the share of a run's time in which it takes steps that count.

The field also calls it ETTR, the effective training time ratio (Kokolis et al., "Revisiting Reliability in Large-Scale
Machine Learning Research Clusters", 2024). Each replica keeps an account; that of the chief is the run's, and goes on
when the chief restarts.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Part = Literal["scheduling", "starting", "training", "again", "waiting", "saving"]

BEGAN = "TRAINER_BEGAN"
"""The environment variable of a process that was wanted before it was there: since when, in seconds since 1970."""
LAUNCHED = "TRAINER_LAUNCHED"
"""That of a task of `trainer launch`: when it was launched, in seconds since 1970. Nobody has waited before."""
PAUSE_SECONDS = 1.0
"""An execution that takes at least this much longer than usual has waited for another task,"""
PAUSE_FACTOR = 3.0
"""if it takes this many times as long as usual."""
SHOWN_SECONDS = 0.05
"""A part below this time is not named."""
SMOOTHING = 0.1
"""The weight of the last execution in the usual time of a step."""


@dataclass(frozen=True)
class Seconds:
    """What the time of a run went into, in seconds."""

    scheduling: float = 0.0
    """The chief has no process: it waits for a node, for a queue, or to be started again."""
    starting: float = 0.0
    """From the start of its process to its first step: imports, data, graph, other tasks, a restored checkpoint."""
    training: float = 0.0
    """Steps that count, also those that others take while the chief is away."""
    again: float = 0.0
    """Steps that were taken before the run went back to a checkpoint."""
    waiting: float = 0.0
    """For a task that is lost, or does not answer."""
    saving: float = 0.0
    """Between the steps: checkpoints, evaluations, callbacks; after them, the last evaluation and the export."""

    @property
    def total(self) -> float:
        """All of the run's time."""
        return float(sum(asdict(self).values()))

    @property
    def goodput(self) -> float:
        """The share of training in the time, from 0 to 1."""
        return self.training / self.total if self.total else 0.0


class Account:
    """What the time of a run went into until now. Any thread may read it, and say that a task is lost."""

    def __init__(self, began: float | None = None) -> None:
        """Begin at this time, in seconds since 1970, or with the start of this process."""
        self._offset = time.time() - time.monotonic()  # somebody may set the clock meanwhile
        self._until = self._began() if began is None else began
        self._lock = threading.Lock()
        self._booked: dict[str, float] = dict.fromkeys(get_args(Part), 0.0)
        self._absence = 0.0
        """How long the chief had no process before this one."""
        self._phase: Part = "starting"
        self._is_saving = False
        self._step = 0
        self.furthest_step = 0
        """The highest global step that the run has reached."""
        self._usual = 0.0
        """How long a global step usually takes, in seconds; 0 if that is unknown."""

    def resume(self, result: Mapping[str, Any], updated: float | None) -> None:
        """Go on from what an earlier process has written.

        Args:
            result: The content of result.json.
            updated: When it was written, in seconds since 1970; None if the run was done, so that nobody has waited.
        """
        found, step = read(result), result.get("furthest_step")
        if found is None or not isinstance(step, int):
            return
        self._booked = asdict(found)
        self._step = self.furthest_step = step
        self._usual = self._booked["training"] / step if step else 0.0
        if updated is not None:
            self._absence = max(0.0, self._until - max(updated, float(os.environ.get(LAUNCHED, "0"))))
            self._until = max(self._until, updated)  # a process that replaces itself keeps the time of its start

    def step(self, step: int) -> None:
        """The run has reached this global step by an execution."""
        with self._lock:
            self._book_step(step)

    def _book_step(self, step: int) -> None:
        elapsed, expected = self._elapse(), max(0, step - self._step) * self._usual
        if self._phase == "training":
            is_paused = elapsed > max(expected + PAUSE_SECONDS, PAUSE_FACTOR * expected) and self._usual
            pause = elapsed - expected if is_paused else 0.0
            most = PAUSE_FACTOR * self._usual or elapsed
            self._book("waiting", pause)
            self._book("training" if step > self.furthest_step else "again", elapsed - pause)
            if step > self._step:
                own = min(elapsed / (step - self._step), most)  # the run may be slower from now on
                self._usual += (own - self._usual) * (SMOOTHING if self._usual else 1.0)
        else:
            self._end_phase(elapsed, max(0, step - self.furthest_step) * self._usual)
        self._step, self.furthest_step = step, max(step, self.furthest_step)

    def _end_phase(self, elapsed: float, of_others: float) -> None:
        """Book the time until a first step: others have trained for a part of it."""
        left = max(0.0, self._absence + elapsed - of_others)
        self._book("training", self._absence + elapsed - left)
        self._book(self._phase, min(left, elapsed))
        self._book("scheduling", max(0.0, left - elapsed))
        self._absence, self._phase = 0.0, "training"

    def lost(self) -> None:
        """Another task is lost: the time since the last step, and until the next one, is waited."""
        with self._lock:
            if self._phase == "training":
                self._phase = "waiting"

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Book the time inside the context as that of saving."""
        with self._lock:
            self._book(self._phase, self._elapse())
            self._is_saving = True
        try:
            yield
        finally:
            with self._lock:
                self._book("saving", self._elapse())
                self._is_saving = False

    @property
    def seconds(self) -> Seconds:
        """What the time until now went into."""
        with self._lock:
            parts = dict(self._booked)
            parts["saving" if self._is_saving else self._phase] += max(0.0, self._now() - self._until)
            parts["scheduling"] += self._absence
        return Seconds(**parts)

    def to_json(self) -> dict[str, Any]:
        """The keys of result.json: the share, the parts in seconds, and the highest step, from which it goes on."""
        seconds = self.seconds
        parts = {name: round(value, 3) for name, value in asdict(seconds).items()}
        return {
            "goodput": round(seconds.goodput, 4),
            "goodput_seconds": parts,
            "furthest_step": self.furthest_step,
        }

    def _began(self) -> float:
        began = os.environ.pop(BEGAN, None)  # a process that this one starts has a begin of its own
        return float(began) if began else self._now() - _age_of_process()

    def _now(self) -> float:
        return self._offset + time.monotonic()

    def _elapse(self) -> float:
        now = max(self._until, self._now())
        elapsed, self._until = now - self._until, now
        return elapsed

    def _book(self, part: Part, seconds: float) -> None:
        self._booked[part] += seconds


def _age_of_process() -> float:
    """How long ago this process was started, in seconds (proc(5): field 22 of stat, in ticks since the boot)."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def read(result: Mapping[str, Any]) -> Seconds | None:
    """What result.json says; None if it does not, as that of an older trainer."""
    found = result.get("goodput_seconds")
    if not isinstance(found, Mapping):
        return None
    parts = {part: found.get(part, 0.0) for part in get_args(Part)}
    are_numbers = all(isinstance(seconds, (int, float)) for seconds in parts.values())
    return Seconds(**{part: float(seconds) for part, seconds in parts.items()}) if are_numbers else None


def describe(seconds: Seconds | None) -> str:
    """What the time of a run went into: goodput 91.0 %: training 42.0 s, starting 3.1 s; empty for None."""
    if seconds is None:
        return ""
    parts = sorted(asdict(seconds).items(), key=lambda part: -part[1])
    shown = ", ".join(f"{part} {value:.1f} s" for part, value in parts if value >= SHOWN_SECONDS)
    return f"goodput {100 * seconds.goodput:.1f} %: {shown}"
