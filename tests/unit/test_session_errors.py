"""Classification of real TensorFlow errors: another task is lost, or the model's own code failed."""

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hack.ports import free_ports
from trainer.cluster.spec import Cluster, Task
from trainer.errors import ModelError
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.errors import brief
from trainer.tensorflow.private import collective_ops
from trainer.training import server, session_errors
from trainer.training.session_errors import is_lost_task, model_error

from .conftest import THREADS, Servers

WORKER = "/job:worker/task:0"


def never() -> bool:
    raise AssertionError("the error itself says enough")


def raising(error: Exception) -> Any:
    """A tensor of a model whose Python function raises this."""

    def check(value: Any) -> Any:
        raise error

    with tf.name_scope("step_graph_3"):
        return tf.numpy_function(check, [tf.constant(1.0)], tf.float32)


def error_of(make: Callable[[], Any], target: str = "", device: str = "") -> Exception:
    """What a session raises when it runs this tensor, in this process or on a server."""
    with tf.Graph().as_default() as graph, tf1.device(device):
        tensor = make()
    with pytest.raises(tf.errors.OpError) as raised, tf1.Session(target, graph) as session:
        session.run(tensor)
    error: Exception = raised.value
    return error


def sentence_of(error: Exception) -> str:
    return str(model_error(error)).removeprefix("the model's own code failed: ")


@pytest.mark.parametrize("on_a_server", [False, True])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (RuntimeError("my data is bad"), "RuntimeError: my data is bad"),
        (KeyError("my data is bad"), "KeyError: 'my data is bad'"),
        (FileNotFoundError(2, "absent"), "FileNotFoundError: [Errno 2] absent"),
        (ValueError("my data is bad"), "ValueError: my data is bad"),
        (StopIteration("my data is bad"), "StopIteration: my data is bad"),
        (NotImplementedError("my data is bad"), "NotImplementedError: my data is bad"),
        (MemoryError("my data is bad"), "MemoryError: my data is bad"),
        (tf.errors.AbortedError(None, None, "my data is bad"), "AbortedError: my data is bad"),
        (ConnectionResetError("my data is bad"), "ConnectionResetError: my data is bad"),
    ],
)
def test_an_exception_in_a_python_function_is_not_a_lost_task_and_names_its_location(
    servers: Servers, raised: Exception, said: str, on_a_server: bool
) -> None:
    where = (servers.running[Task("worker", 0)].target, WORKER) if on_a_server else ("", "")
    error = error_of(lambda: raising(raised), *where)
    assert is_lost_task(error, WORKER, never) is False
    lines, first = inspect.getsourcelines(raising)
    line = first + next(number for number, text in enumerate(lines) if "raise error" in text)
    assert sentence_of(error) == f"{said} (test_session_errors.py, line {line}, in check)."


def test_the_location_is_in_the_models_file_and_not_in_a_package_that_it_calls() -> None:
    import numpy as np

    def shape(value: Any) -> Any:
        return np.reshape(value, (3, 3))

    error = error_of(lambda: tf.numpy_function(shape, [tf.ones([4])], tf.float32))
    assert sentence_of(error).startswith("ValueError: cannot reshape array")
    assert "(test_session_errors.py, line " in sentence_of(error)


def test_the_last_exception_of_a_chain_is_reported() -> None:
    def check(value: Any) -> Any:
        try:
            return dict[str, float]()["absent"]
        except KeyError as error:
            raise RuntimeError("my data is bad") from error

    error = error_of(lambda: tf.numpy_function(check, [tf.constant(1.0)], tf.float32))
    assert sentence_of(error).startswith("RuntimeError: my data is bad (test_session_errors.py, line ")


