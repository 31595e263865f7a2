"""The step time breakdown: how the time of a replica's step divides into waiting, reading, computing and applying.

Each moment of an execution counts toward the first of these that applies:

    computing   an op of this replica runs that belongs to none of the other kinds: the ops of the model, forward and
                backward, and those that select a batch or pack the gradient
    applying    a gradient is in transit to a parameter server, or an op there applies it for this replica
    reading     an op reads the parameters, or they are in transit to this replica
    waiting     none of these: the replica waits for a token, a batch of `tf.data`, a busy parameter server or CPU, or
                TensorFlow's scheduler; this includes the round trip of the session

The four add up to the time of the execution. In synchronous training the chief's update loop averages and applies the
gradients, outside of the replicas' steps: the replicas wait during this time.

The intervals come from TensorFlow's traces (`tf.compat.v1.RunMetadata.step_stats`), in microseconds, by the clocks of
this task and of the parameter servers. These clocks must agree, as they do on one machine. `tracing` traces the
executions; this module does not import TensorFlow.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.telemetry import report

Interval = tuple[float, float]
"""Begin and end, in microseconds since the epoch."""

READING = ("ReadVariableOp",)
WAITING = ("Queue", "FIFOQueue", "Iterator")
APPLYING = ("ResourceApply", "Assign", "ResourceAccumulator", "Collective")
"""Prefixes of kernel names. Other kernels count as applying on a parameter server, and as computing on a replica."""


@dataclass(frozen=True)
class StepTime:
    """The time of a step by kind, in milliseconds."""

    waiting: float
    reading: float
    computing: float
    applying: float
    steps: int
    """The number of steps in this mean."""

    def __str__(self) -> str:
        return (
            f"a step's time: waiting {self.waiting:.4f} ms, reading {self.reading:.4f} ms, "
            f"computing {self.computing:.4f} ms, applying {self.applying:.4f} ms ({self.steps} steps traced)"
        )

    @property
    def parts(self) -> dict[str, float]:
        """The milliseconds by kind."""
        return {
            "waiting": self.waiting,
            "reading": self.reading,
            "computing": self.computing,
            "applying": self.applying,
        }

    @property
    def milliseconds(self) -> float:
        """The total time of a step."""
        return sum(self.parts.values())


def parse(line: str) -> StepTime | None:
    """Return the step time in the report of a log line; None for any other line."""
    return report.read(line, "step_time", StepTime)


def mean(step_times: Sequence[StepTime]) -> StepTime:
    """Return the mean over all steps of one or more step times."""
    steps = sum(each.steps for each in step_times)
    means = {name: sum(each.parts[name] * each.steps for each in step_times) / steps for name in step_times[0].parts}
    return StepTime(**means, steps=steps)


def measure(step_stats: Any, began: float, ended: float, steps: int) -> StepTime:
    """Return the step time of a traced execution of `steps` steps. `began` and `ended` are seconds since the epoch."""
    whole = (began * 1e6, ended * 1e6)
    found: dict[str, list[Interval]] = {"computing": [], "applying": [], "reading": [], "waiting": []}
    for device in step_stats.dev_stats:
        on_server = "/job:ps/" in device.device
        for node in device.node_stats:
            begin = float(node.all_start_micros)
            interval = (max(begin, whole[0]), min(begin + node.all_end_rel_micros, whole[1]))
            if interval[0] < interval[1]:
                found[_kind(node, on_server)].append(interval)
    milliseconds = {}
    covered: list[Interval] = []
    before = 0.0
    for kind in ("computing", "applying", "reading"):
        covered = _union([*covered, *found[kind]])
        length = sum(end - begin for begin, end in covered)
        milliseconds[kind] = (length - before) / 1e3 / steps
        before = length
    return StepTime(waiting=(whole[1] - whole[0] - before) / 1e3 / steps, steps=steps, **milliseconds)


def _kind(node: Any, on_server: bool) -> str:
    if node.node_name == "RecvTensor":
        return "applying" if on_server else "reading"
    # The label is "[memory] NODE = KERNEL(INPUT, INPUT)", except for internal nodes.
    kernel = node.timeline_label.partition(" = ")[2].partition("(")[0]
    for kind, beginnings in (("reading", READING), ("waiting", WAITING), ("applying", APPLYING)):
        if kernel.startswith(beginnings):
            return kind
    return "applying" if on_server else "computing"


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of the intervals as sorted intervals that do not overlap."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((begin, end))
    return union
