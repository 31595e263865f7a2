"""The graph of a replica: device placement, messages between tasks, saving and restoring."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.data.leases import MOST_RANGES, Claimed, OwnLeases
from trainer.data.orders import Deal
from trainer.data.stream import Stream
from trainer.graph import devices, replica
from trainer.graph.replica import Replica
from trainer.mode import Mode
from trainer.models import mlp
from trainer.models.ops_model import OpsModel
from trainer.shards import parameters
from trainer.tensorflow import tf, tf1

from .conftest import EXAMPLES, MLP, SIZE, Servers

pytestmark = pytest.mark.slow

PARAMETERS = mlp.parameters((784,), 10, 100)
CHIEF = Cluster(Task("worker", 0), (), ("w:1", "w:2"), ("p:1", "p:2"))
ALLREDUCE = Cluster(Task("worker", 0), (), ("w:1", "w:2"))
OTHER = Cluster(Task("worker", 1), (), ("w:1", "w:2"), ("p:1", "p:2"))

both_modes = pytest.mark.parametrize("sync", [False, True], ids=["asynchronous", "synchronous"])


def build(cluster: Cluster | None, sync: bool = False, gpus: int = 0, **settings: Any) -> Replica:
    chosen = Settings(sync_replicas=sync, batch_size=SIZE, **{"steps_per_execution": 3, **settings})
    return replica.build(chosen, cluster, MLP, PARAMETERS, EXAMPLES, gpus, "this run")


def collective_ops(found: Replica) -> list[Any]:
    collective = found.replication.collective
    return [collective.agreed, collective.leave] if collective else []


def operations(found: Replica, *kinds: str) -> list[Any]:
    return [operation for operation in found.graph.get_operations() if operation.type in kinds]


def ancestors(*tensors: Any) -> set[Any]:
    """All ops that must run for these tensors."""
    found: set[Any] = set()
    waiting = [tensor if isinstance(tensor, tf.Operation) else tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return found


@pytest.mark.parametrize("number", [100, 120, 105])
def test_examples_that_are_read_by_their_index_are_those_of_the_leases(number: int) -> None:
    every = Examples(np.arange(number, dtype=np.float32)[:, np.newaxis].repeat(784, axis=1), np.zeros(number, np.int32))
    source = Stream(
        signature=every.signature,
        once=lambda size: iter([every.arrays]),
        first=every.arrays,
        size=number,
        read=lambda indices: every.take(indices).arrays,
    )
    settings = Settings(sync_replicas=False, batch_size=10, steps_per_execution=1)
    cluster = Cluster(Task("worker", 1), (), ("w:1", "w:2", "w:3"), ("p:1",))
    made = replica.build(settings, cluster, MLP, PARAMETERS, source, 0, "this run")
    claims = iter([Claimed(8, 3, 0, False), Claimed(2, 1, 0, False), Claimed(30, 1000, 0, False)])
    made.batches.begin(None, leases=OwnLeases(lambda *_: next(claims), (64, 256)))
    deal = Deal(number, 10, batches=1, seed=0)
    placeholder, *_ = made.batches.feeds(1)
    for place, step in enumerate([8, 9, 10, 2, 30, 31]):
        images, _, share = made.batches.take(1, place)
        indices, count = deal.take(step, 0)
        assert placeholder.shape.is_compatible_with(images.shape)
        assert (images[:, 0].tolist(), share) == (indices.tolist(), count / 10)


@both_modes
def test_each_parameter_server_has_a_shard_with_its_slots(sync: bool) -> None:
    handles = {operation.name: operation.device for operation in operations(build(CHIEF, sync), "VarHandleOp")}
    for index in range(2):
        kinds = {name.partition("/")[2] for name in handles if name.startswith(f"part_{index}_of_2/")}
        assert kinds == {"values", "Adam", "Adam_1", "vhat", "updates"}
    assert all(device == f"/job:ps/task:{name[5]}/device:CPU:0" for name, device in handles.items() if "part" in name)


@both_modes
def test_large_parameters_have_several_shards_on_each_server(sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "CHUNK_SIZE", parameters.MIN_SHARD_SIZE)
    handles = operations(build(CHIEF, sync), "VarHandleOp")
    homes = {each.name: each.device for each in handles if each.name.endswith("/values")}
    assert homes == {f"part_{i}_of_4/values": f"/job:ps/task:{i % 2}/device:CPU:0" for i in range(4)}


def messages_of_the_worker(*targets: Any) -> set[tuple[str, str]]:
    """Messages to and from the worker that these targets need: tensors and control dependencies."""
    found = set()
    for operation in ancestors(*targets):
        awaited = [tensor for tensor in operation.inputs if tensor.dtype != tf.resource]
        for each in [*awaited, *operation.control_inputs]:
            source = each if isinstance(each, tf.Operation) else each.op
            places = [op.device.partition("/device")[0] for op in (source, operation)]
            if places[0] != places[1] and "/job:worker" in "".join(places):
                found.add((each.name, places[1]))
    return found


@both_modes
def test_a_step_of_a_replica_takes_two_messages_per_shard(sync: bool) -> None:
    executions = build(OTHER, sync, train_steps=100, steps_per_execution=4).replication.executions
    # The loss does not depend on the contributions of the last step.
    assert len(messages_of_the_worker(executions[4].loss)) == 4 * 2 * 2 - 2
    # The last step adds the global step.
    assert len(messages_of_the_worker(executions[4].step)) <= 4 * 2 * 2 + 2


def test_a_round_of_local_sgd_takes_three_messages_per_shard() -> None:
    executions = build(OTHER, sync=True, local_steps=2, train_steps=100, steps_per_execution=4).replication.executions
    assert len(messages_of_the_worker(executions[4].step)) <= 2 * 2 * 3


def test_the_chiefs_updates_need_no_message_from_a_worker() -> None:
    updates = build(CHIEF, sync=True, train_steps=100, steps_per_execution=4).replication.updates
    assert not messages_of_the_worker(updates[4])


def test_the_graph_of_a_large_model_has_fewer_steps() -> None:
    class Deep:
        parameters = staticmethod(mlp.parameters)

        @staticmethod
        def logits(parameters: Any, images: Any) -> Any:
            for _ in range(100):
                images = tf.nn.relu(images)
            return mlp.logits(parameters, images)

    settings = Settings(batch_size=SIZE, train_steps=2000)
    for model, full in ((MLP, 50), (OpsModel("deep", Deep(), 100), 25)):
        found = replica.build(settings, None, model, PARAMETERS, EXAMPLES, 0, "this run")
        assert max(found.replication.executions) == full


@both_modes
def test_each_step_of_an_execution_reads_the_parameters(sync: bool) -> None:
    execution = ancestors(build(OTHER, sync).replication.executions[3].step)
    reads = [
        operation
        for operation in execution
        if operation.type == "ReadVariableOp" and "values" in operation.inputs[0].name
    ]
    update_ops = {"ResourceApplyAdamWithAmsgrad", "ResourceAccumulatorApplyGradient", "AccumulatorApplyGradient"}
    before = sorted(sum(each.type in update_ops for each in ancestors(read)) for read in reads)
    assert len(reads) == 3 * 2
    # A shard is read after the replica's previous update of it; and with tokens, after that of the first shard.
    assert before == ([0, 0, 1, 2, 3, 4] if sync else [0, 0, 1, 1, 3, 3])


def test_a_synchronous_replica_goes_by_the_step_that_all_shards_have_reached() -> None:
    """A shard may be ahead of others. A checkpoint after the last step would then lack their last update."""
    execution = build(CHIEF, sync=True).replication.executions[3].step
    reads = {each.inputs[0].op.name for each in ancestors(execution) if each.type == "ReadVariableOp"}
    assert {"round_begun", "course", "counted_from"} == {name for name in reads if "part_" not in name}
    assert [name for name in reads if name.endswith("/updates")] == ["part_0_of_2/updates"]


@both_modes
@pytest.mark.parametrize("chief", [CHIEF, Cluster(Task("chief", 0), ("c:1",), ("w:1",), ("p:1", "p:2"))])
def test_restored_arrays_enter_the_graph_on_the_chief(sync: bool, chief: Cluster) -> None:
    found = operations(build(chief, sync), "PyFunc")
    assert {operation.device for operation in found} == {f"{chief.task.device}/device:CPU:0"}


@both_modes
def test_other_replicas_have_no_saver_and_no_updates(sync: bool) -> None:
    other = build(OTHER, sync)
    assert other.saver is None
    assert other.replication.updates == {}
    assert operations(other, "PyFunc") == []


def test_the_chief_has_updates_in_synchronous_mode_only() -> None:
    assert build(CHIEF, sync=True).replication.updates.keys() == {1, 3}
    assert build(CHIEF, sync=False).replication.updates == {}


@pytest.mark.parametrize(
    ("cluster", "settings"),
    [
        *itertools.product(
            [CHIEF, OTHER, None], [{}, {"sync_replicas": True}, {"sync_replicas": True, "local_steps": 3}]
        ),
        *itertools.product(
            [ALLREDUCE, dataclasses.replace(ALLREDUCE, task=Task("worker", 1))], [{"strategy": "allreduce"}]
        ),
    ],
)
def test_every_op_has_a_device(cluster: Cluster | None, settings: dict[str, Any]) -> None:
    found = build(cluster, settings.pop("sync_replicas", False), **settings)
    replication = found.replication
    targets = [
        each
        for execution in replication.executions.values()
        for each in (execution.step, execution.loss, execution.metrics["accuracy"])
    ]
    targets += [*replication.updates.values(), replication.join, replication.lead, *collective_ops(found)]
    targets += [found.is_ready, found.initialize, found.mark_ready, found.global_step]
    for operation in ancestors(*targets):
        colocated = operation.colocation_groups() != [b"loc:@" + operation.name.encode()]
        # TensorFlow never moves an op away from the variable that it reads.
        beside_a_variable = any(tensor.dtype == tf.resource for tensor in operation.inputs)
        assert operation.device or colocated or beside_a_variable, operation.name


@both_modes
def test_a_replica_computes_on_its_task_only(sync: bool) -> None:
    step = ancestors(build(OTHER, sync).replication.executions[3].step)
    multiplications = [operation for operation in step if operation.type == "MatMul"]
    assert multiplications
    assert {operation.device for operation in multiplications} == {"/job:worker/task:1/device:CPU:0"}
    jobs = {operation.device.rpartition("/device")[0] for operation in step if operation.device}
    assert jobs == {"/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:1"}


@pytest.mark.parametrize(("worker", "gpus"), [(0, 1), (1, 1), (0, 2), (1, 2)])
def test_a_replica_computes_on_all_gpus_of_its_task(worker: int, gpus: int) -> None:
    found = build(Cluster(Task("worker", worker), (), ("w:1", "w:2"), ("p:1",)), gpus=gpus)
    multiplications = {operation.device for operation in operations(found, "MatMul")}
    assert multiplications == {f"/job:worker/task:{worker}/device:GPU:{index}" for index in range(gpus)}
    handles = [operation for operation in operations(found, "VarHandleOp") if "part" in operation.name]
    assert {handle.device for handle in handles} == {"/job:ps/task:0/device:CPU:0"}


def test_an_allreduce_replica_uses_its_own_device_only() -> None:
    devices = {operation.device for operation in build(ALLREDUCE, strategy="allreduce").graph.get_operations()}
    assert devices - {""} == {"/job:worker/task:0/device:CPU:0"}


def test_local_sgd_transfers_values_and_moments_both_ways_per_round_and_the_largest_once() -> None:
    found = build(OTHER, sync=True, local_steps=3, steps_per_execution=6)
    steps = max(found.replication.executions)
    crossing = {
        tensor
        for operation in ancestors(found.replication.executions[steps].step)
        for tensor in operation.inputs
        if tensor.dtype == tf.float32 and operation.device and tensor.op.device[:8] != operation.device[:8]
    }
    assert (steps, len(crossing)) == (6, 2 * 2 * 2)
    numbers = sum(np.prod(parameter.shape) for parameter in PARAMETERS.values())
    assert (
        sum(int(np.prod(tensor.shape)) for tensor in crossing) == (2 * (3 + 3) + 1) * numbers + 2 * 2
    )  # each contribution ends with 1.0


@both_modes
def test_replicas_are_ready_when_the_chief_marks_the_run_ready(servers: Servers, sync: bool) -> None:
    chief, other = build(servers.member(0), sync), build(servers.member(1), sync)
    with servers.session(chief.graph, 0) as chief_session, servers.session(other.graph, 1) as other_session:
        assert not chief_session.run(chief.is_initialized)
        chief_session.run(chief.initialize)
        assert chief_session.run(chief.is_initialized)
        assert not other_session.run(other.is_ready)
        chief_session.run(chief.mark_ready)
        assert other_session.run(other.is_ready)


@both_modes
def test_a_checkpoint_has_full_arrays_by_name_and_fits_any_cluster(
    servers: Servers,
    sync: bool,
    values: Callable[[Replica, Any], dict[str, npt.NDArray[Any]]],
    tmp_path: Any,
) -> None:
    chief = build(servers.member(0, workers=1), sync, steps_per_execution=1)
    with servers.session(chief.graph) as session:
        session.run([chief.initialize, chief.mark_ready])
        session.run(chief.replication.lead)
        session.run(chief.replication.join)
        chief.batches.begin(session)
        feed = dict(zip(chief.batches.feeds(1), chief.batches.take(1, 0), strict=True))
        session.run([chief.replication.executions[1].step, *chief.replication.updates.values()], feed)
        before = values(chief, session)
        path = chief.saver.save(session, tmp_path / "model.ckpt")
    shapes = {name: parameter.shape for name, parameter in PARAMETERS.items()}
    slots = {f"{name}/{slot}": shape for name, shape in shapes.items() for slot in ("Adam", "Adam_1", "vhat")}
    assert {name: value.shape for name, value in before.items()} == {
        **shapes,
        **slots,
        "global_step": (),
        "trainer/course": (7 + 3 * MOST_RANGES,),
    }
    assert before["global_step"] == 1
    assert before["hidden/weights/Adam"].any()

    one_ps, single = build(servers.member(0, ps=1)), build(None)
    with servers.session(one_ps.graph) as session:
        one_ps.saver.restore(session, path)
        assert one_ps.leases
        one_ps.leases.reset(session, 1, 100)
        assert session.run(one_ps.is_initialized)
        after_one_ps = values(one_ps, session)
    with tf1.Session(graph=single.graph) as session:
        single.saver.restore(session, path)
        after_single = values(single, session)
    for after in (after_one_ps, after_single):
        assert after.keys() == before.keys()
        assert all(np.array_equal(after[name], before[name]) for name in before)


def batches_per_step(settings: Settings, cluster: Cluster) -> int:
    return Mode.of(settings, cluster, devices.count(settings, is_cluster=True)).batches


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sync_replicas": True}, 2),
        ({"sync_replicas": True, "num_gpus": 4}, 8),
        ({"sync_replicas": True, "num_gpus": 4, "replicas_to_aggregate": 1}, 4),
        ({"sync_replicas": False, "num_gpus": 4}, 4),
        ({"sync_replicas": False}, 1),
        ({"strategy": "allreduce", "num_gpus": 4}, 8),
    ],
)
def test_all_tasks_of_a_cluster_find_the_same_number_of_batches(settings: dict[str, Any], expected: int) -> None:
    """Otherwise the evaluator, or a worker, would end at another step than the chief."""
    ps = () if "strategy" in settings else ("p:1",)
    tasks = [Task("worker", 0), Task("worker", 1), Task("evaluator", 0)]
    clusters = [Cluster(task, (), ("w:1", "w:2"), ps) for task in tasks]
    assert [batches_per_step(Settings(**settings), each) for each in clusters] == [expected] * len(tasks)


def test_the_evaluator_of_a_single_process_finds_its_number_of_batches() -> None:
    single = Cluster(Task("evaluator", 0), (), ("w:1",), ())
    assert batches_per_step(Settings(num_gpus=4), single) == 4
