"""What the processes of a run have used between two moments: CPU time, and bytes over the loopback interface."""

import threading
import time
from types import TracebackType

import numpy as np
import psutil

from benchmarks.processes import Processes

INTERVAL = 0.25
"""Seconds between two samples."""
LOOPBACK = ("lo", "lo0")


class Meter:
    """Samples in a thread while its context lasts. The loopback interface is that of the whole machine."""

    def __init__(self, processes: Processes) -> None:
        self._processes, self._stopped = processes, threading.Event()
        self._samples: list[tuple[float, float, float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Meter":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()

    def used(self, begin: float, end: float) -> tuple[float, float]:
        """CPU seconds and bytes between two moments, in seconds since 1970; between samples by interpolation."""
        times, seconds, sent = np.array(self._samples).T
        return tuple(float(np.diff(np.interp([begin, end], times, each))[0]) for each in (seconds, sent))  # type: ignore[return-value]

    def _run(self) -> None:
        while True:
            try:
                cpu = sum(self._processes.cpu_seconds())
            except psutil.Error:  # a task has ended, and with it the steady part
                return
            counters = psutil.net_io_counters(pernic=True)
            sent = next((counters[name].bytes_sent for name in LOOPBACK if name in counters), 0)
            self._samples.append((time.time(), cpu, float(sent)))
            if self._stopped.wait(INTERVAL):
                return
