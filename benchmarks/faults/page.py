"""The parts of docs/faults.md that programs write."""

from pathlib import Path

from benchmarks.report import insert

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"


def write(part: str, text: str) -> None:
    """Replace a part of the page, which stands between two comments with its name."""
    insert(DOCUMENT, text, (f"<!-- {part}: begin -->", f"<!-- {part}: end -->"))
