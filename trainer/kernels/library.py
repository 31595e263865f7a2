"""Compiles and loads row_ops.cc, whose library is in the environment of Python.

A library fits one version of TensorFlow alone. Its name has that version, and a digest of the source.
"""

import functools
import hashlib
import logging
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from trainer.errors import ConfigurationError
from trainer.kernels.compiler import FOLDER, HEADERS, SOURCE, find
from trainer.tensorflow import tf
from trainer.tensorflow.errors import brief
from trainer.text import truncate

logger = logging.getLogger(__name__)

FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-w", "-fPIC", "-shared")
"""Those that keep the meaning of numbers that are not finite. Of x86-64, code for AVX2 is chosen when it runs."""
BASELINE = {"x86_64": ("-march=x86-64-v2",)}
"""By machine, the flags of the oldest processor."""
SECONDS = 300
"""The most time that a compiler takes."""
UNKNOWN_OP = "Op type not registered 'Trainer"
"""Part of TensorFlow's error if a task lacks the library."""
DIFFERENT = "row_ops.cc is not in all tasks"
"""What a replica says that has it, or lacks it, unlike the chief."""
OFF = "TRAINER_ROW_OPS"
"""The variable that has the value 0 where TensorFlow's own ops are wanted, as to compare them."""


def place() -> Path:
    """The library that fits this source and the TensorFlow that is loaded."""
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in (SOURCE, *HEADERS))).hexdigest()[:12]
    return FOLDER / f"row_ops-{tf.__version__}-{os.uname().machine}-{digest}.so"


def build() -> Path:
    """Compile the library, unless that was done; return its path.

    Raises:
        ConfigurationError: there is no compiler, it fails, or the library cannot be written.
    """
    if (target := place()).exists():
        return target
    compiler = find()
    flags = [*FLAGS, *BASELINE.get(os.uname().machine, ()), *tf.sysconfig.get_compile_flags()]
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder, target.name)
            command = [compiler, *flags, str(SOURCE), "-o", str(made), *tf.sysconfig.get_link_flags()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode:
                raise ConfigurationError(f"{SOURCE.name}: {compiler} fails: {_first_error(done.stderr)}.")
            made.rename(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{SOURCE.name}: {target} cannot be made: {error}.") from None
    return target


def _first_error(text: str) -> str:
    lines = text.strip().splitlines() or ["it says nothing"]
    return truncate(next((each for each in lines if "error" in each), lines[-1]).rstrip("."), 300)


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
