"""What the supervisor tells Prometheus of its run; `trainer.telemetry.metrics` serves it."""

import time
from collections.abc import Iterator
from typing import Literal

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trainer.supervisor.notes import Notes
from trainer.supervisor.run import Run

State = Literal["Starting", "Running", "Succeeded", "Failed"]
STATES: tuple[State, ...] = ("Starting", "Running", "Succeeded", "Failed")


class RunMetrics(Collector):
    """The numbers of a run; whoever follows it keeps `notes` up to date."""

    def __init__(self, run: Run, notes: Notes) -> None:
        self._run = run
        self.notes = notes

    def collect(self) -> Iterator[Metric]:
        """All of them, as Prometheus's client wants them; it adds `_total` to the names of counters."""
        notes, now = self.notes, time.time()
        state = GaugeMetricFamily("trainer_run_state", "1 for the state that the run is in.", labels=["state"])
        seconds = CounterMetricFamily("trainer_run_state_seconds", "Seconds that the run was in it.", labels=["state"])
        for name in STATES:
            state.add_metric([name], float(name == state_of(notes)))
        for name, spent in seconds_in(notes, now).items():
            seconds.add_metric([name], spent)
        restarts = CounterMetricFamily("trainer_run_restarts", "Restarts of tasks that count.", labels=["role"])
        for role in self._run.roles:
            restarts.add_metric([role], notes.restarts_by_role.get(role, 0))
        yield from (state, seconds, restarts)


def state_of(notes: Notes) -> str:
    """Starting until every task has started, then Running, and at the end the run's result."""
    return notes.state if notes.over else "Running" if notes.running else "Starting"


def seconds_in(notes: Notes, now: float) -> dict[State, float]:
    """Seconds that a run has spent in its two states; `now` in seconds since 1970."""
    if not notes.started:
        return {"Starting": 0.0, "Running": 0.0}
    return {
        "Starting": (notes.running or now) - notes.started,
        "Running": now - notes.running if notes.running else 0.0,
    }
