"""The step time breakdown, from TensorFlow's traces of real executions."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.models import mlp
from trainer.telemetry import step_time
from trainer.telemetry.step_time import StepTime
from trainer.telemetry.tracing import Tracer
from trainer.tensorflow import tf1

from .conftest import EXAMPLES, MLP, SIZE, Servers

STEPS = 5


def build(cluster: Cluster | None, sync: bool = False) -> Replica:
    settings = Settings(sync_replicas=sync, batch_size=SIZE, steps_per_execution=STEPS)
    return replica.build(settings, cluster, MLP, mlp.parameters((784,), 10, 100), EXAMPLES, 0, "this run")


def begin(found: Replica, session: Any) -> None:
    for op in (found.initialize, found.replication.lead, found.mark_ready):
        session.run(op)
    found.batches.begin(session)
    session.run(found.replication.join)


def callable_of(found: Replica, session: Any) -> Callable[..., Any]:
    execution: Callable[..., Any] = session.make_callable(
        [found.replication.executions[STEPS].step], found.batches.feeds(STEPS), accept_options=True
    )
    return execution


def trace(found: Replica, session: Any) -> tuple[StepTime, float]:
    """Return the step time of an execution and the milliseconds of each of its steps."""
    execution = callable_of(found, session)
    metadata = tf1.RunMetadata()
    picks = found.batches.take(STEPS, 0)
    began = time.time()
    execution(*picks, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), run_metadata=metadata)
    ended = time.time()
    return step_time.measure(metadata.step_stats, began, ended, STEPS), (ended - began) * 1e3 / STEPS


@pytest.mark.parametrize("servers_used", [0, 1, 2], ids=["alone", "1 ps", "2 ps"])
def test_the_four_parts_of_an_asynchronous_step_add_up_to_its_time(servers: Servers, servers_used: int) -> None:
    found = build(servers.member(0, workers=1, ps=servers_used) if servers_used else None)
    with servers.session(found.graph) if servers_used else tf1.Session(graph=found.graph) as session:
        begin(found, session)
        splits = [trace(found, session) for _ in range(3)]
    for split, milliseconds in splits:
        assert math.isclose(split.milliseconds, milliseconds, abs_tol=1e-3)
        assert split.steps == STEPS
    split, _ = splits[-1]
    assert split.computing > 0
    assert split.applying > 0
    assert split.waiting > 0
    assert split.reading > 0 or not servers_used  # alone nothing is sent, and a read takes less than the clocks show


def test_waiting_for_a_token_counts_as_waiting(servers: Servers) -> None:
    found = build(servers.member(0, workers=1, ps=1), sync=True)
    pause = 1.0
    with servers.session(found.graph) as session:
        begin(found, session)
        update = session.make_callable(found.replication.updates[STEPS])
        for wait in (0.0, pause):  # the first call also prepares the graph
            updating = threading.Timer(wait, update)
            updating.start()
            split, milliseconds = trace(found, session)
            updating.join()
    assert math.isclose(split.milliseconds, milliseconds, abs_tol=1e-3)
    assert split.waiting * STEPS > 0.5 * pause * 1e3  # only the first step's gradient is computed meanwhile
    assert split.computing > 0
    assert split.applying > 0


def test_overlapping_ops_count_once() -> None:
    stats = tf1.RunMetadata().step_stats
    nodes = [
        ("/job:worker/task:0/device:CPU:0", "product", "product = MatMul(a, b)", 10, 20),
        ("/job:worker/task:0/device:CPU:0", "sum", "sum = AddV2(a, b)", 15, 30),
        ("/job:ps/task:0/device:CPU:0", "RecvTensor", "[0.3MB] edge from /job:worker to /job:ps", 25, 50),
        ("/job:ps/task:0/device:CPU:0", "adam", "[mkl 1MB 1MB] adam = ResourceApplyAdam(v)", 45, 55),
        ("/job:worker/task:0/device:CPU:0", "RecvTensor", "edge from /job:ps to /job:worker", 0, 70),
        ("/job:ps/task:0/device:CPU:0", "tokens", "tokens = QueueDequeueManyV2(q)", 0, 100),
    ]
    for device, name, label, begin, end in nodes:
        node = stats.dev_stats.add(device=device).node_stats.add(node_name=name, timeline_label=label)
        node.all_start_micros, node.all_end_rel_micros = 1_000_000 + begin, end - begin
    split = step_time.measure(stats, 1.0, 1.0001, steps=2)
    assert split.parts == pytest.approx(
        {
            "computing": 20 / 2000,  # 10 to 30
            "applying": 25 / 2000,  # 30 to 55
            "reading": (10 + 15) / 2000,  # 0 to 10, 55 to 70
            "waiting": 30 / 2000,  # 70 to 100
        }
    )


def test_the_mean_is_weighted_by_steps() -> None:
    few, many = StepTime(1, 2, 3, 4, steps=10), StepTime(3, 2, 1, 0, steps=30)
    assert step_time.mean([few, many]) == StepTime(2.5, 2, 1.5, 1, steps=40)


def test_some_executions_are_traced_but_never_the_first_or_during_a_profile() -> None:
    found = build(None)
    profiling = True
    tracer = Tracer(lambda: profiling)
    with tf1.Session(graph=found.graph) as session:
        begin(found, session)
        execution = tracer.watch(STEPS, callable_of(found, session))
        steps = [int(*execution(*found.batches.take(STEPS, 0))) for _ in range(3)]
        assert tracer.step_time is None
        profiling = False
        steps += [int(*execution(*found.batches.take(STEPS, 0))) for _ in range(2)]
        assert tracer.step_time is not None
        assert tracer.step_time.steps == STEPS  # the second one came too soon after
    assert steps == [STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS, 5 * STEPS]
