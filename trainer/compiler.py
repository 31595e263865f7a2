"""Compiles sources of C++ to libraries in the environment of Python, without an import of TensorFlow."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import ConfigurationError
from trainer.text import truncate

FOLDER = Path(sys.prefix, "lib", "distributed-tensorflow-trainer")
COMPILERS = ("g++", "c++", "clang++")
"""Of C++17, in this order, if the variable CXX names none."""
FLAGS = ("-O3", "-w", "-fPIC", "-shared")
BASELINE = {"x86_64": ("-march=x86-64-v2",)}
"""By machine, the flags of the oldest processor."""
SECONDS = 300
"""The most time that a compiler takes."""


def place(source: Path, headers: Sequence[Path] = (), version: str = "") -> Path:
    """Where the library of a source goes: its name has the machine, a digest of the source, and a version if given."""
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in (source, *headers))).hexdigest()[:12]
    parts = [source.stem, version, os.uname().machine, digest]
    return FOLDER / f"{'-'.join(filter(None, parts))}.so"


def find() -> str:
    """The path of the compiler.

    Raises:
        ConfigurationError: there is none.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    raise ConfigurationError(f"no compiler of C++ ({', '.join(names)}) is on PATH; install g++.")


def build(source: Path, target: Path, compile_flags: Sequence[str] = (), link_flags: Sequence[str] = ()) -> Path:
    """Compile a library, unless that was done; return its path.

    Raises:
        ConfigurationError: there is no compiler, it fails, or the library cannot be written.
    """
    if target.exists():
        return target
    compiler = find()
    flags = [*FLAGS, *BASELINE.get(os.uname().machine, ()), *compile_flags]
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder, target.name)
            command = [compiler, *flags, str(source), "-o", str(made), *link_flags]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode:
                raise ConfigurationError(f"{source.name}: {compiler} fails: {_first_error(done.stderr)}.")
            made.rename(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{source.name}: {target} cannot be made: {error}.") from None
    return target


def _first_error(text: str) -> str:
    lines = text.strip().splitlines() or ["it says nothing"]
    return truncate(next((each for each in lines if "error" in each), lines[-1]).rstrip("."), 300)
