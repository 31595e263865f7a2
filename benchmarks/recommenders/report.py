"""Render results as Markdown tables and a chart. This module measures nothing."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks import figures
from benchmarks.recommenders.plan import CRITEO, LEARNING, MILLION, MOVIELENS, PROFILE, RATES, Run
from benchmarks.recommenders.programs import WITHOUT_ROW_OPS, Outcome
from benchmarks.recommenders.work import Work
from benchmarks.report import row, spread
from benchmarks.results import measured_on

POINTS = (1, 2, 5, 10)
"""Millions of examples at which the AUC is told."""
GOAL_AT = 2
"""`fit`'s AUC after so many million examples is the one to which the seconds are told."""
OPS = 16
"""Rows of a table of a profile."""
DEEPREC_RATE = 7383
"""Samples/s of each vCPU: DeepRec's DLRM on Criteo Kaggle, batch 512, 8 vCPUs, as published in its repository."""


def render(machine: dict[str, str | int], runs: Sequence[Run]) -> str:
    """Render the report as Markdown, without sections that have no runs."""
    parts = [
        f"{measured_on(machine)} Values are medians (minimum–maximum) of the rounds. A million is {MILLION:,}.",
        *(part([run for run in runs if run.planned.section == section]) for section, part in _PARTS),
        memory(runs),
    ]
    return "\n\n".join(part for part in parts if part)


def rates(runs: Sequence[Run]) -> str:
    """The rates of all programs by model and batch."""
    if not runs:
        return ""
    titles = ["model", "batch", "program", "ps", "workers", "rounds", "samples/s", "per CPU second", "bytes a sample"]
    titles += ["trainer in its mode with 1 ps, times this"]
    lines = ["### Rates\n", row(titles), row(["---"] * len(titles))]
    by_work = _grouped(runs)
    ours = {
        (work.model, work.batch_size, work.mode): [run.outcome.rate for run in found]
        for (program, work), found in by_work.items()
        if program == "trainer" and work.ps == 1
    }
    for (program, work), found in sorted(by_work.items(), key=lambda each: _order(each[0][1])):
        outcomes = [run.outcome for run in found]
        rate, per_cpu = [each.rate for each in outcomes], [each.per_cpu_second for each in outcomes]
        sent = [each.bytes_per_example for each in outcomes]
        mine = ours.get((work.model, work.batch_size, work.mode), []) if program != "trainer" else []
        times = spread([one / other for one, other in zip(mine, rate, strict=False)], "{:.2f}") if mine else ""
        cells = [work.model, f"{work.batch_size:,}", name(program, work), work.ps or "", work.workers, len(found)]
        cells += [spread(rate, "{:,.0f}"), spread(per_cpu, "{:,.0f}")]
        cells += ["" if work.workers == 1 else spread(sent, "{:,.0f}"), times]
        lines.append(row(cells))
    return "\n".join(lines)


def learning(runs: Sequence[Run]) -> str:
    """AUC by examples, and the seconds to the goal."""
    lines = []
    for data in dict.fromkeys(run.planned.work.data for run in runs):
        found = [run for run in runs if run.planned.work.data == data]
        best = next((run.best for run in found if run.best), None)
        goal = _goal(found)
        title = f"seconds to {goal:.4f}" if goal else "seconds to the AUC of `fit`"
        titles = ["program", *(f"AUC at {point} M" for point in POINTS), title]
        lines += [f"### Learning: {data}\n"]
        lines += [f"The best AUC, that of the true probabilities, is {best:.4f}.\n"] if best else []
        lines += [row(titles), row(["---"] * len(titles))]
        for run in found:
            curve = run.outcome.curve
            cells = [auc_at(curve, point * MILLION) for point in POINTS]
            seconds = seconds_to(curve, goal) if goal else None
            shown = ["" if cell is None else f"{cell:.4f}" for cell in cells]
            shown.append("–" if seconds is None else f"{seconds:.1f}")
            lines.append(row([name(run.planned.program, run.planned.work), *shown]))
        lines.append("")
    return "\n".join(lines)


def movielens(runs: Sequence[Run]) -> str:
    """Recall and error by the trainer and by `fit`."""
    if not runs:
        return ""
    names = {"two_towers": "recall@10", "factorization": "RMSE"}
    lines = ["### MovieLens-100k\n", row(["model", "program", "epochs", "figure"]), row(["---"] * 4)]
    for run in runs:
        work = run.planned.work
        figure = f"{names[work.model]} {run.outcome.curve[-1][2]:.3f}" if run.outcome.curve else "–"
        lines.append(row([work.model, name(run.planned.program, work), round(work.examples / 98_304), figure]))
    return "\n".join(lines)


def criteo(runs: Sequence[Run]) -> str:
    """DeepRec's layers on Criteo's format, beside its figure."""
    if not runs:
        return ""
    table = rates([run for run in runs if not run.outcome.curve]).removeprefix("### Rates\n\n")
    learnt = [
        f"{name(run.planned.program, run.planned.work)}: AUC {run.outcome.curve[-1][2]:.4f} after "
        f"{run.outcome.curve[-1][0]:,} examples."
        for run in runs
        if run.outcome.curve
    ]
    text = (
        f"DeepRec publishes {DEEPREC_RATE:,} samples/s of each vCPU, as its rate divided by its 8 vCPUs. The column "
        '"per CPU second" here is per second of CPU time used.'
    )
    return "\n\n".join(["### Criteo's format, DeepRec's layers", table, *learnt, text])


