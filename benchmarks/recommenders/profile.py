"""Where the time of a step goes: ops of the trainer's tasks, parameter servers included, by TensorFlow's profiler.

Each task runs with a profiler server (profiled_task.py), and all are traced at the same time in the steady part. The
trainer's own `--profile_steps` has the ops of the chief alone.
"""

import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.processes import FailedError, running
from benchmarks.recommenders import programs
from benchmarks.recommenders.programs import LONG, Outcome, trainer_tasks
from benchmarks.recommenders.work import Given, Work
from hack.ports import free_ports

SECONDS = 2.0
"""Length of a trace."""
BEGIN = 0.2
"""The share of the steps after which it begins."""
NETWORK = "step/step/"
"""The ops of a network begin so. Most of them run once for each batch."""
OP = re.compile(r"(?P<name>[^:\s]+):(?P<type>_?[A-Z]\w*)")
UNROLLED = re.compile(r"^step_graph(_\d+)?/|(_S?\d+)+(?=/|$)")
"""What the trainer adds to the names of the ops of each step of an execution."""


def run(given: Given) -> Outcome:
    """Run the trainer on a cluster, and trace it.

    Raises:
        FailedError: a task failed, or the trace has no steps.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = trainer_tasks(given, folder / "run", LONG * given.work.steps)
        ports = free_ports(len(tasks))
        program = [sys.executable, "-m", "benchmarks.recommenders.profiled_task"]
        profiled = [
            replace(task, command=[*program, str(port), *task.command[3:]])
            for task, port in zip(tasks, ports, strict=True)
        ]
        (folder / "output").mkdir()
        with running(profiled, folder / "output", programs.TIMEOUT) as processes:
            while programs.step_of(processes, given.work) < BEGIN * given.work.steps:
                time.sleep(0.1)
            addresses = ",".join(f"grpc://localhost:{port}" for port in ports)
            try:
                tf.profiler.experimental.client.trace(addresses, str(folder / "trace"), int(SECONDS * 1000))
            except (RuntimeError, tf.errors.OpError) as error:
                raise FailedError(f"no trace: {error}") from error
        files = {port: next((folder / "trace").rglob(f"*_{port}.xplane.pb"), None) for port in ports}
        traces = [(task.role, file) for task, (_, file) in zip(tasks, files.items(), strict=True) if file]
        return _outcome(traces, given.work)


def events(file: Path) -> Iterator[tuple[str, int, float]]:
    """The names of the events of a trace, with their begin in ns and their duration in ms."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(file.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                begin = line.timestamp_ns + event.offset_ps // 1000
                yield plane.event_metadata[event.metadata_id].name, begin, event.duration_ps / 1e9


def _outcome(traces: Sequence[tuple[str, Path]], work: Work) -> Outcome:
    """The time of each op for each batch, of all tasks of a role together."""
    times: dict[tuple[str, str, str], float] = defaultdict(float)
    counts: Counter[str] = Counter()
    begins: list[int] = []
    for role, file in traces:
        for name, begin, duration in events(file):
            if found := OP.fullmatch(name):
                op = UNROLLED.sub("", found["name"])
                times[role, found["type"].lstrip("_"), op] += duration
                if role == "worker" and op.startswith(NETWORK):
                    counts[op] += 1
                    begins.append(begin)
    batches = statistics.median(counts.values()) if counts else 0
    if batches < 2 * work.workers:
        raise FailedError("the trace has no steps; give the run more examples.")
    seconds = (max(begins) - min(begins)) / 1e9
    ops = [(*key, milliseconds / batches) for key, milliseconds in times.items()]
    return Outcome(batches * work.batch_size / seconds, 0.0, 0.0, ops=sorted(ops, key=_longest_first))


def _longest_first(op: tuple[Any, ...]) -> float:
    return -float(op[-1])
