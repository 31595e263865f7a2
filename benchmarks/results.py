"""The results of one invocation, in a JSON file that grows with every run; `--render` reads it at any time."""

import contextlib
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import trainer
from benchmarks.workload import Run
from trainer.data.files import write_atomically
from trainer.training.threads import usable_cpus

FOLDER = Path(__file__).parent / "results"
Found = TypeVar("Found")


class Storable(Protocol):
    """A run that is stored."""

    def to_json(self) -> dict[str, Any]:
        """The run as plain data."""


def describe_machine() -> dict[str, str | int]:
    """Describe what the figures were measured on: CPU model, usable cores, and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": usable_cpus(),
        "python": platform.python_version(),
        "tensorflow": _version_of_tensorflow(),
        "trainer": trainer.__version__,
    }


def measured_on(machine: dict[str, str | int]) -> str:
    """The sentence of a report on a machine that `describe_machine` has described."""
    return (
        f"Measured on {machine['cores']} cores of {machine['cpu']}, TensorFlow {machine['tensorflow']}, Python "
        f"{machine['python']}."
    )


def _version_of_tensorflow() -> str:
    """Find the version without importing TensorFlow; its CPU and CUDA builds are different packages."""
    for package in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(PackageNotFoundError):
            return version(package)
    return "unknown"


class Results:
    """The runs so far of one invocation, and their file."""

    def __init__(self, prefix: str = "") -> None:
        """The name of the file begins with `prefix`."""
        FOLDER.mkdir(exist_ok=True)
        self.path = FOLDER / f"{prefix}{time.strftime('%Y%m%d-%H%M%S')}.json"
        self.machine = describe_machine()
        self.runs: list[Any] = []
        self._write()

    def add(self, run: Storable) -> None:
        """Add a run and write the file at once."""
        self.runs.append(run)
        self._write()

    def _write(self) -> None:
        content = {"machine": self.machine, "runs": [each.to_json() for each in self.runs]}
        write_atomically(self.path, (json.dumps(content, indent=1) + "\n").encode())


def read(path: Path) -> tuple[dict[str, str | int], list[Run]]:
    """Read the machine and the runs from a file of results."""
    return read_as(path, Run.from_json)


def read_as(path: Path, parse: Callable[[dict[str, Any]], Found]) -> tuple[dict[str, str | int], list[Found]]:
    """Read the machine, and the runs by a function for one of them."""
    content = json.loads(path.read_text())
    return content["machine"], [parse(run) for run in content["runs"]]