def test_several_exceptions_at_once_are_not_a_lost_task(servers: Servers) -> None:
    together = threading.Barrier(2, timeout=60)

    def check(value: Any) -> Any:
        together.wait()
        raise RuntimeError("my data is bad")

    def make() -> Any:
        return [tf.numpy_function(check, [tf.constant(float(number))], tf.float32) for number in range(2)]

    for target, device in (("", ""), (servers.running[Task("worker", 0)].target, WORKER)):
        together.reset()
        error = error_of(make, target, device)
        assert is_lost_task(error, WORKER, never) is False
        assert sentence_of(error).startswith("RuntimeError: my data is bad (test_session_errors.py, line ")
        assert brief(error) == "RuntimeError: my data is bad"


FAILED_ON_BOTH_SIDES = """Graph execution error:

Detected at node 'step_graph_5/PyFunc' defined at (most recent call last):
Node: 'step_graph_5/PyFunc'
=====================
UNKNOWN: From /job:worker/replica:0/task:0:
RuntimeError: my data is bad
Traceback (most recent call last):

  File "/lib/site-packages/tensorflow/python/ops/script_ops.py", line 269, in __call__
    ret = func(*args)

  File "/home/me/mine.py", line 17, in check
    raise RuntimeError("my data is bad")

RuntimeError: my data is bad


\t [[{{node step_graph_5/PyFunc}}]]
UNKNOWN: From /job:ps/replica:0/task:0:
RuntimeError: my data is bad
Traceback (most recent call last):

  File "/lib/site-packages/tensorflow/python/ops/script_ops.py", line 269, in __call__
    ret = func(*args)

  File "/home/me/mine.py", line 17, in check
    raise RuntimeError("my data is bad")

RuntimeError: my data is bad


\t [[{{node step_graph_5/PyFunc}}]]
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling \
/tensorflow.WorkerService/RecvTensor:
:UNKNOWN:Error received from peer  {grpc_status:2, grpc_message:"RuntimeError: my data is bad"}
\t [[step_graph_7/concat_S45]]
"""
"""A message of TensorFlow, which combines these errors in about one of twenty such failures."""


def test_an_exception_that_also_fails_the_parameter_server_is_not_a_lost_task() -> None:
    error = tf.errors.UnknownError(None, None, FAILED_ON_BOTH_SIDES)
    assert is_lost_task(error, WORKER, never) is False
    assert is_lost_task(error, "/job:worker/task:1", never) is True
    assert sentence_of(error) == "RuntimeError: my data is bad (mine.py, line 17, in check)."
    assert session_errors.called_tasks(error) == ["/job:worker/task:0"]


@pytest.mark.parametrize("on_a_server", [False, True])
def test_a_failed_op_of_the_model_is_not_a_lost_task_and_is_named(servers: Servers, on_a_server: bool) -> None:
    def gather() -> Any:
        with tf.name_scope("step_graph"):
            return tf.gather(tf.zeros([10]), tf1.placeholder_with_default(1000, []), name="look_up")

    def check() -> Any:
        with tf.name_scope("step_graph_12"), tf.control_dependencies([tf.debugging.Assert(False, ["my data is bad"])]):
            return tf.constant(1)

    def table() -> Any:
        words = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(["a"], tf.constant([0], "int64")), 1
        )
        with tf.name_scope("step_graph_2"):
            return words.lookup(tf.constant(["a"]))

    where = (servers.running[Task("worker", 0)].target, WORKER) if on_a_server else ("", "")
    said = {
        gather: "indices = 1000 is not in [0, 10) (op look_up).",
        check: "assertion failed: [my data is bad] (op Assert",
        table: "Table not initialized (op ",
    }
    for make, sentence in said.items():
        error = error_of(make, *where)
        assert is_lost_task(error, WORKER, never) is False
        assert sentence_of(error).startswith(sentence)


def test_a_parameter_server_without_variables_is_a_lost_task(servers: Servers) -> None:
    def read() -> Any:
        with tf1.device("/job:ps/task:0"):
            variable = tf1.get_variable("lost", initializer=1.0, use_resource=True)
        with tf.name_scope("step_graph"):
            return variable.read_value() + 1.0

    error = error_of(read, servers.running[Task("worker", 0)].target, WORKER)
    assert isinstance(error, tf.errors.FailedPreconditionError)
    assert is_lost_task(error, WORKER, never) is True


