"""The library of row_ops.cc, which fits one version of TensorFlow alone."""

import functools
import logging
import os
from pathlib import Path
from typing import Any

from trainer import compiler
from trainer.tensorflow import tf
from trainer.tensorflow.errors import brief

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("row_ops.cc")
HEADERS = tuple(map(SOURCE.with_name, ("dynamic_table.h", "row_rules.h")))
"""What it includes."""
FLAGS = ("-fno-math-errno", "-fno-trapping-math")
"""Those that keep the meaning of numbers that are not finite. Of x86-64, code for AVX2 is chosen when it runs."""
UNKNOWN_OP = "Op type not registered 'Trainer"
"""Part of TensorFlow's error if a task lacks the library."""
DIFFERENT = "row_ops.cc is not in all tasks"
"""What a replica says that has it, or lacks it, unlike the chief."""
OFF = "TRAINER_ROW_OPS"
"""The variable that has the value 0 where TensorFlow's own ops are wanted, as to compare them."""


def place() -> Path:
    """The library that fits this source and the TensorFlow that is loaded."""
    return compiler.place(SOURCE, HEADERS, tf.__version__)


def build() -> Path:
    """Compile the library, unless that was done; return its path.

    Raises:
        ConfigurationError: there is no compiler, it fails, or the library cannot be written.
    """
    flags = [*FLAGS, *tf.sysconfig.get_compile_flags()]
    return compiler.build(SOURCE, place(), flags, tf.sysconfig.get_link_flags())


@functools.cache
def load() -> Any:
    """The module of the ops; None if they were not compiled for this TensorFlow, or cannot be loaded."""
    if os.environ.get(OFF) == "0" or not (target := place()).exists():
        return None
    try:
        return tf.load_op_library(str(target))
    except (tf.errors.OpError, OSError) as error:
        logger.warning(f"{target} cannot be loaded ({brief(error)}), so the ops of TensorFlow update rows")
        return None
