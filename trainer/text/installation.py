"""The command that installs the packages of an extra: the locked ones in a clone, else the published ones."""

from pathlib import Path

LOCKS = {"tensorflow": "cpu", "data": "data", "supervisor": "supervisor", "mlflow": "cpu-mlflow"}
"""By extra: the name of its lock file."""
CONSTRAINTS = Path(__file__).parents[2] / "constraints"
"""Where a clone has them."""


def command(extra: str) -> str:
    """The command, for a sentence."""
    if CONSTRAINTS.is_dir():
        return f"pip install -r constraints/{LOCKS[extra]}.txt in a clone of this project"
    return f"pip install 'distributed-tensorflow[{extra}]'"


def for_serving() -> str:
    """The command for KServe, whose older versions of some packages need an environment of its own."""
    source, where = (".", " in a clone of this project") if CONSTRAINTS.is_dir() else ("distributed-tensorflow", "")
    install = f".serve/bin/pip install '{source}[serve,mlflow]'"
    return f"python3 -m venv .serve && {install} && .serve/bin/trainer serve{where}"
