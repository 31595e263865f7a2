"""The results of the matrix: one JSON object a line, each written at once, so that a stopped matrix goes on later."""

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.run import Row
from benchmarks.results import FOLDER, describe_machine

FILE = FOLDER / "faults.jsonl"


@dataclass(frozen=True)
class Entry:
    """A case that was run, or could not be."""

    case: str
    row: Row | None
    not_run: str
    """Why it could not be run."""
    machine: dict[str, Any]
    date: str
    load: float = 0.0
    """The machine's load average over the last five minutes."""
    commit: str = ""
    """The commit of the trainer."""


def read(path: Path) -> dict[str, Entry]:
    """The latest entry of each case, by its name."""
    entries = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        content = json.loads(line)
        row = Row.from_json(content["row"]) if content["row"] else None
        entry = Entry(**content | {"row": row})
        entries[entry.case] = entry
    return entries


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=FOLDER.parent, capture_output=True, text=True)
    return done.stdout.strip()


def add(path: Path, case: str, row: Row | None, not_run: str = "") -> None:
    """Append an entry."""
    path.parent.mkdir(exist_ok=True)
    entry = Entry(case, row, not_run, describe_machine(), time.strftime("%Y-%m-%d"), os.getloadavg()[1], _commit())
    with path.open("a") as file:
        file.write(json.dumps(asdict(entry)) + "\n")
