"""An environment of its own for PyTorch, made once in the user's cache, because PyTorch is no dependency of ours.

PyTorch's wheel on PyPI loads CUDA's libraries when it is imported, also on CPUs, so that the environment takes 5 GB.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.processes import FailedError

FOLDER = Path.home() / ".cache" / "distributed-tensorflow" / "benchmarks" / "torch"
PACKAGES = ("torch", "numpy")


def python() -> Path:
    """The Python of the environment, which is made if it is missing.

    Raises:
        FailedError: it cannot be made.
    """
    found, complete = FOLDER / "bin" / "python", FOLDER / "complete"
    if complete.exists():
        return found
    print(f"installing PyTorch into {FOLDER} (once, 5 GB) …", file=sys.stderr, flush=True)
    began = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(FOLDER)])
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    if Path(uv).exists():
        _run([uv, "pip", "install", "--quiet", "--python", str(found), *PACKAGES])
    else:
        _run([str(found), "-m", "pip", "install", "--quiet", *PACKAGES])
    complete.touch()
    print(f"PyTorch is installed after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedError(
            f"PyTorch cannot be installed into {FOLDER}: {done.stderr.strip()[-500:]}; "
            "check the package index of `pip config list`, or choose other --programs."
        )
