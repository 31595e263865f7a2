"""How the time of a replica's step divides into waiting, reading, computing and applying.

At each moment of a call of the session the time goes to the first of these that holds:

    computing   an op of this replica runs that is none of the following: the model's, forward and backward, and those
                that pick a batch or pack the gradient
    applying    a gradient is on its way to a parameter server, or an op there applies it for this replica
    reading     the parameters are read, or are on their way to this replica
    waiting     nothing of all this: the replica waits for a token, for a batch of `tf.data`, for a parameter server or
                a CPU that others use, or for TensorFlow to find its next op; the session's own round trip is in it

So the four add up to the call's time. In synchronous training it is the chief's loop of updates, and no replica's step,
that averages the gradients and applies them: meanwhile replicas wait.

The intervals are those that TensorFlow traces (`tf.compat.v1.RunMetadata.step_stats`), to the microsecond, by the
clocks of this task and of the parameter servers, which must agree, as they do on one machine. `tracing` has the calls
traced; this module imports no TensorFlow.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Interval = tuple[float, float]
"""Begin and end, in microseconds since 1970."""

READING = ("ReadVariableOp",)
WAITING = ("Queue", "FIFOQueue", "Iterator")
APPLYING = ("ResourceApply", "Assign", "ResourceAccumulator", "Collective")
"""What the names of kernels begin with; others are applying on a parameter server, and computing on a replica."""

_LINE = re.compile(
    r"a step's time: waiting (?P<waiting>\S+) ms, reading (?P<reading>\S+) ms, computing (?P<computing>\S+) ms, "
    r"applying (?P<applying>\S+) ms \((?P<steps>\d+) steps traced\)$"
)


@dataclass(frozen=True)
class StepTime:
    """Where the time of a step went, in milliseconds; its text is the line that a replica prints, to be parsed."""

    waiting: float
    reading: float
    computing: float
    applying: float
    steps: int
    """Over which this is the mean."""

    def __str__(self) -> str:
        return (
            f"a step's time: waiting {self.waiting:.4f} ms, reading {self.reading:.4f} ms, "
            f"computing {self.computing:.4f} ms, applying {self.applying:.4f} ms ({self.steps} steps traced)"
        )

    @property
    def parts(self) -> dict[str, float]:
        """The milliseconds by their names."""
        return {
            "waiting": self.waiting,
            "reading": self.reading,
            "computing": self.computing,
            "applying": self.applying,
        }

    @property
    def milliseconds(self) -> float:
        """A step's whole time."""
        return sum(self.parts.values())


def parse(line: str) -> StepTime | None:
    """The split in a line of a log; None where it is another line."""
    found = _LINE.search(line.rstrip())
    if not found:
        return None
    return StepTime(
        float(found["waiting"]),
        float(found["reading"]),
        float(found["computing"]),
        float(found["applying"]),
        int(found["steps"]),
    )


def mean(splits: Sequence[StepTime]) -> StepTime:
    """The mean over all steps of these splits, which are one at least."""
    steps = sum(split.steps for split in splits)
    means = {name: sum(split.parts[name] * split.steps for split in splits) / steps for name in splits[0].parts}
    return StepTime(**means, steps=steps)


def measure(step_stats: Any, began: float, ended: float, steps: int) -> StepTime:
    """The split of one traced call of so many steps, which began and ended so, in seconds since 1970."""
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
    # The label is "[memory] NODE = KERNEL(INPUT, INPUT)"; internal nodes have another one.
    kernel = node.timeline_label.partition(" = ")[2].partition("(")[0]
    for kind, beginnings in (("reading", READING), ("waiting", WAITING), ("applying", APPLYING)):
        if kernel.startswith(beginnings):
            return kind
    return "applying" if on_server else "computing"


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments in intervals that do not overlap, in order."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((begin, end))
    return union