def profile(runs: Sequence[Run]) -> str:
    """Where the time of a step goes, by kind of task and type of op."""
    parts = ["### Where the time of a step goes"] if runs else []
    for run in runs:
        work, ops = run.planned.work, run.outcome.ops
        total = sum(op[-1] for op in ops)
        wall = 1000 * work.batch_size / run.outcome.rate
        lines = [
            f"DLRM, batch {work.batch_size:,}, {work.mode}, {work.ps} ps, {work.workers} workers: a batch takes "
            f"{wall:.2f} ms, in which all ops of all threads take {total:.2f} ms:\n",
            row(["task", "type of op", "ms a batch", "share", "most of it"]),
            row(["---"] * 5),
        ]
        by_type: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        for role, kind, op, milliseconds in ops:
            by_type[role, kind].append((milliseconds, op))
        ranked = sorted((sum(ms for ms, _ in each), key) for key, each in by_type.items())
        for milliseconds, (role, kind) in ranked[::-1][:OPS]:
            largest = max(by_type[role, kind])[1]
            lines.append(row([role, kind, f"{milliseconds:.3f}", f"{milliseconds / total:.0%}", f"`{largest}`"]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def memory(runs: Sequence[Run]) -> str:
    """Peak memory of each kind of task, with DLRM and one ps."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for run in runs:
        if run.planned.section == RATES and run.planned.work.model == "dlrm" and run.planned.work.ps < 2:
            found[name(run.planned.program, run.planned.work)].append(run.outcome)
    lines = ["### Memory\n", row(["program", "peak memory of the largest process, MiB"]), row(["---"] * 2)]
    for program, outcomes in found.items():
        roles = dict.fromkeys(role for each in outcomes for role in each.memory)
        peaks = [f"{role} {max(each.memory.get(role, 0) for each in outcomes):.0f}" for role in roles]
        lines.append(row([program, ", ".join(peaks)]))
    return "\n".join(lines) if found else ""


def name(program: str, work: Work) -> str:
    """The name of a program with its mode."""
    if program == "fit":
        return "`fit`, one process"
    return f"{program}, {work.mode}" if program in ("trainer", WITHOUT_ROW_OPS, "classic") else program


def auc_at(curve: Sequence[tuple[int, float, float]], examples: int) -> float | None:
    """The AUC after so many examples, between two snapshots by interpolation; None beyond the last one."""
    if not curve or examples > curve[-1][0] * 1.01 or examples < curve[0][0] * 0.8:
        return None
    return float(np.interp(examples, [each[0] for each in curve], [each[2] for each in curve]))


def seconds_to(curve: Sequence[tuple[int, float, float]], goal: float) -> float | None:
    """The seconds to an AUC, between two snapshots by interpolation; None if it is not reached."""
    before = (0.0, 0.5)
    for _, seconds, found in curve:
        if found >= goal:
            share = (goal - before[1]) / (found - before[1]) if found > before[1] else 1.0
            return before[0] + share * (seconds - before[0])
        before = (seconds, found)
    return None


def draw(runs: Sequence[Run], file: Path) -> None:
    """Plot the rates of DLRM by batch, and the AUC by examples, as an SVG file."""
    pyplot = figures.pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    colors: dict[str, str] = {}

    def style(label: str) -> dict[str, str]:
        """A program has the same colour on both sides."""
        return {"label": label.replace("`", ""), "color": colors.setdefault(label, f"C{len(colors)}")}

    by_name: dict[str, dict[int, float]] = defaultdict(dict)
    for (program, work), found in _grouped(runs, RATES).items():
        if work.model == "dlrm" and work.ps < 2:
            by_name[name(program, work)][work.batch_size] = statistics.median(run.outcome.rate for run in found)
    for label, points in by_name.items():
        left.plot(*zip(*sorted(points.items()), strict=True), marker="o", **style(label))
    left.set(title="DLRM", xlabel="batch of a worker", ylabel="samples/s", xscale="log", ylim=(0, None))
    sizes = sorted({size for points in by_name.values() for size in points})
    left.set_xticks(sizes, [f"{size:,}" for size in sizes])
    left.set_xticks([], minor=True)
    left.legend(fontsize=7)
    curves = [run for run in runs if run.planned.section == LEARNING]
    first = next((run.planned.work.data for run in curves), "")
    for run in curves:
        if run.planned.work.data == first and run.outcome.curve:
            millions = [examples / MILLION for examples, _, _ in run.outcome.curve]
            values = [auc for _, _, auc in run.outcome.curve]
            right.plot(millions, values, marker=".", **style(name(run.planned.program, run.planned.work)))
    if best := next((run.best for run in curves if run.best), None):
        right.axhline(best, color="#222222", linestyle="--", linewidth=0.8)
    right.set(title=f"{first} (dashed: best)", xlabel="million examples", ylabel="AUC")
    figures.save(figure, file)


def _goal(runs: Sequence[Run]) -> float | None:
    fits = [auc_at(run.outcome.curve, GOAL_AT * MILLION) for run in runs if run.planned.program == "fit"]
    return fits[0] if fits else None


def _grouped(runs: Iterable[Run], section: str = "") -> dict[tuple[str, Work], list[Run]]:
    found: dict[tuple[str, Work], list[Run]] = defaultdict(list)
    for run in runs:
        if not section or run.planned.section == section:
            found[run.planned.program, run.planned.work].append(run)
    return found


def _order(work: Work) -> tuple[bool, str, int]:
    """DLRM first, and smaller batches before larger ones."""
    return work.model != "dlrm", work.model, work.batch_size


_PARTS: tuple[tuple[str, Callable[[Sequence[Run]], str]], ...] = (
    (RATES, rates),
    (LEARNING, learning),
    (MOVIELENS, movielens),
    (CRITEO, criteo),
    (PROFILE, profile),
)
