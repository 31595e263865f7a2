"""A task's Prometheus metrics and the HTTP server that exposes them.

A task sets plain attributes, at a negligible cost per step. A scrape converts them to metrics. `trainer.cli` creates
the `Metrics` of a task and, if `metrics_port` is set, serves them: this opens the port and starts a thread.
"""

import contextlib
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Metric, MetricsHandler, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

import trainer
from trainer.errors import ConfigurationError
from trainer.telemetry.goodput import Account
from trainer.telemetry.progress import Progress
from trainer.text import truncate


@dataclass(eq=False)
class Metrics(Collector):
    """The current values of a task. None means unknown or not applicable; such a metric is not exposed."""

    role: str
    index: int
    restarts: int = 0
    examples: int = 0
    checkpoints: int = 0
    saved: float | None = None
    """When this task saved its last checkpoint, in seconds since 1970."""
    global_step: int | None = None
    steps_per_second: float | None = None
    batch_metrics: Mapping[str, float] = field(default_factory=dict)
    """The loss and the metrics of the training batch reported last, by name."""
    test_metrics: Mapping[str, float] = field(default_factory=dict)
    """Those of the checkpoint evaluated last, on the held-out split."""
    serving: bool | None = None
    account: Account | None = None
    """What the time of a replica goes into."""
    _waited: tuple[float, float | None] = (0.0, None)
    """Seconds of the finished waits, and the start of the current one. One value, so that a scrape reads both."""

    def report(self, progress: Progress) -> None:
        """Set the metrics of a progress line."""
        self.steps_per_second = progress.steps_per_second
        self.batch_metrics = {"loss": progress.loss, **progress.metrics}

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside the context as waiting for other tasks, also while it lasts."""
        self._waited = (self.waiting_seconds, time.monotonic())
        try:
            yield
        finally:
            self._waited = (self.waiting_seconds, None)

    @property
    def waiting_seconds(self) -> float:
        """The waiting time until now, in seconds."""
        before, since = self._waited
        return before if since is None else before + time.monotonic() - since

    def collect(self) -> Iterator[Metric]:
        """Yield the known metrics. Prometheus's client adds `_info` and `_total` to the names."""
        task = {"role": self.role, "index": str(self.index), "version": trainer.__version__}
        yield InfoMetricFamily("trainer_task", "Role and index of this task, and version of its trainer.", task)
        for name, meaning, count in (
            ("restarts", "Earlier starts of this task's container in its pod.", self.restarts),
            ("examples", "Examples this task has computed gradients on.", self.examples),
            ("checkpoints", "Checkpoints this task has saved.", self.checkpoints),
            (
                "waiting_seconds",
                "Seconds this replica has waited for other tasks, at the start and after one was lost.",
                self.waiting_seconds,
            ),
        ):
            yield CounterMetricFamily(f"trainer_{name}", meaning, count)
        for name, meaning, value in (
            ("global_step", "Global step of the run that this replica read last.", self.global_step),
            ("steps_per_second", "Global steps per second between the last two reports.", self.steps_per_second),
            ("serving", "1 while this parameter server serves the run, 0 when the run is done.", self.serving),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"trainer_{name}", meaning, value)
        if self.account:
            seconds = self.account.seconds
            yield GaugeMetricFamily(
                "trainer_goodput", "Share of this replica's time in steps that count.", seconds.goodput
            )
            parts = GaugeMetricFamily(
                "trainer_goodput_seconds", "What the time of this replica went into, in seconds.", labels=["part"]
            )
            for part, value in asdict(seconds).items():
                parts.add_metric([part], value)
            yield parts
        for prefix, metrics, which in (
            ("", self.batch_metrics, "training batch reported last"),
            ("test_", self.test_metrics, "checkpoint evaluated last, on the held-out split"),
        ):
            for name, value in metrics.items():
                safe = re.sub("[^a-zA-Z0-9_]", "_", name)
                yield GaugeMetricFamily(f"trainer_{prefix}{safe}", f"{name.capitalize()} of the {which}.", value)


def parse_restarts(text: str) -> int:
    """Parse the environment variable TASK_RESTARTS, which the chart's `task.sh` sets; blank is 0.

    Raises:
        ConfigurationError: the value is not a whole number from 0.
    """
    if not text.strip():
        return 0
    if not re.fullmatch("[0-9]{1,9}", text.strip()):
        raise ConfigurationError(
            f"TASK_RESTARTS: {truncate(text, 20)!r} was given, but it is the number of this task's earlier starts: "
            "set it to a whole number from 0, or unset it."
        )
    return int(text)


class _Server(socketserver.ThreadingTCPServer):
    """Listens on every address of this machine, with one socket for IPv6 and IPv4 if it has both."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    allow_reuse_address = True
    daemon_threads = True  # a slow scrape must not delay the exit of a task

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # do not log clients that disconnect early
            super().handle_error(request, client_address)


def serve(metrics: Collector, port: int) -> None:
    """Serve these metrics, and those of the process, on this port until the process ends.

    Raises:
        ConfigurationError: the process cannot listen on the port.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    try:
        server = _Server(("", port), MetricsHandler.factory(registry))
    except OSError as error:
        raise ConfigurationError(
            f"metrics_port: {port} cannot be listened on ({error.strerror}): "
            "stop the process that uses it, or choose another port."
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
