"""Classification of TensorFlow session errors: another task is lost, or this task's own code or device failed.

It reads the error only. If the error is ambiguous, it calls `ask`, with which the caller probes the other tasks.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

from trainer.errors import ModelError
from trainer.kernels import library
from trainer.shards.tables import TABLE_ROWS
from trainer.tensorflow import tf
from trainer.tensorflow.errors import brief, python_error

LOST_TASK_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
)
"""These always mean a lost task. A fault in a model never has these codes, whatever its Python functions raise."""
EMPTY = tf.errors.FailedPreconditionError
"""A parameter server restarted without variables, or the model has an uninitialized lookup table."""
AMBIGUOUS = (tf.errors.UnknownError, tf.errors.InternalError, tf.errors.NotFoundError)
"""A lost task, an exception in a Python function of the model, or a failed device or file of this task."""

_HISTORY = "Recent warning and error logs:"
"""Below this line TensorFlow may add this process's log of earlier, unrelated errors."""
_ORIGIN = re.compile(r"From (/job:\w+/replica:\d+/task:\d+)")
"""The task in which an error occurred."""
_REMOTE = "Additional GRPC error information from remote target"
"""Part of an error of a call to another task."""
_REMOTE_TASK = re.compile(rf"{_REMOTE} (/job:\w+)/replica:\d+(/task:\d+)")
_OTHER_SERVER = "Received http2 header with status"
"""Part of an error if a server of another kind answers: a task is gone, and another pod has its address."""
_MODEL_OP = re.compile(r"\{\{node (step_graph(?:_\d+)?/[^}]+)\}\}")
"""`trainer.graph.step_graph` copies the model into this scope."""
_TABLE_OP = re.compile(rf"\b{TABLE_ROWS}(?:_\d+)?\b")


def is_lost_task(error: Exception, own_device: str, ask: Callable[[], bool]) -> bool:
    """Return whether an error of a replica's session means that another task is lost.

    Args:
        error: The error.
        own_device: This task, such as "/job:worker/task:0".
        ask: Returns whether another task does not respond or has lost its variables. Called only if the error is
            ambiguous.
    """
    if isinstance(error, tf.errors.OpError) and _OTHER_SERVER in _message(error):
        return True
    if library.UNKNOWN_OP in _message(error):
        return False
    if not isinstance(error, (*LOST_TASK_ERRORS, EMPTY, *AMBIGUOUS)):
        return False
    message, own = _message(error), own_device.replace("/task:", "/replica:0/task:")
    if _has_own_python_error(message, own):
        return False
    if isinstance(error, LOST_TASK_ERRORS) or _REMOTE in message:
        return True
    if python_error(message):
        return False
    if any(origin != own for origin in _ORIGIN.findall(message)):
        return True
    if _MODEL_OP.search(message):
        return False
    return isinstance(error, EMPTY) or ask()


def called_tasks(error: Exception) -> list[str]:
    """Return the tasks, such as "/job:ps/task:0", to which the calls failed that the error tells of."""
    return ["".join(found) for found in _REMOTE_TASK.findall(_message(error))]


def model_error(error: Exception) -> ModelError | None:
    """Return the error as a sentence if it comes from the model's own code, otherwise None."""
    if not isinstance(error, tf.errors.OpError):
        return None
    message = _message(error)
    if library.UNKNOWN_OP in message or library.DIFFERENT in message:
        return ModelError(
            "some tasks of the run have the ops of row_ops.cc, and others lack them; let all tasks run the same image, "
            f"or set {library.OFF}=0 for all of them."
        )
    if found := python_error(message):
        return ModelError(f"the model's own code failed: {found}.")
    if op := _MODEL_OP.search(message):
        return ModelError(f"the model's own code failed: {brief(error).rstrip('.')} (op {op[1].partition('/')[2]}).")
    if _TABLE_OP.search(message) and isinstance(error, tf.errors.InvalidArgumentError):
        return ModelError(
            f"the data has an id that its table lacks: {brief(error).rstrip('.')} (of several parameter servers, each "
            "has the rows of its own part); give the embedding more rows, or hash the ids."
        )
    return None


@contextlib.contextmanager
def model_errors() -> Iterator[None]:
    """Convert session errors that come from the model's own code to `ModelError`.

    Raises:
        ModelError: the model's own code failed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if found := model_error(error):
            raise found from error
        raise


def _message(error: Exception) -> str:
    return str(error).partition(_HISTORY)[0]


def _has_own_python_error(message: str, own: str) -> bool:
    """Whether one of several errors is an exception in a Python function of the model on this task.

    The exception also fails the ops of other tasks that wait for its output. Their errors are in the same message.
    """
    _, *parts = _ORIGIN.split(message)
    return any(
        origin == own and _REMOTE not in text and python_error(text) is not None
        for origin, text in zip(parts[::2], parts[1::2], strict=True)
    )
