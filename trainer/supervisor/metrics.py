"""The Prometheus metrics of a run; `trainer.telemetry.metrics` serves them."""

import time
from collections.abc import Iterator
from typing import get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trainer.supervisor.notes import Notes, State
from trainer.supervisor.run import Run

STATES = get_args(State)


class RunMetrics(Collector):
    """The metrics of a run. The caller keeps `notes` and `queued` up to date."""

    def __init__(self, run: Run, notes: Notes, crashes: int = 0) -> None:
        self._run = run
        self._crashes = crashes
        self.notes = notes
        self.queued = False
        """Whether a task waits for a queue."""

    def collect(self) -> Iterator[Metric]:
        """All metrics. The Prometheus client adds `_total` to the names of counters."""
        notes, now = self.notes, time.time()
        state = GaugeMetricFamily("trainer_run_state", "1 for the run's current state.", labels=["state"])
        seconds = CounterMetricFamily(
            "trainer_run_state_seconds", "Seconds that the run spent in it.", labels=["state"]
        )
        for name in STATES:
            state.add_metric([name], float(name == state_of(notes, self.queued)))
        for name, spent in seconds_in(notes, now).items():
            seconds.add_metric([name], spent)
        restarts = CounterMetricFamily("trainer_run_restarts", "Restarts of tasks.", labels=["role"])
        for role in self._run.roles:
            restarts.add_metric([role], notes.counted.by_role.get(role, 0))
        crashes = CounterMetricFamily("trainer_supervisor_crashes", "Crashes of the supervisor of this run.")
        crashes.add_metric([], self._crashes)
        yield from (state, seconds, restarts, crashes)


def state_of(notes: Notes, queued: bool = False) -> str:
    """The state for people: Starting until every task has started, then Running; Queued while a queue holds a task."""
    if queued:
        return "Queued"
    if notes.state in ("Starting", "Running"):
        return "Running" if notes.running else "Starting"
    return notes.state


def seconds_in(notes: Notes, now: float) -> dict[State, float]:
    """Seconds that a run has spent in Starting and in Running; `now` in seconds since 1970."""
    now = notes.ended or now
    if not notes.started:
        return {"Starting": 0.0, "Running": 0.0}
    return {
        "Starting": (notes.running or now) - notes.started,
        "Running": now - notes.running if notes.running else 0.0,
    }
