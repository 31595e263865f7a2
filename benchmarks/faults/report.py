"""Render the results of the matrix as the tables of docs/faults.md. This module measures nothing."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.faults.plan import PLACES, Case, Place
from benchmarks.faults.results import Entry
from benchmarks.faults.run import Row
from benchmarks.faults.workload import MODES, SAVE_SECONDS, STEP_SECONDS
from benchmarks.report import insert, row, spread

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
MAX_LOSS = 0.01
"""How much less accurate than an undisturbed run a disturbed one may be, and likewise the means of a mode."""
NO_PAUSE_SECONDS = 2.5
"""Progress lines are a second apart: a shorter pause cannot be told from none."""
HEAD = ["mode", "tasks", "fault", "hits", "longest pause", "the lost one is back after", "steps lost", "restarts"]
HEAD += ["accuracy", "verdict"]
TITLES: dict[Place, str] = {"processes": "Processes on one machine", "cluster": "A release in a cluster"}


def publish(cases: Sequence[Case], entries: Mapping[str, Entry], document: Path = DOCUMENT) -> None:
    """Write the report into the document, whose rows stay for cases without a result."""
    missing = [case for case in cases if not ((entry := entries.get(case.name)) and entry.row)]
    insert(document, render(cases, entries, _rows_of(document.read_text(), missing)))


def _rows_of(text: str, cases: Iterable[Case]) -> dict[str, str]:
    """The measured rows of these cases in a document, by their names."""
    found = {}
    for case in cases:
        _, _, section = text.partition(f"### {TITLES[case.place]}\n")
        for line in section.partition("\n### ")[0].splitlines():
            if line.startswith(row(_title(case))) and "| not run" not in line:
                found[case.name] = line
    return found


def render(cases: Sequence[Case], entries: Mapping[str, Entry], earlier: Mapping[str, str] | None = None) -> str:
    """Render all cases, those that were not run too.

    Args:
        cases: The cases.
        entries: Their results, by their names.
        earlier: Rows of an earlier report for cases without a result, by their names.
    """
    earlier = earlier or {}
    machines = {
        f"{entry.machine['cores']} cores of {entry.machine['cpu']}, TensorFlow {entry.machine['tensorflow']}, Python "
        f"{entry.machine['python']}"
        for entry in entries.values()
    }
    parts = [
        f"Measured on {'; '.join(sorted(machines)) or 'no machine yet'}. Steps take about "
        f"{STEP_SECONDS * 1000:g} ms; a checkpoint is saved every {SAVE_SECONDS} s. Times are exact to a second."
        f"{_load(entries)}{_code(entries)}{_origin(earlier)}",
        *(_table(place, [case for case in cases if case.place == place], entries, earlier) for place in PLACES),
        accuracy(cases, entries, earlier),
    ]
    return "\n\n".join(part for part in parts if part)


def _code(entries: Mapping[str, Entry]) -> str:
    """A sentence on the commits of the rows."""
    commits = dict.fromkeys(entry.commit for entry in entries.values() if entry.commit)
    return f" The code is that of commit {', '.join(commits)}." if commits else ""


def _load(entries: Mapping[str, Entry]) -> str:
    """A sentence on how busy the machine was, which lengthens each start of a task."""
    loads = [entry.load for entry in entries.values() if entry.load]
    return f" The load average was {spread(loads, '{:.0f}')}." if loads else ""


def _origin(earlier: Mapping[str, str]) -> str:
    """A sentence on the rows that were not measured now."""
    if not earlier:
        return ""
    return f" {len(earlier)} rows were measured before: the history of this file has their machine and commit."


def _title(case: Case) -> list[object]:
    """The cells that name a case."""
    return [case.workload.mode, case.workload, case.fault.name if case.fault else "none", case.what or "–"]


def _table(place: Place, cases: Sequence[Case], entries: Mapping[str, Entry], earlier: Mapping[str, str]) -> str:
    rows = []
    for case in cases:
        entry = entries.get(case.name)
        if entry and entry.row:
            rows.append(row([*_title(case), *_figures(case, entry.row), verdict(case, entry.row, entries, cases)]))
        elif case.name in earlier:
            rows.append(earlier[case.name])
        else:
            rows.append(row([*_title(case), *["–"] * 5, f"not run{f': {entry.not_run}' if entry else ''}"]))
    if not rows:
        return ""
    return "\n".join([f"### {TITLES[place]}", "", row(HEAD), row(["---"] * len(HEAD)), *rows])


def _figures(case: Case, found: Row) -> list[object]:
    cost = found.cost
    accuracy = f"{found.accuracy:.4f}" if found.accuracy is not None else "–"
    restarts = "–" if found.restarts is None else found.restarts
    if cost is None:
        return ["–", "–", "–", restarts, accuracy]
    pause = "no pause" if cost.pause < NO_PAUSE_SECONDS else f"{cost.pause:.0f} s"
    back = "–" if cost.back is None else f"{cost.back:.0f} s"
    if cost.back_after_end is not None and cost.back_after_end > -NO_PAUSE_SECONDS:  # not before its end
        back += f", {max(0.0, cost.back_after_end):.0f} s after its end"
    return [pause, back, cost.lost, restarts, accuracy]


def verdict(case: Case, found: Row, entries: Mapping[str, Entry], cases: Sequence[Case]) -> str:
    """Whether the run did what it must, and otherwise what it did not."""
    problems = list(found.problems)
    undisturbed = _accuracies(case.workload.mode, cases, entries, disturbed=False)
    if undisturbed and found.accuracy is not None:
        least = min(undisturbed) - MAX_LOSS
        if found.accuracy < least:
            problems.append(f"the accuracy is below {least:.4f}")
    return "; ".join(problems) or "good"


def accuracy(cases: Sequence[Case], entries: Mapping[str, Entry], earlier: Mapping[str, str]) -> str:
    """Compare the mean accuracy of disturbed and undisturbed runs of each mode."""
    lines = []
    for mode in MODES:
        quiet, hit = (
            _accuracies(mode, cases, entries, disturbed=disturbed)
            + _earlier_accuracies(mode, cases, earlier, disturbed)
            for disturbed in (False, True)
        )
        if quiet and hit:
            difference = statistics.mean(hit) - statistics.mean(quiet)
            word = "reached" if difference >= -MAX_LOSS else "missed"
            lines.append(
                f"**Target, {mode}: {100 * difference:+.2f} points of accuracy, mean of {len(hit)} disturbed runs "
                f"compared with {len(quiet)} undisturbed; at most {100 * MAX_LOSS:g} less: {word}.**"
            )
    return "\n\n".join(lines)


def _accuracies(mode: str, cases: Sequence[Case], entries: Mapping[str, Entry], *, disturbed: bool) -> list[float]:
    return [
        entry.row.accuracy
        for case in cases
        if case.workload.mode == mode and bool(case.fault) == disturbed
        if (entry := entries.get(case.name)) and entry.row and entry.row.accuracy is not None
    ]


def _earlier_accuracies(mode: str, cases: Sequence[Case], earlier: Mapping[str, str], disturbed: bool) -> list[float]:
    cells = [
        earlier[case.name].split(" | ")[HEAD.index("accuracy")]
        for case in cases
        if case.workload.mode == mode and bool(case.fault) == disturbed and case.name in earlier
    ]
    return [float(each) for each in cells if each != "–"]