def test_a_missing_file_is_a_lost_task_only_if_a_probe_fails() -> None:
    error = error_of(lambda: tf.io.read_file("/no/such/file"))
    assert isinstance(error, tf.errors.NotFoundError)
    assert is_lost_task(error, WORKER, lambda: True) is True
    assert is_lost_task(error, WORKER, lambda: False) is False
    assert model_error(error) is None


def test_other_exceptions_are_not_a_lost_task() -> None:
    assert is_lost_task(RuntimeError("my data is bad"), WORKER, never) is False
    assert model_error(RuntimeError("my data is bad")) is None


def test_a_closed_session_is_a_lost_task(servers: Servers) -> None:
    with tf.Graph().as_default() as graph, tf1.device(WORKER):
        taken = tf.queue.FIFOQueue(1, tf.float32).dequeue()
    session = tf1.Session(servers.running[Task("worker", 0)].target, graph)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.run, taken)
        while not waiting.running():
            pass
        session.close()
        error = waiting.exception(60)
    assert isinstance(error, (tf.errors.CancelledError, tf.errors.AbortedError, RuntimeError))
    assert isinstance(error, RuntimeError) or is_lost_task(error, WORKER, never) is True


@pytest.fixture
def ring() -> Iterator[list[Any]]:
    """The servers of two workers of a collective group."""
    workers = tuple(f"localhost:{port}" for port in free_ports(2))
    made = [server.start(Cluster(Task("worker", index), (), workers, ()), THREADS) for index in range(2)]
    yield made
    for here in made:
        tf1.Session.reset(here.target)


@pytest.mark.slow
def test_a_failure_of_another_replica_is_a_lost_task_and_its_own_is_not(ring: list[Any]) -> None:
    graphs = []
    for index in range(2):
        with tf.Graph().as_default() as graph, tf1.device(f"/job:worker/task:{index}"):
            value = tf.zeros([100])
            first = collective_ops.all_reduce(value, 2, 1, 1, "Add", "Id", communication_hint="ring")
            own = raising(RuntimeError("my data is bad")) if index else tf.constant(0.0)
            with tf.control_dependencies([first]):
                then = tf.identity(own) + value
            graphs.append((graph, [first, collective_ops.all_reduce(then, 2, 1, 2, "Add", "Id")]))

    def run(index: int) -> Exception:
        graph, tensors = graphs[index]
        with ring[index].session(graph) as session, pytest.raises(tf.errors.OpError) as raised:
            session.run(tensors, options=tf1.RunOptions(timeout_in_ms=5_000))
        error: Exception = raised.value
        return error

    with ThreadPoolExecutor(2) as pool:
        other, failed = pool.map(run, range(2))
    assert is_lost_task(failed, "/job:worker/task:1", never) is False
    assert "my data is bad" in str(model_error(failed))
    assert is_lost_task(other, "/job:worker/task:0", never) is True


def test_only_errors_of_the_model_are_converted() -> None:
    with pytest.raises(ModelError, match="RuntimeError: my data is bad"), session_errors.model_errors():
        raise error_of(lambda: raising(RuntimeError("my data is bad")))
    with pytest.raises(tf.errors.NotFoundError), session_errors.model_errors():
        raise error_of(lambda: tf.io.read_file("/no/such/file"))
    with pytest.raises(ValueError, match="ours"), session_errors.model_errors():
        raise ValueError("ours")


def test_a_server_of_another_kind_at_a_tasks_address_means_that_the_task_is_lost() -> None:
    """Seen in Kubernetes, which gives the address of a pod that is gone to another pod."""
    text = "Received http2 header with status: 404\n\t [[{{node step_graph_1/concat_S17}}]]"
    assert is_lost_task(tf.errors.UnimplementedError(None, None, text), WORKER, never)
    assert not is_lost_task(tf.errors.UnimplementedError(None, None, "no such kernel"), WORKER, never)
