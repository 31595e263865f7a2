"""Imports TensorFlow without its startup log. All modules import TensorFlow from here.

The import takes seconds, so only modules that build or run graphs import this one.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from trainer.errors import ConfigurationError
from trainer.tensorflow import request_ids
from trainer.text import installation


@contextlib.contextmanager
def _without_banner() -> Iterator[None]:
    """Buffer stderr, and print it only if the import fails.

    TensorFlow logs a few lines before its log level takes effect.
    """
    with tempfile.TemporaryFile() as buffer:
        stderr = os.dup(2)
        os.dup2(buffer.fileno(), 2)
        try:
            yield
        except Exception:  # not Ctrl-C
            buffer.seek(0)
            os.write(stderr, buffer.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


# Log errors only. Set the variable to 0 to see all of TensorFlow's log.
verbose = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1")
# This package does not use Keras, whose import takes a third of a task's startup. Legacy Keras is imported lazily.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
request_ids.load()
try:
    with contextlib.nullcontext() if verbose else _without_banner():
        import tensorflow as tf
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"TensorFlow is not installed: run {installation.command('tensorflow')}.") from missing

tf.get_logger().setLevel("ERROR")
tf1 = tf.compat.v1
tf1.disable_eager_execution()  # between-graph replication needs graphs; savers and summaries check the mode

__all__ = ["tf", "tf1"]
