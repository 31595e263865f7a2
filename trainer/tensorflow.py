"""TensorFlow, imported quietly: the one place that imports it.

The import takes seconds, so only modules that build or run graphs import this one.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from trainer.errors import ConfigurationError


@contextlib.contextmanager
def _without_banner() -> Iterator[None]:
    """Keep what the import writes to stderr for the case that it fails.

    TensorFlow logs a few lines of banner there before its log level takes effect.
    """
    with tempfile.TemporaryFile() as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(stderr, kept.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


# Errors only; set it to 0 to see all that TensorFlow says.
talks = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1")
# Keras is not used here, and importing it takes every task a third of its start; this defers it until `tf.keras` is.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
try:
    with contextlib.nullcontext() if talks else _without_banner():
        import tensorflow as tf
except ModuleNotFoundError as absent:
    raise ConfigurationError(
        "TensorFlow is not installed: install this package with its extra cpu or gpu, "
        "such as pip install 'distributed-tensorflow-trainer[cpu]'."
    ) from absent

tf.get_logger().setLevel("ERROR")
tf1 = tf.compat.v1
tf1.disable_eager_execution()  # between-graph replication builds graphs; savers and summaries ask which mode is on

__all__ = ["tf", "tf1"]
