"""TensorFlow's errors, and what one says: the line that describes it, or an exception of Python code in the graph."""

import re
import sysconfig
from pathlib import Path

import trainer
from trainer.tensorflow import tf
from trainer.text import truncate

LIST_PREFIX = re.compile(rf"^(?:\s*\(\d+\) )?(?:{'|'.join(filter(str.isupper, dir(tf.errors)))}): ")
"""The prefix of an error in a list: its number and code, such as "  (0) UNKNOWN: " or "UNKNOWN: "."""
_EAGER = re.compile(r"^\{\{function_node \S*\}\} ?| \[Op:\w+\](?: name: ?\S*)?")
"""What names the op of an error in eager mode."""
NOT_WRITTEN = (OSError, tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError)
"""The errors of Python and of TensorFlow if a file cannot be written."""
_PYTHON_ERROR = re.compile(
    r"^(?P<error>[^\n]+)\nTraceback \(most recent call last\):\n"
    r"(?P<stack>.*?script_ops\.py.*?)(?=\n\s*\[\[\{\{node|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""TensorFlow's report of an exception in a `tf.numpy_function` or `tf.py_function`."""
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_TRAINER = Path(trainer.__file__).parent
UNREADABLE = (
    tf.errors.DataLossError,
    tf.errors.OutOfRangeError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.InvalidArgumentError,
    ValueError,
)
"""The errors that TensorFlow raises for a damaged or deleted checkpoint, and for one of other shapes."""


def brief(error: Exception) -> str:
    """Return the first line of an error that describes the error, not its location."""
    locations = ("Graph execution error", "Detected at node", "Node:", "From /job:", " ")
    # TensorFlow lists several errors below "2 root error(s) found." or between lines of equals signs.
    lines = [_EAGER.sub("", LIST_PREFIX.sub("", line)) for line in str(error).splitlines()]
    text = [line for line in lines if any(map(str.isalpha, line)) and not line.endswith(" root error(s) found.")]
    found = (line for line in text if not line.startswith(locations))
    return truncate(next(found, (text or [type(error).__name__])[0]), 200)


def python_error(message: str) -> str | None:
    """The exception of a Python function of the model: "RuntimeError: no such file (model.py, line 17, in read)".

    The location is the innermost frame outside of the standard library and installed packages.
    """
    found = _PYTHON_ERROR.search(message)
    if not found:
        return None
    frames = _FRAME.findall(found["stack"].rpartition("Traceback (most recent call last):")[2])
    own = [frame for frame in frames if not _is_installed(frame[0])] or frames
    error = truncate(LIST_PREFIX.sub("", found["error"]).rstrip("."), 200)
    if not own:
        return error
    file, line, function = own[-1]
    if Path(file).is_relative_to(_TRAINER):  # a function of the trainer itself
        return None
    return f"{error} ({Path(file).name}, line {line}, in {function})"


def _is_installed(file: str) -> bool:
    library = sysconfig.get_path("stdlib")
    return file.startswith(("<", library)) or "site-packages" in file or "dist-packages" in file
