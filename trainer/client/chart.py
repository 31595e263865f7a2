"""The chart that comes with this package."""

from pathlib import Path

import yaml

from trainer.errors import ConfigurationError

NAME = "distributed-tensorflow"
PACKAGED = Path(__file__).parents[1] / "chart"
"""Where a wheel has it."""
CLONED = Path(__file__).parents[2] / "charts" / NAME
"""Where a clone has it."""


def path() -> Path:
    """The folder of the chart.

    Raises:
        ConfigurationError: this installation has none.
    """
    for each in (PACKAGED, CLONED):
        if (each / "Chart.yaml").is_file():
            return each
    raise ConfigurationError(f"the chart is missing at {PACKAGED}: install the package again, or run in a clone of it.")


def version() -> str:
    """The version of the chart. Raises what `path` does."""
    return str(yaml.safe_load((path() / "Chart.yaml").read_text())["version"])
