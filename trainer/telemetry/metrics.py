"""What a task tells Prometheus of itself: numbers that its life writes, and the server that shows them.

The life of a task sets plain attributes, which costs a step nothing to speak of; they become metrics only when
somebody asks. `trainer.cli` makes the one `Metrics` of a task, and serves it where `metrics_port` is set: that opens
the port and starts a thread.
"""

import contextlib
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Metric, MetricsHandler, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

import trainer
from trainer.errors import ConfigurationError
from trainer.telemetry.progress import Progress


@dataclass(eq=False)
class Metrics(Collector):
    """A task's numbers now; None is not known, or not this task's to know, and is not shown."""

    role: str
    index: int
    restarts: int = 0
    examples: int = 0
    checkpoints: int = 0
    global_step: int | None = None
    steps_per_second: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    serving: bool | None = None
    _waited: tuple[float, float | None] = (0.0, None)
    """Seconds of the waits that are over, and when the present one began: one value, as a scrape may come any time."""

    def report(self, progress: Progress) -> None:
        """Show what a progress line says."""
        self.steps_per_second, self.loss, self.accuracy = progress.steps_per_second, progress.loss, progress.accuracy

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time spent inside as waiting for other tasks, while it passes."""
        self._waited = (self.waiting_seconds, time.monotonic())
        try:
            yield
        finally:
            self._waited = (self.waiting_seconds, None)

    @property
    def waiting_seconds(self) -> float:
        """The time spent waiting until now."""
        before, since = self._waited
        return before if since is None else before + time.monotonic() - since

    def collect(self) -> Iterator[Metric]:
        """All that is known, as Prometheus's client wants it; it adds `_info` and `_total` to the names."""
        task = {"role": self.role, "index": str(self.index), "version": trainer.__version__}
        yield InfoMetricFamily("trainer_task", "Which task this is, and of which trainer.", task)
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
            ("global_step", "Global step of the run, as this replica saw it last.", self.global_step),
            ("steps_per_second", "Global steps per second between the last two reports.", self.steps_per_second),
            ("loss", "Loss of the training batch reported last.", self.loss),
            ("accuracy", "Accuracy on the training batch reported last.", self.accuracy),
            ("test_loss", "Loss of the checkpoint examined last, on the held-out split.", self.test_loss),
            ("test_accuracy", "Accuracy of the checkpoint examined last, on the held-out split.", self.test_accuracy),
            ("serving", "1 while this parameter server serves the run, 0 when the run is done.", self.serving),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"trainer_{name}", meaning, value)


def parse_restarts(text: str) -> int:
    """The value of the environment variable TASK_RESTARTS, which the chart's task wrapper sets; blank is 0.

    Raises:
        ConfigurationError: it is no number of restarts.
    """
    if not text.strip():
        return 0
    if not re.fullmatch("[0-9]{1,9}", text.strip()):
        raise ConfigurationError(
            f"TASK_RESTARTS: {text[:20]!r} was given, but it is the number of this task's earlier starts: "
            "set it to a whole number from 0, or not at all."
        )
    return int(text)


class _Server(socketserver.ThreadingTCPServer):
    """Listens on every address of this machine, IPv6 and IPv4, with one socket where it has both."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    allow_reuse_address = True
    daemon_threads = True  # a slow scrape must not hold up a task that ends

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # who hangs up early is no matter for a training's log
            super().handle_error(request, client_address)


def serve(metrics: Collector, port: int) -> None:
    """Show these metrics, and the process's own, at this port from now until the process ends.

    Raises:
        ConfigurationError: the port cannot be listened on.
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
