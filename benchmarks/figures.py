"""Figures as SVG files, which are the same whenever they are drawn from the same results."""

from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """Matplotlib's pyplot for such files. Its import takes a second."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as found

    found.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "", "font.family": "sans-serif", "font.size": 9})
    return found


def save(figure: Any, file: Path) -> None:
    """Write a figure to a file, and close it."""
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot().close(figure)
