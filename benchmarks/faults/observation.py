"""What is seen of a run: the steps of each replica, the checkpoints, and what the tasks say, over time.

A thread reads the logs and the training directory several times a second. The trainer logs its progress at most once a
second, so times are exact to a second.
"""

import contextlib
import re
import threading
import time
from dataclasses import dataclass, field

from benchmarks.faults.cluster import Cluster, Line
from trainer.telemetry import report
from trainer.telemetry.progress import parse

INTERVAL_SECONDS = 0.1


@dataclass(frozen=True)
class Sample:
    """A replica has taken a step."""

    time: float
    """Seconds since 1970."""
    task: str
    step: int
    """The global step after it."""


@dataclass
class Record:
    """What has been seen of a run."""

    lines: list[Line] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    saved: list[Sample] = field(default_factory=list)
    """Each checkpoint, with the time at which it was first seen complete."""
    restored: list[Sample] = field(default_factory=list)
    """Each restored checkpoint."""
    damaged: set[int] = field(default_factory=set)
    """The steps of checkpoints that a fault has damaged."""

    def forget_damaged(self) -> None:
        """Forget checkpoints after the one that was restored last: a fault has damaged them."""
        newest = self.restored[-1].step if self.restored else 0
        self.damaged |= {each.step for each in self.saved if each.step > newest}
        self.saved = [each for each in self.saved if each.step <= newest]

    def has_stepped(self, tasks: list[str], since: float) -> bool:
        """Whether each of these replicas has taken a step after a time."""
        return {sample.task for sample in list(self.samples) if sample.time > since} >= set(tasks)

    @property
    def step(self) -> int:
        """The last global step that a replica has reported."""
        return self.samples[-1].step if self.samples else 0


class Observation(Record):
    """Observes a run while the context lasts."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="observation", daemon=True)

    def __enter__(self) -> "Observation":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self._look()

    def _look(self) -> None:
        known = {sample.step for sample in self.saved}
        with contextlib.suppress(OSError):
            for path in self._cluster.directory.glob("model.ckpt-*.index"):
                step = step_of(path.name)
                if step is not None and step not in known and step not in self.damaged:
                    self.saved.append(Sample(time.time(), "", step))
        for line in self._cluster.new_lines():
            self.lines.append(line)
            if line.task in self._cluster.workload.replicas and (progress := parse(line.text)):
                self.samples.append(Sample(line.time, line.task, progress.step))
            checkpoint = report.read(line.text, "restored", str)
            step = step_of(checkpoint) if checkpoint else None
            if step is not None:
                self.restored.append(Sample(line.time, line.task, step))


def step_of(checkpoint: str) -> int | None:
    """The global step in the name of a checkpoint or one of its files."""
    found = re.search(r"model\.ckpt-(\d+)(\.index)?$", checkpoint)
    return int(found[1]) if found else None
